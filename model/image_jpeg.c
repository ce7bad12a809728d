/* JPEG by libjpeg-turbo: baseline, progressive, arithmetic; grey, YCbCr, RGB, CMYK, YCCK. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "base/bytes.h"
#include "model/image_codec.h"

enum { SOI = 0xd8, SOS = 0xda }; /* markers that jpeglib.h does not name */

struct reader {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr handler;
    struct jpeg_progress_mgr progress;
    jmp_buf out;
    struct err *e;
    uint64_t pixels;
    const struct image_clock *clock;
};

static _Noreturn void give_up(struct reader *r, int code)
{
    char text[JMSG_LENGTH_MAX];

    r->cinfo.err->format_message((j_common_ptr)&r->cinfo, text);
    err_set(r->e, code, "JPEG: %s", text);
    longjmp(r->out, 1);
}

static void on_error(j_common_ptr cinfo)
{
    struct reader *r = cinfo->client_data;

    give_up(r, cinfo->err->msg_code == JERR_OUT_OF_MEMORY ||
                       cinfo->err->msg_code == JERR_NO_BACKING_STORE
                   ? ERR_NOMEM
                   : ERR_CORRUPT);
}

/* Warnings (level -1) that leave every pixel as it was written. */
static bool harmless(int code)
{
    return code == JWRN_ADOBE_XFORM || code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR ||
           code == JWRN_TOO_MUCH_DATA;
}

static void on_message(j_common_ptr cinfo, int level)
{
    if (level < 0 && !harmless(cinfo->err->msg_code))
        give_up(cinfo->client_data, ERR_CORRUPT);
}

/* A few bytes make a scan over all pixels, which nobody needs a hundred of. */
static void on_progress(j_common_ptr cinfo)
{
    struct reader *r = cinfo->client_data;
    int scans = r->cinfo.input_scan_number;

    if (scans > IMAGE_SCANS_MAX || (uint64_t)scans * r->pixels > IMAGE_WORK_MAX)
        err_set(r->e, ERR_LIMIT, "JPEG: scan %d over %llu pixels: more work than a picture takes",
                scans, (unsigned long long)r->pixels);
    else if (!image_clock_check(r->clock, "JPEG", "row",
                                r->cinfo.output_scanline ? r->cinfo.output_scanline
                                                         : r->cinfo.input_iMCU_row *
                                                               r->cinfo.max_v_samp_factor * DCTSIZE,
                                r->cinfo.image_height, r->e))
        return;
    longjmp(r->out, 1);
}

static void reader_open(struct reader *r, const uint8_t *data, size_t n)
{
    r->cinfo.err = jpeg_std_error(&r->handler);
    r->handler.error_exit = on_error;
    r->handler.emit_message = on_message;
    r->cinfo.client_data = r;
    jpeg_create_decompress(&r->cinfo);
    jpeg_mem_src(&r->cinfo, data, n);
    jpeg_read_header(&r->cinfo, TRUE);
    r->pixels = (uint64_t)r->cinfo.image_width * r->cinfo.image_height;
    r->progress.progress_monitor = on_progress;
    r->cinfo.progress = &r->progress;
}

static bool jpeg_is(const uint8_t *data, size_t n)
{
    return n >= 3 && data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff;
}

/* The marker that comes next, without what fills the space before it; JPEG_EOI: none does. */
static unsigned next_marker(struct bytes *b)
{
    const uint8_t *p;
    bool begun = false;

    while ((p = bytes_take(b, 1))) {
        if (begun && *p && *p != 0xff)
            return *p;
        begun = *p == 0xff;
    }
    return JPEG_EOI;
}

static bool has_body(unsigned marker)
{
    return marker > 1 && (marker < JPEG_RST0 || marker > SOI);
}

/* Of the first EXIF segment of the header. Not by jpeg_save_markers: it keeps every segment of the
 * kind, and walks along all of them for each that comes; a file has room for millions. */
static unsigned orientation(const uint8_t *data, size_t n)
{
    struct bytes b = bytes_of(data, n);
    unsigned marker;

    while ((marker = next_marker(&b)) != JPEG_EOI && marker != SOS) {
        const uint8_t *size = has_body(marker) ? bytes_take(&b, 2) : NULL, *body;
        size_t len = size ? (size_t)size[0] << 8 | size[1] : 2;

        body = bytes_take(&b, len < 2 ? 0 : len - 2);
        if (!body)
            break;
        if (marker == JPEG_APP0 + 1 && len >= 8 && !memcmp(body, "Exif\0", 5))
            return image_orientation(body, len - 2);
    }
    return 1;
}

/* Coefficients of all scans are kept until the last one came. */
static uint64_t coefficient_bytes(struct jpeg_decompress_struct *cinfo)
{
    uint64_t blocks = 0;

    if (!jpeg_has_multiple_scans(cinfo))
        return 0;
    for (int c = 0; c < cinfo->num_components; c++)
        blocks += ((uint64_t)cinfo->comp_info[c].width_in_blocks + 4) *
                  (cinfo->comp_info[c].height_in_blocks + 4);
    return blocks * sizeof(JBLOCK);
}

enum { LIBRARY_BYTES = 4 << 20 }; /* rows and tables beside the coefficients, generously */

static int jpeg_head(struct image_head *out, const uint8_t *data, size_t n, struct err *e)
{
    struct reader r = {.e = e};

    if (setjmp(r.out)) {
        jpeg_destroy_decompress(&r.cinfo);
        return e->code;
    }
    reader_open(&r, data, n);
    *out = (struct image_head){.format = "JPEG",
                               .width = r.cinfo.image_width,
                               .height = r.cinfo.image_height,
                               .channels = 3,
                               .orientation = orientation(data, n),
                               .scratch = coefficient_bytes(&r.cinfo) + LIBRARY_BYTES};
    jpeg_destroy_decompress(&r.cinfo);
    return 0;
}

static unsigned mul255(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;

    return ((t >> 8) + t) >> 8;
}

/* As Pillow reads it: ink is stored inverted, as by Adobe, and there is no profile. */
static void cmyk_to_rgb(uint8_t *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++, in += 4, out += 3) {
        unsigned paper = in[3];

        for (unsigned c = 0; c < 3; c++)
            out[c] = (uint8_t)(paper - mul255(255u - in[c], paper));
    }
}

/* A row of inks is the library's to free, with everything else of this file. */
static void read_rows(struct reader *r, uint8_t *out)
{
    struct jpeg_decompress_struct *c = &r->cinfo;
    size_t width = c->image_width;
    uint8_t *inks = NULL;

    c->out_color_space = c->num_components == 4 ? JCS_CMYK : JCS_RGB;
    if (c->num_components == 4)
        inks = c->mem->alloc_large((j_common_ptr)c, JPOOL_IMAGE, width * 4);
    jpeg_start_decompress(c);
    while (c->output_scanline < c->output_height) {
        uint8_t *row = out + (size_t)c->output_scanline * width * 3;
        JSAMPROW to = inks ? inks : row;

        jpeg_read_scanlines(c, &to, 1);
        if (inks)
            cmyk_to_rgb(row, inks, width);
    }
    jpeg_finish_decompress(c);
}

static int jpeg_pixels(uint8_t *out, const struct image_head *head, const uint8_t *data, size_t n,
                       const struct image_clock *clock, struct err *e)
{
    struct reader r = {.e = e, .clock = clock};

    if (setjmp(r.out)) {
        jpeg_destroy_decompress(&r.cinfo);
        return e->code;
    }
    reader_open(&r, data, n);
    r.cinfo.mem->max_memory_to_use = (long)head->scratch;
    read_rows(&r, out);
    jpeg_destroy_decompress(&r.cinfo);
    return 0;
}

const struct image_codec image_jpeg = {
    .name = "JPEG",
    .is = jpeg_is,
    .head = jpeg_head,
    .pixels = jpeg_pixels,
};
