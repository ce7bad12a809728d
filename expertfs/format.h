/* expertfs/format.h - the container's on-disk constants, format v0 (docs/FORMAT.md). No code. */
#ifndef EXPERTFS_FORMAT_H
#define EXPERTFS_FORMAT_H

#include <stdint.h>

enum {
    FORMAT_VERSION = 0,
    FORMAT_PAGE = 4096,
    FORMAT_GROUP = 128,      /* columns per trunk scale */
    FORMAT_INDEX_BLOCK = 64, /* rows per index block */
    FORMAT_VEC_DIM = 8,      /* columns per codebook entry */
    FORMAT_STAGES_MAX = 8,
    FORMAT_ENTRIES_MAX = 256,
    FORMAT_LAYERS_MAX = 128,
    FORMAT_EXPERTS_MAX = 65535,
    FORMAT_TOP_K_MAX = 64,
    FORMAT_RECORD_HEADER = 48,
    FORMAT_CODEBOOK_HEADER = 16,
};

/* Format codes. 1 is reserved for 16-bit floats but was never written, and which of the two it
 * means is nowhere said: refused. 6 is reserved. */
enum {
    FMT_F32 = 0,
    FMT_Q8G = 2,
    FMT_Q4G = 3,
    FMT_VQ3R = 4,
    FMT_VQ2R = 5,
    FMT_Q3G = 7,
    FMT_VQ4P = 8,
};

#define RECORD_MAGIC   0x50584557u /* "WEXP" */
#define CODEBOOK_MAGIC 0x4B424357u /* "WCBK" */
#define USAGE_MAGIC    0x47535557u /* "WUSG" */

/* Byte offsets inside a record header; every field is little-endian. */
enum {
    REC_MAGIC = 0,
    REC_LAYER = 4,
    REC_EXPERT = 6,
    REC_FMT = 8,
    REC_FLAGS = 9,
    REC_CODEBOOK = 10,
    REC_LOWRANK = 12,
    REC_BLOCKS = 16,
    REC_GATE_OFF = 20,
    REC_UP_OFF = 24,
    REC_DOWN_OFF = 28,
    REC_SCALE_OFF = 32,
    REC_CRC = 36,
};

enum matrix { MATRIX_GATE, MATRIX_UP, MATRIX_DOWN, MATRICES };

#endif
