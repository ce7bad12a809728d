/* PNG by libpng: every colour type, 1 to 16 bits, interlaced or not. */
#include <stdlib.h>
#include <string.h>

#include <libdeflate.h>
#include <png.h>

#include "base/bytes.h"
#include "model/image_codec.h"

static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

struct reader {
    png_structp png;
    png_infop info;
    struct bytes left;
    struct err *e;
    bool no_memory; /* for something that was asked for */
    const struct image_clock *clock;
};

static void on_error(png_structp png, png_const_charp text)
{
    struct reader *r = png_get_error_ptr(png);

    err_set(r->e, r->no_memory ? ERR_NOMEM : ERR_CORRUPT, "PNG: %s", text);
    png_longjmp(png, 1);
}

/* What the library merely warns of and goes on without. Transparency is the one thing of that kind
 * that pixels show. */
static void on_warning(png_structp png, png_const_charp text)
{
    struct reader *r = png_get_error_ptr(png);

    if (!strncmp(text, "tRNS", 4) && !(png_get_color_type(png, r->info) & PNG_COLOR_MASK_ALPHA))
        on_error(png, text);
}

static png_voidp on_alloc(png_structp png, png_alloc_size_t n)
{
    struct reader *r = png_get_mem_ptr(png);
    void *p = malloc(n);

    r->no_memory |= !p;
    return p;
}

static void on_free(png_structp png, png_voidp p)
{
    (void)png;
    free(p);
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    const uint8_t *from = bytes_take(png_get_io_ptr(png), n);

    if (!from)
        png_error(png, "the file ends early");
    memcpy(to, from, n);
}

/* Text, colour profiles and EXIF are not looked at: their bytes are checked and let be. */
static void skip_prose(png_structp png)
{
    static const uint8_t names[] = "eXIf\0iCCP\0iTXt\0tEXt\0zTXt\0sPLT\0hIST\0pCAL\0sCAL\0tIME";

    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, names, sizeof(names) / 5);
}

/* Nothing in here asks the library for more than its tables: for the rest, errors need setjmp. */
static int reader_open(struct reader *r, const uint8_t *data, size_t n, struct err *e)
{
    *r = (struct reader){.left = bytes_of(data, n), .e = e};
    r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, r, on_error, on_warning, r, on_alloc,
                                      on_free);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info) {
        png_destroy_read_struct(&r->png, &r->info, NULL);
        return err_set(e, ERR_NOMEM, "PNG: libpng's tables");
    }
    png_set_read_fn(r->png, &r->left, on_read);
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
    png_set_user_limits(r->png, IMAGE_SIDE_MAX, IMAGE_SIDE_MAX);
    png_set_chunk_malloc_max(r->png, 1 << 20);
    png_set_chunk_cache_max(r->png, 64);
    skip_prose(r->png);
    png_read_info(r->png, r->info);
    png_set_expand(r->png);
    png_set_strip_16(r->png);
    png_set_gray_to_rgb(r->png);
}

/* Of a chunk that the pixels hang on. */
static int check_sum(const uint8_t *head, const uint8_t *body, uint32_t len, const uint8_t *sum,
                     struct err *e)
{
    bool needed = !(head[4] & 0x20) || !memcmp(head + 4, "tRNS", 4);
    uint32_t want = load_be32(sum), got;

    if (!needed)
        return 0;
    got = libdeflate_crc32(libdeflate_crc32(0, head + 4, 4), body, len);
    return got == want ? 0
                       : err_set(e, ERR_CORRUPT, "PNG: %.4s: checksum %08x, but the file says %08x",
                                 (const char *)head + 4, got, want);
}

/* Walk over the chunks to the end: a file that is cut or damaged is refused before anything is
 * decoded, and eXIf may come behind the pixels. */
static int walk(unsigned *orientation, const uint8_t *data, size_t n, struct err *e)
{
    struct bytes b = bytes_of(data + sizeof(signature), n - sizeof(signature));
    bool end = false;

    *orientation = 1;
    while (!end) {
        const uint8_t *head = bytes_take(&b, 8), *body, *sum;
        uint32_t len = head ? load_be32(head) : 0;

        body = bytes_take(&b, len);
        sum = bytes_take(&b, 4);
        if (!head || !body || !sum)
            return err_set(e, ERR_CORRUPT, "PNG: the file ends early");
        if (check_sum(head, body, len, sum, e))
            return e->code;
        if (!memcmp(head + 4, "eXIf", 4))
            *orientation = image_orientation(body, len);
        end = !memcmp(head + 4, "IEND", 4);
    }
    return 0;
}

/* The size, where every PNG has it: before the library, which calls one that is too large invalid.
 */
static bool size_is_possible(struct image_head *out, const uint8_t *data, size_t n)
{
    if (n < 24 || memcmp(data + 12, "IHDR", 4) != 0)
        return true; /* the library has the words */
    out->width = load_be32(data + 16);
    out->height = load_be32(data + 20);
    return out->width && out->height && out->width <= IMAGE_SIDE_MAX &&
           out->height <= IMAGE_SIDE_MAX;
}

static int png_head(struct image_head *out, const uint8_t *data, size_t n, struct err *e)
{
    struct reader r;

    *out = (struct image_head){.format = "PNG", .orientation = 1};
    if (walk(&out->orientation, data, n, e))
        return e->code;
    if (!size_is_possible(out, data, n)) /* for image.c to say */
        return 0;
    if (reader_open(&r, data, n, e))
        return e->code;
    if (setjmp(png_jmpbuf(r.png))) {
        reader_close(&r);
        return e->code;
    }
    ask_for_rgb8(&r);
    png_read_update_info(r.png, r.info);
    out->width = png_get_image_width(r.png, r.info);
    out->height = png_get_image_height(r.png, r.info);
    out->channels = png_get_channels(r.png, r.info);
    out->scratch = 8 * (uint64_t)out->width * 4 + (1 << 20);
    reader_close(&r);
    return 0;
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
    png_read_end(r->png, r->info); /* into it: what comes late is looked at, too */
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
