/* storage/drive.h - which drive a file lies on, and how many reads in flight it wants. */
#ifndef STORAGE_DRIVE_H
#define STORAGE_DRIVE_H

#include <stdint.h>

#include "base/err.h"
#include "storage/extent.h"

struct file;
struct io;

struct drive {
    uint64_t id;   /* equal for files on one drive; files on different ones differ */
    char name[64]; /* as in /sys/block, "nvme0n1". "" where the file system names no device: in
                      memory, in layers, over a network, over several devices */
};

/* The whole disk below partitions and below what maps one device to one (encryption, a volume on
 * one disk); what is made of several disks is a drive of its own. Never fails: what cannot be found
 * out makes each file system a drive. */
void drive_of(struct drive *out, const struct file *f);

/* The same for a device number, where `sys` is mounted as /sys is. */
void drive_of_device(struct drive *out, const char *sys, unsigned major, unsigned minor);

struct drive_trial {
    struct io *io;           /* nothing in flight; its depth is at least depth_max */
    const struct extent *at; /* n >= 1 extents of one drive, all as long as the first. They are read
                                in order and again from the first, so a file that is not direct
                                wants enough of them, or memory is measured */
    unsigned n;
    uint8_t *memory;    /* of depth_max extents; in the engine's arena, if that has one. NULL for an
                           engine that touches none */
    unsigned depth_max; /* at least 1 */
    uint64_t ns;        /* for each depth tried, a dozen at most; 50 ms hide most tails */
    uint64_t total_ns;  /* no depth is begun when so much has passed; 0: all are */
};

struct drive_speed {
    unsigned depth;       /* the fewest in flight that give 95 % of the best */
    uint64_t bytes_per_s; /* with these */
    uint64_t alone;       /* bytes per s with one in flight */
};

/* Read with more and more in flight, twice; of each depth the better one counts, since what
 * disturbs makes slower. In the engine's own time, so that a simulated drive can be measured at
 * once and always to the same result. ERR_IO: a read failed, which one is named. Nothing is in
 * flight when it returns. */
int drive_measure(struct drive_speed *out, const struct drive_trial *t, struct err *e);

#endif
