/* tests/expertfs/checkpoint_dump.c - every logical tensor of a checkpoint, for
 * checkpoint_oracle.py.
 *
 *     checkpoint_dump DIRECTORY
 *
 * A line a tensor: name, dtype, shape with commas, CRC-32 of its f32 little-endian, read in pieces
 * of 7 rows. */
#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>

#include "expertfs/safetensors.h"

enum { ROWS = 7 };

static int dump(const struct checkpoint *c, const struct source_tensor *t, struct err *e)
{
    static const char *const dtype[] = {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "MXFP4"};
    float *rows = malloc(ROWS * t->cols * sizeof(*rows));
    uint32_t crc = 0;

    if (!rows)
        return err_set(e, ERR_NOMEM, "%s", t->name);
    for (uint64_t r = 0; r < t->rows; r += ROWS) {
        uint64_t n = t->rows - r < ROWS ? t->rows - r : ROWS;

        if (checkpoint_read(c, t, r, n, rows, e)) {
            free(rows);
            return e->code;
        }
        crc = libdeflate_crc32(crc, rows, n * t->cols * sizeof(*rows));
    }
    free(rows);
    printf("%s %s ", t->name, dtype[t->dtype]);
    for (unsigned i = 0; i < t->rank; i++)
        printf("%s%" PRIu32, i ? "," : "", t->dim[i]);
    printf(" %08" PRIx32 "\n", crc);
    return 0;
}

int main(int argc, char **argv)
{
    struct checkpoint *c = NULL;
    struct err e;
    int code = argc == 2 ? checkpoint_open(&c, argv[1], &e) : err_set(&e, ERR_ARG, "a directory");

    for (unsigned i = 0; !code && i < checkpoint_n_tensors(c); i++)
        code = dump(c, checkpoint_tensor(c, i), &e);
    if (code)
        fprintf(stderr, "%s\n", e.text);
    checkpoint_close(c);
    return code != 0;
}
