/* storage/io_sim.h - drives that we do not have: an engine whose time is a number.
 *
 * Bytes are real or not, as asked; time is virtual, in ns since open, and moves only by
 *
 *     io_sim_advance(io, ns)   the caller computes for so long; the drives go on meanwhile
 *     reap(..., wait = true)   with nothing finished: on to the next completion, and no further
 *
 * so that the same calls give the same completions, times and statistics on every machine, however
 * fast or busy it is: all arithmetic is in integers, and the only chance is the seed's. What a
 * caller waits for is in waited_ns: the I/O time that computation did not hide.
 *
 *     now -> submit -> [lanes full: wait in order] -> latency, perhaps a tail -> transfer -> reap
 *
 * All reads that transfer share their drive's bytes_per_s equally, each up to read_bytes_per_s.
 * That is a drive as one sees it from above its queue: one read alone does not fill it, two to
 * eight do, and more only wait longer. There is no wear, no heat, no cache and no garbage
 * collection but what a tail stands for.
 *
 * Not on the ladder and not known to io_open: io_sim_open, then `submit`, `reap` and `close` as
 * with every engine (io.h), under a pool too. Not for several threads.
 */
#ifndef STORAGE_IO_SIM_H
#define STORAGE_IO_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/io.h"

struct io_sim_drive {
    uint64_t bytes_per_s;      /* of all reads together; not 0 */
    uint64_t read_bytes_per_s; /* of one, alone or not; not 0 */
    uint64_t latency_ns;       /* of each read, before its first byte */
    uint64_t tail_ns;          /* mean of what some reads wait beyond, nearly exponential */
    unsigned tail_per_mille;   /* how many do */
    unsigned lanes;            /* reads served at a time, not 0; later ones wait in order */
};

enum { IO_SIM_DRIVES_MAX = 16 };

enum io_sim_source {
    IO_SIM_FILES,   /* dst gets what the file has, errors too, when the read completes */
    IO_SIM_SEED,    /* no file is touched: dst gets bytes that follow from seed, file and offset */
    IO_SIM_NOTHING, /* no byte is touched; dst may be anything */
};

/* Zero, then io_sim_add or fill in; seed 0 is a seed. */
struct io_sim_config {
    struct io_sim_drive drive[IO_SIM_DRIVES_MAX];
    unsigned n_drives;
    /* Where a read goes, whole: to drive (file_drive[file] + offset / stripe_bytes) % n_drives.
     * With stripe_bytes 0 the second term is 0; with the size of a record, records alternate. */
    const unsigned char *file_drive; /* [n_files of the io_config]; NULL: 0 for every file */
    uint64_t stripe_bytes;
    enum io_sim_source source;
    uint64_t seed;
};

/* Add the drives of a preset: nvme3, nvme7, nvme14 (one drive of that many GB/s; nvme3 has 3.5),
 * nvme28 (two of nvme14), qlc, usb. They are round figures of such classes, chosen and not
 * measured; io_sim.c has them. ERR_ARG names the presets, or says that there are too many drives.
 */
int io_sim_add(struct io_sim_config *cfg, const char *preset, struct err *e);
const char *const *io_sim_presets(void); /* names; NULL-terminated */

extern const struct io_ops io_ops_sim; /* its `open` only says to use io_sim_open */

/* cfg as for every engine; with IO_SIM_SEED and IO_SIM_NOTHING its files are not looked at and may
 * be NULL, and n_files is only the bound of extent.file. sim is copied, but for file_drive, which
 * outlives the engine as the files do. ERR_ARG, ERR_NOMEM. */
int io_sim_open(struct io **out, const struct io_config *cfg, const struct io_sim_config *sim,
                struct err *e);

/* Below, io is what io_sim_open gave. */
uint64_t io_sim_now(const struct io *io);
void io_sim_advance(struct io *io, uint64_t ns);

/* What goes wrong from now on; zeroed, nothing does. A read fails when it would have completed,
 * with garbage in the first half of dst (not with IO_SIM_NOTHING). What happens to the n-th read
 * depends on n and the seed and on nothing that happened before. */
struct io_sim_faults {
    uint64_t fail_nth;        /* the n-th read submitted since open, from 1, gives EIO; 0 = none */
    unsigned down_drives;     /* these drives, a bit each, give EIO ... */
    uint64_t down_ns[2];      /* ... for what completes at a time in [0] <= t < [1] */
    unsigned delay_per_mille; /* so many reads submitted have a latency longer by ... */
    uint64_t delay_ns;        /* ... up to so much */
    bool reorder;             /* a lane takes any of the waiting reads, and not the first */
};
void io_sim_set_faults(struct io *io, const struct io_sim_faults *faults);

struct io_sim_stats {              /* since open */
    uint64_t reads, failed, bytes; /* completed, failed ones included; whole ones' bytes */
    uint64_t waited_ns;            /* by reap */
    struct {
        uint64_t reads, bytes;
        uint64_t busy_ns;    /* at least one read was there */
        uint64_t latency_ns; /* sum over its reads, from submit to completion */
    } drive[IO_SIM_DRIVES_MAX];
};
void io_sim_get_stats(const struct io *io, struct io_sim_stats *out);

#endif
