/* WebP by libwebp: lossy, lossless, alpha; of an animation the first frame, on its canvas. */
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "base/bytes.h"
#include "model/image_codec.h"

static bool webp_is(const uint8_t *data, size_t n)
{
    return n >= 12 && !memcmp(data, "RIFF", 4) && !memcmp(data + 8, "WEBP", 4);
}

static unsigned orientation(const WebPDemuxer *demux)
{
    unsigned found = 1;
    WebPChunkIterator chunk;

    if (WebPDemuxGetChunk(demux, "EXIF", 1, &chunk)) {
        found = image_orientation(chunk.chunk.bytes, chunk.chunk.size);
        WebPDemuxReleaseChunkIterator(&chunk);
    }
    return found;
}

enum { CHUNKS_MAX = 16384 };

/* The library remembers every chunk, of which a file has room for millions. */
static bool too_many_chunks(const uint8_t *data, size_t n)
{
    struct bytes b = bytes_of(data + 12, n - 12);
    unsigned chunks = 0;

    while (bytes_take(&b, 4)) {
        uint64_t size = bytes_u32(&b);

        if (++chunks > CHUNKS_MAX)
            return true;
        if (!bytes_take(&b, size + (size & 1)))
            break;
    }
    return false;
}

static WebPDemuxer *open_demux(const uint8_t *data, size_t n, struct err *e)
{
    WebPData all = {data, n};
    WebPDemuxer *demux;

    if (too_many_chunks(data, n)) {
        err_set(e, ERR_LIMIT, "WebP: more than %d chunks", CHUNKS_MAX);
        return NULL;
    }
    demux = WebPDemux(&all);
    if (!demux)
        err_set(e, ERR_CORRUPT, "WebP: the file ends early or its chunks do not add up");
    return demux;
}

static int webp_head(struct image_head *out, const uint8_t *data, size_t n, struct err *e)
{
    WebPDemuxer *demux = open_demux(data, n, e);
    uint64_t pixels;

    if (!demux)
        return e->code;
    *out = (struct image_head){
        .format = "WebP",
        .width = WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH),
        .height = WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT),
        .channels = WebPDemuxGetI(demux, WEBP_FF_FORMAT_FLAGS) & ALPHA_FLAG ? 4 : 3,
        .orientation = orientation(demux),
    };
    WebPDemuxDelete(demux);
    pixels = (uint64_t)out->width * out->height;
    out->scratch = 6 * pixels + (4 << 20); /* lossless and alpha are decoded as a whole */
    return 0;
}

enum { STEP = 64 << 10 }; /* bytes between two looks at the clock */

/* The same decoder as in one call, given more and more of the bytes. */
static int decode_bytes(WebPIDecoder *decoder, const WebPData *d, const struct image_clock *clock,
                        struct err *e)
{
    VP8StatusCode st = VP8_STATUS_SUSPENDED;

    for (size_t n = 0; n < d->size && st == VP8_STATUS_SUSPENDED;) {
        if (image_clock_check(clock, "WebP", "byte", n, d->size, e))
            return e->code;
        n = d->size - n > STEP ? n + STEP : d->size;
        st = WebPIUpdate(decoder, d->bytes, n);
    }
    if (st == VP8_STATUS_OUT_OF_MEMORY)
        return err_set(e, ERR_NOMEM, "WebP: libwebp's buffers");
    return st == VP8_STATUS_OK
               ? 0
               : err_set(e, ERR_CORRUPT, "WebP: the pixels end early or are damaged");
}

static int decode_frame(uint8_t *to, const struct image_head *head, const WebPIterator *frame,
                        const struct image_clock *clock, struct err *e)
{
    size_t stride = (size_t)head->width * head->channels;
    uint8_t *at = to + frame->y_offset * stride + (size_t)frame->x_offset * head->channels;
    size_t room = stride * ((size_t)head->height - frame->y_offset) -
                  (size_t)frame->x_offset * head->channels;
    WebPIDecoder *decoder =
        WebPINewRGB(head->channels == 4 ? MODE_RGBA : MODE_RGB, at, room, (int)stride);
    int rc;

    if (!decoder)
        return err_set(e, ERR_NOMEM, "WebP: libwebp's buffers");
    rc = decode_bytes(decoder, &frame->fragment, clock, e);
    WebPIDelete(decoder);
    return rc;
}

static int webp_pixels(uint8_t *out, const struct image_head *head, const uint8_t *data, size_t n,
                       const struct image_clock *clock, struct err *e)
{
    WebPDemuxer *demux = open_demux(data, n, e);
    WebPIterator frame = {0};
    int rc;

    if (!demux)
        return e->code;
    if (!WebPDemuxGetFrame(demux, 1, &frame))
        rc = err_set(e, ERR_CORRUPT, "WebP: no frame");
    else if (frame.x_offset < 0 || frame.y_offset < 0 || frame.width < 1 || frame.height < 1 ||
             (int64_t)frame.x_offset + frame.width > head->width ||
             (int64_t)frame.y_offset + frame.height > head->height)
        rc = err_set(e, ERR_CORRUPT, "WebP: a frame of %d x %d at %d, %d leaves the canvas",
                     frame.width, frame.height, frame.x_offset, frame.y_offset);
    else
        rc = decode_frame(out, head, &frame, clock, e);
    WebPDemuxReleaseIterator(&frame);
    WebPDemuxDelete(demux);
    return rc;
}

const struct image_codec image_webp = {
    .name = "WebP",
    .is = webp_is,
    .head = webp_head,
    .pixels = webp_pixels,
};
