/* cli/cmd_image.c - what a model will see of a picture. */
#include "cli/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_VISION
#include <png.h>
#endif

#include "cli/load.h"
#include "cli/pictures.h"
#include "cli/units.h"
#include "model/image.h"

enum { MEMORY = 1 << 30 }; /* of a picture while it is read */

static bool ends_in_png(const char *path)
{
    size_t n = strlen(path);

    return n > 4 && !strcmp(path + n - 4, ".png");
}

static bool write_ppm(FILE *f, const struct image *m)
{
    size_t n = (size_t)m->fit.padded_w * m->fit.padded_h * 3;

    return fprintf(f, "P6\n%u %u\n255\n", m->fit.padded_w, m->fit.padded_h) > 0 &&
           fwrite(m->rgb, 1, n, f) == n;
}

static bool write_png(FILE *f, const struct image *m)
{
#ifdef HAVE_VISION
    png_image out = {.version = PNG_IMAGE_VERSION,
                     .width = m->fit.padded_w,
                     .height = m->fit.padded_h,
                     .format = PNG_FORMAT_RGB};

    return png_image_write_to_stdio(&out, f, 0, m->rgb, 0, NULL);
#else
    (void)f, (void)m;
    return false; /* without it nothing was decoded either */
#endif
}

static int write_picture(struct cli *c, const char *path, const struct image *m)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    struct stat st;
    bool good;
    int why;

    if (!f)
        return fail(c, EXIT_RUNTIME, NULL, path, "cannot be written: %s", strerror(errno));
    errno = 0; /* libpng may fail without one */
    good = (ends_in_png(path) ? write_png : write_ppm)(f, m);
    why = errno;
    if (fclose(f) && good) {
        why = errno;
        good = false;
    }
    if (good)
        return 0;
    if (!lstat(path, &st) && S_ISREG(st.st_mode))
        unlink(path); /* half a picture */
    return fail(c, EXIT_RUNTIME, NULL, path, "cannot be written: %s",
                why ? strerror(why) : "the encoder refused it");
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Decode as for a model; with --out, keep what came of it. */
static int decode(struct cli *c, const char *path, const waste_image_info *info)
{
    struct image_rule rule = {info->max_patches, info->side_patches, 0};
    struct image m;
    struct mem mem;
    struct err e;
    void *bytes;
    size_t len;
    int rc = picture_read(c, path, &bytes, &len);

    if (rc)
        return rc;
    mem_init(&mem, MEMORY);
    if (image_open(&m, &mem, bytes, len, &rule, &e)) {
        rc = fail_err(c, &e, path);
    } else {
        rc = c->opts.out ? write_picture(c, c->opts.out, &m) : 0;
        image_close(&m);
    }
    free(bytes);
    return rc;
}

static int print_json(struct cli *c, const waste_image_info *i)
{
    return say_json(c, json_pack("{s:s, s:i, s:i, s:[i, i], s:[i, i], s:[i, i], s:i, s:I, s:I}",
                                 "format", i->format, "width", (int)i->width, "height",
                                 (int)i->height, "resized", (int)i->fit_width, (int)i->fit_height,
                                 "padded", (int)i->padded_width, (int)i->padded_height, "patches",
                                 (int)i->patches_x, (int)i->patches_y, "tokens", (int)i->n_rows,
                                 "decode_bytes", (json_int_t)i->decode_bytes, "tower_macs",
                                 (json_int_t)i->tower_macs));
}

static int print_text(struct cli *c, const char *path, const waste_image_info *i)
{
    char memory[UNITS_TEXT];

    printf("%s: %s, %u x %u\n", path, i->format, i->width, i->height);
    printf("  resized to       %u x %u, padded to %u x %u\n", i->fit_width, i->fit_height,
           i->padded_width, i->padded_height);
    printf("  patches          %u x %u with padding; at most %u without\n", i->patches_x,
           i->patches_y, i->max_patches);
    printf("  tokens           %u, and the markers around them\n", i->n_rows);
    printf("  memory to read   %s\n", size_text(memory, i->decode_bytes));
    if (i->tower_macs)
        printf("  vision tower     %.1f G multiply-adds\n", (double)i->tower_macs * 1e-9);
    if (c->opts.out)
        printf("  written to       %s\n", c->opts.out);
    return term_flush(&c->term) ? 0 : fail_output(c);
}

int cmd_image(struct cli *c)
{
    const char *path = c->opts.arg[1], *model = c->opts.n_args > 2 ? c->opts.arg[2] : NULL;
    waste_image_info info;
    char container[PATH_MAX];
    int rc = model ? model_find(c, model, container) : 0;

    if (!rc && c->opts.out && same_file(c->opts.out, path))
        rc = fail(c, EXIT_USAGE, NULL, c->opts.out, "it is the picture that is to be read");
    if (!rc && model)
        rc = model_check(c, container);
    if (!rc)
        rc = picture_look(c, model ? container : NULL, path, &info);
    if (!rc)
        rc = decode(c, path, &info);
    if (rc)
        return rc;
    return c->opts.json ? print_json(c, &info) : print_text(c, path, &info);
}
