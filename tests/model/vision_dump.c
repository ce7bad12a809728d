/* tests/model/vision_dump.c - what the vision tower of a container makes of a picture.
 *
 *     vision_dump CONTAINER THREADS CPU_LEVEL FILE >ROWS
 *
 * f32 rows, one per token. CPU_LEVEL "faults": instead, each allocation of the way there fails
 * once; every time the error must say so and nothing may be left. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "model/vision.h"
#include "tests/support/alloc_fault.h"

static void *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    void *data = malloc(64 << 20);

    if (!f || !data)
        abort();
    *n = fread(data, 1, 64 << 20, f);
    fclose(f);
    return data;
}

static int encode(const char *dir, unsigned threads, unsigned cpu, const void *data, size_t n,
                  struct err *e)
{
    struct container_options options = {0};
    struct container *c = NULL;
    struct vision *v = NULL;
    struct team *team = NULL;
    struct vision_shape shape;
    struct kernels k;
    struct image m = {0};
    struct mem mem;
    float *rows = NULL;
    uint64_t planned;

    mem_init(&mem, 0);
    kernels_init(&k, cpu, PROFILE_F32);
    if (container_open(&c, dir, &options, e) ||
        vision_shape_read(&shape, container_manifest(c), container_dirfd(c), e) ||
        vision_weight_bytes(&planned, &shape, container_manifest(c), e) ||
        vision_open(&v, c, &shape, &k, &mem, NULL, e) || team_open_n(&team, threads, e) ||
        image_open(&m, &mem, data, n,
                   &(struct image_rule){shape.max_patches, shape.side_patches, 0}, e))
        goto out;
    if (m.fit.patches_x * m.fit.patches_y > vision_patches_max(&shape)) {
        err_set(e, ERR_LIMIT, "%u x %u patches: more than vision_patches_max", m.fit.patches_x,
                m.fit.patches_y);
        goto out;
    }
    rows = malloc((size_t)m.fit.tokens * shape.text * sizeof(*rows));
    if (!rows) {
        err_set(e, ERR_NOMEM, "rows");
        goto out;
    }
    team_begin(team);
    if (!vision_encode(v, &m, rows, team, NULL, e))
        fwrite(rows, sizeof(*rows) * shape.text, m.fit.tokens, stdout);
    team_end(team);
out:
    free(rows);
    if (m.rgb)
        image_close(&m);
    team_close(team);
    vision_close(v);
    container_close(c);
    if (!e->code && mem.used_total)
        err_set(e, ERR_BUDGET, "%llu bytes were not given back",
                (unsigned long long)mem.used_total);
    return e->code;
}

static int faults(const char *dir, const void *data, size_t n)
{
    bool failed = true;
    unsigned nth;

    for (nth = 1; failed; nth++) {
        struct err e = {0};

        alloc_fault_arm(nth);
        encode(dir, 1, 0, data, n, &e);
        failed = alloc_fault_disarm();
        if (failed != (e.code == ERR_NOMEM)) {
            fprintf(stderr, "allocation %u: %s: %s\n", nth, err_name(e.code), e.text);
            return 1;
        }
    }
    fprintf(stderr, "%u allocations failed in turn\n", nth - 2);
    return nth < 8; /* fewer: nothing was counted */
}

int main(int argc, char **argv)
{
    struct err e = {0};
    unsigned level = 0;
    void *data;
    size_t n;

    if (argc != 5)
        return 2;
    data = read_file(argv[4], &n);
    if (!strcmp(argv[3], "faults")) {
        int rc = faults(argv[1], data, n);

        free(data);
        return rc;
    }
    if (cpu_level(&level, argv[3], &e))
        return 2;
    encode(argv[1], (unsigned)atoi(argv[2]), cpu_detect() & level, data, n, &e);
    free(data);
    if (e.code) {
        fprintf(stderr, "%s: %s\n", err_name(e.code), e.text);
        return 1;
    }
    return 0;
}
