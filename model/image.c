#include "model/image.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "model/image_codec.h"

static const struct image_codec *const codecs[] = {
#ifdef HAVE_VISION
    &image_jpeg,
    &image_png,
    &image_webp,
#endif
    NULL,
};

static uint32_t shrunk(uint32_t side, double s, uint32_t most)
{
    double to = floor(side * s);

    return to < 1 ? 1 : to > most ? most : (uint32_t)to;
}

void image_fit(struct image_fit *out, uint32_t width, uint32_t height, uint32_t max_patches,
               uint32_t side_patches)
{
    uint32_t across = width / IMAGE_PATCH, down = height / IMAGE_PATCH;
    uint32_t most = side_patches * IMAGE_PATCH;
    double s = 1.0, area;

    area = (double)(across ? across : 1) * (down ? down : 1);
    s = fmin(s, sqrt(max_patches / area));
    s = fmin(s, fmin((double)most / width, (double)most / height));
    out->width = shrunk(width, s, most);
    out->height = shrunk(height, s, most);
    out->padded_w = (uint32_t)align_up(out->width, IMAGE_TILE);
    out->padded_h = (uint32_t)align_up(out->height, IMAGE_TILE);
    out->patches_x = out->padded_w / IMAGE_PATCH;
    out->patches_y = out->padded_h / IMAGE_PATCH;
    out->tokens = out->patches_x * out->patches_y / 4;
}

static const char *looks_like(const uint8_t *data, size_t n)
{
    static const struct {
        size_t at, len;
        const char *magic, *name;
    } known[] = {
        {0, 4, "GIF8", "a GIF"},       {0, 2, "BM", "a BMP"},           {0, 4, "II*\0", "a TIFF"},
        {0, 4, "MM\0*", "a TIFF"},     {4, 8, "ftypavif", "an AVIF"},   {4, 7, "ftyphei", "a HEIC"},
        {4, 7, "ftypmif", "a HEIF"},   {0, 4, "<svg", "an SVG"},        {0, 5, "<?xml", "XML"},
        {0, 5, "<html", "HTML"},       {0, 9, "<!DOCTYPE", "HTML"},     {0, 5, "%PDF-", "a PDF"},
        {0, 4, "8BPS", "a PSD"},       {0, 2, "\xff\x0a", "a JPEG XL"}, {4, 4, "JXL ", "a JPEG XL"},
        {4, 4, "jP  ", "a JPEG 2000"},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (n >= known[i].at + known[i].len &&
            !memcmp(data + known[i].at, known[i].magic, known[i].len))
            return known[i].name;
    return NULL;
}

static int refuse_format(const uint8_t *data, size_t n, struct err *e)
{
    const char *name = looks_like(data, n);

    if (!codecs[0])
        return err_set(e, ERR_UNSUPPORTED, "this build reads no pictures (-Dvision=disabled)");
    if (name)
        return err_set(e, ERR_UNSUPPORTED, "%s, but only JPEG, PNG and WebP are read", name);
    return err_set(e, ERR_FORMAT, "%zu bytes that are neither JPEG, PNG nor WebP", n);
}

static const struct image_codec *codec_of(const uint8_t *data, size_t n)
{
    for (const struct image_codec *const *codec = codecs; *codec; codec++)
        if ((*codec)->is(data, n))
            return *codec;
    return NULL;
}

static int check_size(const struct image_head *h, struct err *e)
{
    if (!h->width || !h->height)
        return err_set(e, ERR_CORRUPT, "%s: %u x %u pixels", h->format, h->width, h->height);
    if (h->width > IMAGE_SIDE_MAX || h->height > IMAGE_SIDE_MAX ||
        (uint64_t)h->width * h->height > IMAGE_PIXELS_MAX)
        return err_set(e, ERR_LIMIT, "%s: %u x %u pixels: more than %d along a side or %d in all",
                       h->format, h->width, h->height, IMAGE_SIDE_MAX, IMAGE_PIXELS_MAX);
    return 0;
}

int image_head(struct image_head *out, const void *data, size_t n, struct err *e)
{
    const struct image_codec *codec = codec_of(data, n);
    struct image_head h;

    if (n > IMAGE_FILE_MAX)
        return err_set(e, ERR_LIMIT, "a picture of %zu bytes: more than %d", n, IMAGE_FILE_MAX);
    if (!codec)
        return refuse_format(data, n, e);
    if (codec->head(&h, data, n, e) || check_size(&h, e))
        return e->code;
    h.upright_w = h.orientation < 5 ? h.width : h.height;
    h.upright_h = h.orientation < 5 ? h.height : h.width;
    *out = h;
    return 0;
}

static uint64_t pixel_bytes(const struct image_head *h)
{
    return align_up((uint64_t)h->width * h->height * h->channels, 64);
}

static uint64_t rgb_bytes(const struct image_fit *fit)
{
    return (uint64_t)fit->padded_w * fit->padded_h * 3;
}

/* Beside the pixels, to resize them: what the filter needs, and the result while it has alpha. */
static uint64_t shrink_bytes(const struct image_head *h, const struct image_fit *fit)
{
    uint64_t alpha = h->channels == 4 ? (uint64_t)fit->width * fit->height * 4 : 0;

    return align_up(alpha, 64) +
           image_resize_bytes(h->upright_w, h->upright_h, h->channels, fit->width, fit->height);
}

uint64_t image_peak_bytes(const struct image_head *head, const struct image_fit *fit)
{
    enum { PAGE_ROUNDING = 2 * 65536 };

    return rgb_bytes(fit) + pixel_bytes(head) + shrink_bytes(head, fit) + head->scratch +
           PAGE_ROUNDING;
}

/* The stored pixels as a viewer shows them. */
static struct image_view upright(const struct image_head *h, const uint8_t *pixels)
{
    ptrdiff_t pixel = h->channels, row = pixel * (ptrdiff_t)h->width;
    struct image_view v = {.at = pixels, .channels = h->channels};
    unsigned o = h->orientation;
    bool mirror = o == 2 || o == 3 || o == 7 || o == 8; /* of the stored pixels */
    bool upside = o == 3 || o == 4 || o == 6 || o == 7;
    bool swap = o >= 5;

    if (mirror)
        v.at += (ptrdiff_t)(h->width - 1) * pixel;
    if (upside)
        v.at += (ptrdiff_t)(h->height - 1) * row;
    pixel = mirror ? -pixel : pixel;
    row = upside ? -row : row;
    v.dx = swap ? row : pixel;
    v.dy = swap ? pixel : row;
    v.width = h->upright_w;
    v.height = h->upright_h;
    return v;
}

/* Colour times alpha and back, as Pillow does around a resize. */
static void premultiply(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++, p += 4)
        for (unsigned c = 0; c < 3; c++) {
            unsigned t = p[c] * p[3] + 128u;

            p[c] = (uint8_t)(((t >> 8) + t) >> 8);
        }
}

static void unpremultiply(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++, p += 4)
        for (unsigned c = 0; c < 3 && p[3] && p[3] != 255; c++) {
            unsigned v = 255u * p[c] / p[3];

            p[c] = (uint8_t)(v > 255 ? 255 : v);
        }
}

/* Over a chessboard of 8 pixels, the first field white, the other grey. */
static void lay_over(uint8_t *rgb, size_t stride, const uint8_t *rgba, uint32_t w, uint32_t h)
{
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++, rgba += 4) {
            unsigned ground = (x / 8 + y / 8) % 2 ? 180 : 255, a = rgba[3];

            for (unsigned c = 0; c < 3; c++)
                rgb[y * stride + x * 3 + c] = (uint8_t)((rgba[c] * a + ground * (255 - a)) / 255);
        }
}

static void shrink(struct image *m, uint8_t *pixels, uint8_t *scratch)
{
    const struct image_fit *fit = &m->fit;
    struct image_view from = upright(&m->head, pixels);
    size_t stride = (size_t)fit->padded_w * 3, n = (size_t)fit->width * fit->height;
    bool resized = from.width != fit->width || from.height != fit->height;

    if (from.channels == 3) {
        image_resize(m->rgb, stride, fit->width, fit->height, &from, scratch);
        return;
    }
    if (resized)
        premultiply(pixels, (size_t)from.width * from.height);
    image_resize(scratch, (size_t)fit->width * 4, fit->width, fit->height, &from,
                 scratch + align_up(n * 4, 64));
    if (resized)
        unpremultiply(scratch, n);
    lay_over(m->rgb, stride, scratch, fit->width, fit->height);
}

/* Of this thread: a busy machine is not the picture's fault. */
static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int image_clock_check(const struct image_clock *c, const char *format, const char *unit, size_t at,
                      size_t all, struct err *e)
{
    uint64_t ms = (thread_ns() - c->begun_ns) / 1000000u;

    if (ms < c->ms)
        return 0;
    return err_set(e, ERR_LIMIT,
                   "%s: %s %zu of %zu after %llu ms of decoding; a picture may take %u", format,
                   unit, at, all, (unsigned long long)ms, c->ms);
}

static int decode(uint8_t *pixels, const struct image *m, const uint8_t *data, size_t n,
                  uint32_t ms, struct err *e)
{
    struct image_clock clock = {thread_ns(), ms ? ms : IMAGE_MS_MAX};
    int rc;

    if (mem_charge(m->mem, MEM_OTHER, m->head.scratch, e))
        return e->code;
    rc = codec_of(data, n)->pixels(pixels, &m->head, data, n, &clock, e);
    mem_uncharge(m->mem, MEM_OTHER, m->head.scratch);
    return rc;
}

static int fill(struct image *m, const void *data, size_t n, uint32_t ms, struct err *e)
{
    uint64_t at = pixel_bytes(&m->head), bytes = at + shrink_bytes(&m->head, &m->fit);
    void *work;
    int rc;

    if (mem_map(m->mem, MEM_OTHER, bytes, true, &work, e))
        return e->code;
    rc = decode(work, m, data, n, ms, e);
    if (!rc)
        shrink(m, work, (uint8_t *)work + at);
    mem_unmap(m->mem, MEM_OTHER, work, bytes);
    return rc;
}

int image_open(struct image *out, struct mem *mem, const void *data, size_t n,
               const struct image_rule *rule, struct err *e)
{
    struct image m = {.mem = mem};
    void *rgb;

    if (image_head(&m.head, data, n, e))
        return e->code;
    image_fit(&m.fit, m.head.upright_w, m.head.upright_h, rule->max_patches, rule->side_patches);
    if (mem_map(mem, MEM_OTHER, rgb_bytes(&m.fit), false, &rgb, e))
        return err_wrap(e, "a picture of %u x %u", m.head.width, m.head.height);
    m.rgb = rgb;
    if (fill(&m, data, n, rule->ms, e)) {
        image_close(&m);
        return err_wrap(e, "a picture of %u x %u", m.head.width, m.head.height);
    }
    *out = m;
    return 0;
}

void image_close(struct image *image)
{
    if (image->rgb)
        mem_unmap(image->mem, MEM_OTHER, image->rgb, rgb_bytes(&image->fit));
    image->rgb = NULL;
}

void image_patch(float x[IMAGE_COLUMNS], const struct image *image, uint32_t patch,
                 const float mean[3], const float std[3])
{
    size_t stride = (size_t)image->fit.padded_w * 3;
    uint32_t px = patch % image->fit.patches_x, py = patch / image->fit.patches_x;
    const uint8_t *at = image->rgb + py * IMAGE_PATCH * stride + (size_t)px * IMAGE_PATCH * 3;

    for (unsigned c = 0; c < 3; c++)
        for (unsigned i = 0; i < IMAGE_PATCH; i++)
            for (unsigned j = 0; j < IMAGE_PATCH; j++)
                *x++ = (at[i * stride + j * 3 + c] / 255.0f - mean[c]) / std[c];
}
