/* PNG by libpng: every colour type, 1 to 16 bits, interlaced or not. */
#include <string.h>

#include <png.h>

#include "base/bytes.h"
#include "model/image_codec.h"

static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

struct reader {
    png_structp png;
    png_infop info;
    struct bytes left;
    struct err *e;
    const struct image_clock *clock;
};

static void on_error(png_structp png, png_const_charp text)
{
    struct err *e = png_get_error_ptr(png);

    err_set(e, ERR_CORRUPT, "PNG: %s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    const uint8_t *from = bytes_take(png_get_io_ptr(png), n);

    if (!from)
        png_error(png, "the file ends early");
    memcpy(to, from, n);
}

/* Text and colour profiles are not looked at: their bytes are checked and let be. */
static void skip_prose(png_structp png)
{
    static const uint8_t names[] = "iCCP\0iTXt\0tEXt\0zTXt\0sPLT\0hIST\0pCAL\0sCAL\0tIME";

    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, names, sizeof(names) / 5);
}

static int reader_open(struct reader *r, const uint8_t *data, size_t n, struct err *e)
{
    *r = (struct reader){.left = bytes_of(data, n), .e = e};
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, e, on_error, on_warning);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info) {
        png_destroy_read_struct(&r->png, &r->info, NULL);
        return err_set(e, ERR_NOMEM, "PNG: libpng's tables");
    }
    png_set_read_fn(r->png, &r->left, on_read);
    png_set_user_limits(r->png, IMAGE_SIDE_MAX, IMAGE_SIDE_MAX);
    png_set_chunk_malloc_max(r->png, 1 << 20);
    png_set_chunk_cache_max(r->png, 64);
    skip_prose(r->png);
    return 0;
}

static void reader_close(struct reader *r)
{
    png_destroy_read_struct(&r->png, &r->info, NULL);
}

static bool png_is(const uint8_t *data, size_t n)
{
    return n >= sizeof(signature) && !memcmp(data, signature, sizeof(signature));
}

/* Samples of 16 bits lose their low half, as in Pillow; no gamma, no profile. */
static void ask_for_rgb8(struct reader *r)
{
    png_read_info(r->png, r->info);
    png_set_expand(r->png);
    png_set_strip_16(r->png);
    png_set_gray_to_rgb(r->png);
}

/* Walk over the chunks to the end: a file that is cut is refused before anything is decoded, and
 * eXIf may come behind the pixels. */
static int walk(unsigned *orientation, const uint8_t *data, size_t n, struct err *e)
{
    struct bytes b = bytes_of(data + sizeof(signature), n - sizeof(signature));
    bool end = false;

    *orientation = 1;
    while (!end) {
        const uint8_t *head = bytes_take(&b, 8), *body;
        uint32_t len;

        len = head ? (uint32_t)head[0] << 24 | (uint32_t)head[1] << 16 | (uint32_t)head[2] << 8 |
                         head[3]
                   : 0;
        body = bytes_take(&b, len);
        if (!head || !body || !bytes_take(&b, 4))
            return err_set(e, ERR_CORRUPT, "PNG: the file ends early");
        if (!memcmp(head + 4, "eXIf", 4))
            *orientation = image_orientation(body, len);
        end = !memcmp(head + 4, "IEND", 4);
    }
    return 0;
}

static int png_head(struct image_head *out, const uint8_t *data, size_t n, struct err *e)
{
    struct reader r;

    if (reader_open(&r, data, n, e))
        return e->code;
    if (setjmp(png_jmpbuf(r.png))) {
        reader_close(&r);
        return e->code;
    }
    ask_for_rgb8(&r);
    png_read_update_info(r.png, r.info);
    *out = (struct image_head){.format = "PNG",
                               .width = png_get_image_width(r.png, r.info),
                               .height = png_get_image_height(r.png, r.info),
                               .channels = png_get_channels(r.png, r.info),
                               .scratch = 8 * (uint64_t)png_get_image_width(r.png, r.info) * 4 +
                                          (1 << 20)};
    reader_close(&r);
    return walk(&out->orientation, data, n, e);
}

/* An interlaced picture comes in seven passes, each of which fills in what is between. */
static void read_rows(struct reader *r, uint8_t *out, const struct image_head *head)
{
    int passes;

    ask_for_rgb8(r);
    passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    for (; passes; passes--)
        for (uint32_t y = 0; y < head->height; y++) {
            if (y % 16 == 0 && image_clock_check(r->clock, "PNG", "row", y, head->height, r->e))
                png_longjmp(r->png, 1);
            png_read_row(r->png, out + (size_t)y * head->width * head->channels, NULL);
        }
    png_read_end(r->png, NULL);
}

static int png_pixels(uint8_t *out, const struct image_head *head, const uint8_t *data, size_t n,
                      const struct image_clock *clock, struct err *e)
{
    struct reader r;

    if (reader_open(&r, data, n, e))
        return e->code;
    if (setjmp(png_jmpbuf(r.png))) {
        reader_close(&r);
        return e->code;
    }
    r.clock = clock;
    read_rows(&r, out, head);
    reader_close(&r);
    return 0;
}

const struct image_codec image_png = {
    .name = "PNG",
    .is = png_is,
    .head = png_head,
    .pixels = png_pixels,
};
