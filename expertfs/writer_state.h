/* expertfs/writer_state.h - what a writer knows, shared by the files that implement writer.h:
 * writer.c (directory, codebooks, banks), writer_trunk.c, writer_manifest.c.
 */
#ifndef EXPERTFS_WRITER_STATE_H
#define EXPERTFS_WRITER_STATE_H

#include <stdatomic.h>

#include "expertfs/format.h"
#include "expertfs/out_dir.h"
#include "expertfs/writer.h"

enum { NAME_BYTES = OUT_NAME_BYTES };

struct tensor {
    char *name;
    int fmt;
    unsigned rank;
    uint32_t dim[4];
    uint64_t rows;
    uint32_t cols, groups;
    uint64_t row_bytes, off, scale_off, bytes;
    atomic_uint_fast64_t written; /* rows */
};

struct bank_state {
    int fd; /* of the temporary; -1 while none is open */
    bool done;
    atomic_uint_fast32_t written; /* records */
};

struct writer {
    char *dir;
    struct out_dir out;
    json_t *config;
    char *arch, *prefix;
    bool direct;         /* asked for */
    atomic_bool refused; /* the file system does not take it */
    bool made_directory, locked, finished;
    uint32_t stages, entries, index_bits;
    unsigned n_layers, first_dense, n_experts;
    struct record_layout record;
    int trunk_fd;
    bool trunk_done;
    struct tensor *tensor;
    unsigned n_tensors, tensor_room;
    uint64_t trunk_bytes;
    atomic_uint_fast64_t trunk_sum; /* of the rows written so far */
    uint8_t *codebooks;             /* the file's image */
    size_t codebook_record, codebooks_bytes;
    bool *codebook_given;
    struct bank_state bank[FORMAT_LAYERS_MAX];
};

/* File names of a layer; out: [NAME_BYTES]. */
void writer_bank_name(char *out, unsigned layer);
void writer_part_name(char *out, unsigned layer);

#endif
