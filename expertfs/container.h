/* expertfs/container.h - an open container: its files, and (layer, expert) -> extent.
 *
 * Banks may be symbolic links to other drives, or be spread over several (placement.h). Everything
 * container_open accepts has the sizes that the manifest says; what is inside a record is checked
 * when it is read (record.h).
 */
#ifndef EXPERTFS_CONTAINER_H
#define EXPERTFS_CONTAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertfs/manifest.h"
#include "storage/extent.h"
#include "storage/file.h"

struct container; /* opaque */
struct placement;

struct container_options {
    bool direct;    /* try direct reads of the banks and of the trunk */
    bool exclusive; /* flock the directory; ERR_BUSY if another process has it */
};

/* Open manifest, trunk, codebooks and every bank. Outputs are untouched on failure. Contexts of one
 * process share `exclusive`; where the file system cannot lock, they go on without. Any thread. */
int container_open(struct container **out, const char *dir, const struct container_options *o,
                   struct err *e);
void container_close(struct container *c); /* NULL-safe */

const struct manifest *container_manifest(const struct container *c);
const char *container_dir(const struct container *c);
/* The directory, for the files beside: good for the *at calls, not for reading entries. */
int container_dirfd(const struct container *c);
const struct file *container_trunk(const struct container *c);
/* Zeroed when n_experts is 0: then there is no such file. */
const struct file *container_codebooks(const struct container *c);

/* Where the records lie, as drives.json says: n = 0 where there is none. */
const struct placement *container_placement(const struct container *c);

/* The banks in layer order, of a spread layer (placement.h) one for each drive that has
 * records of it; extent.file indexes this array. */
const struct file *const *container_files(const struct container *c, unsigned *n);

/* layer must be an MoE layer and expert < n_experts (asserted: ids come from our router). */
struct extent container_extent(const struct container *c, unsigned layer, unsigned expert);
unsigned container_file_layer(const struct container *c, unsigned file);

/* The trunk is read all the time (a row per token) and has no checksum: is it still the file that
 * was opened, of its size and time of change? ERR_IO. */
int container_check_trunk(const struct container *c, struct err *e);

/* A number that changes when the weights or their arithmetic do: CRC-32 of manifest.json, of
 * codebooks.bin and of all file sizes. */
uint32_t container_fingerprint(const struct container *c);

#endif
