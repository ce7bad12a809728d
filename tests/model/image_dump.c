/* tests/model/image_dump.c - what model/image.c makes of files, a line each.
 *
 *     image_dump MAX_PATCHES SIDE_PATCHES MS FILE...
 *
 * WIDTH HEIGHT FIT_WIDTH FIT_HEIGHT PADDED_WIDTH PADDED_HEIGHT TOKENS CRC, or the error's name and
 * text; then the peak of the memory account.
 */
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/image.h"

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    long size;

    if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET))
        abort();
    *n = (size_t)size;
    data = malloc(*n ? *n : 1);
    if (!data || fread(data, 1, *n, f) != *n)
        abort();
    fclose(f);
    return data;
}

int main(int argc, char **argv)
{
    struct image_rule rule;

    if (argc < 4)
        return 2;
    rule = (struct image_rule){(uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]),
                               (uint32_t)atoi(argv[3])};
    for (int i = 4; i < argc; i++) {
        struct image m;
        struct mem mem;
        struct err e;
        size_t n;
        uint8_t *data = read_file(argv[i], &n);

        mem_init(&mem, 0);
        if (image_open(&m, &mem, data, n, &rule, &e)) {
            printf("%s %s", err_name(e.code), e.text);
        } else {
            const struct image_fit *f = &m.fit;

            printf("%u %u %u %u %u %u %u %08x", m.head.upright_w, m.head.upright_h, f->width,
                   f->height, f->padded_w, f->padded_h, f->tokens,
                   libdeflate_crc32(0, m.rgb, (size_t)f->padded_w * f->padded_h * 3));
            if (mem.peak_total > image_peak_bytes(&m.head, f))
                printf(" PEAK");
            image_close(&m);
        }
        printf("%s\n", mem.used_total ? " LEFT" : "");
        free(data);
    }
    return 0;
}
