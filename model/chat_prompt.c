#include "model/chat_prompt.h"

#include "base/list.h"

/* Room for one more; NULL: there is none, and the prompt has failed. */
static void *one_more(struct prompt *p, void *array, size_t n, size_t *cap, size_t size)
{
    if (!p->failed && list_room(&array, cap, n + 1, size))
        return array;
    p->failed = true;
    return NULL;
}

static size_t text_used(const struct prompt *p)
{
    const waste_segment *last = p->n_segments ? &p->segments[p->n_segments - 1] : NULL;

    return last ? last->first_id + last->len : 0; /* first_id: the text's offset until encoded */
}

struct buf *prompt_begin(struct prompt *p)
{
    return &p->text;
}

void prompt_end(struct prompt *p, enum token_mode mode)
{
    size_t from = text_used(p);
    waste_segment *s;

    if (p->text.n == from || p->text.failed)
        return;
    s = one_more(p, p->segments, p->n_segments, &p->segments_cap, sizeof(*s));
    if (!s)
        return;
    p->segments = s;
    s[p->n_segments++] = (waste_segment){
        .len = p->text.n - from,
        .first_id = from,
        .mode = mode == TOKEN_MARKUP ? WASTE_MARKUP : WASTE_CONTENT,
    };
}

void prompt_markup(struct prompt *p, struct str text)
{
    buf_str(prompt_begin(p), text);
    prompt_end(p, TOKEN_MARKUP);
}

void prompt_content(struct prompt *p, struct str text)
{
    buf_str(prompt_begin(p), text);
    prompt_end(p, TOKEN_CONTENT);
}

void prompt_message_end(struct prompt *p, int32_t message)
{
    waste_message_end *end = one_more(p, p->ends, p->n_ends, &p->ends_cap, sizeof(*end));

    if (!end)
        return;
    p->ends = end;
    end[p->n_ends++] = (waste_message_end){.n_ids = p->n_segments, .message = message};
}

void prompt_image(struct prompt *p, const waste_image_place *image, struct str source)
{
    waste_image_place *to = one_more(p, p->images, p->n_images, &p->images_cap, sizeof(*to));

    if (!to)
        return;
    p->images = to;
    to += p->n_images++;
    *to = *image;
    to->at = p->n_segments - 1;
    to->len = source.len;
    buf_str(&p->sources, source);
}

static int encode_segment(struct prompt *p, const struct tokenizer *t, waste_segment *s,
                          struct err *e)
{
    size_t n = 0;
    int32_t *to;

    if (s->len > p->ids_cap - p->n_ids) { /* an id has at least one byte */
        size_t cap = p->ids_cap + p->ids_cap / 2;

        if (cap < p->n_ids + s->len)
            cap = p->n_ids + s->len;
        to = realloc(p->ids, cap * sizeof(*to));
        if (!to)
            return err_set(e, ERR_NOMEM, "prompt of %zu bytes", p->text.n);
        p->ids = to;
        p->ids_cap = cap;
    }
    s->text = p->text.s + s->first_id;
    s->first_id = p->n_ids;
    if (tokenizer_encode(t, s->mode == WASTE_MARKUP ? TOKEN_MARKUP : TOKEN_CONTENT, s->text, s->len,
                         p->ids + p->n_ids, p->ids_cap - p->n_ids, &n, e))
        return e->code;
    p->n_ids += n;
    return 0;
}

/* Where in its segment an image's place is. */
static int place_image(struct prompt *p, waste_image_place *image, int32_t pad, struct err *e)
{
    size_t at = p->segments[image->at].first_id;

    while (at < p->n_ids && p->ids[at] != pad)
        at++;
    if (at == p->n_ids)
        return err_set(e, ERR_FORMAT, "specials.json: id %d is swallowed by a longer text",
                       (int)pad);
    image->at = at;
    return 0;
}

int prompt_encode(struct prompt *p, const struct tokenizer *t, int32_t pad, struct err *e)
{
    size_t source = 0;

    if (p->failed || p->text.failed || p->sources.failed || p->must_call_name.failed ||
        p->answer.text.failed)
        return err_set(e, ERR_NOMEM, "prompt");
    for (size_t i = 0, end = 0, image = 0; i <= p->n_segments; i++) {
        for (; end < p->n_ends && p->ends[end].n_ids == i; end++)
            p->ends[end].n_ids = p->n_ids;
        if (i == p->n_segments)
            break;
        if (encode_segment(p, t, &p->segments[i], e))
            return e->code;
        if (image == p->n_images || p->images[image].at != i)
            continue;
        if (place_image(p, &p->images[image], pad, e))
            return e->code;
        p->images[image].source = p->sources.n ? p->sources.s + source : "";
        source += p->images[image++].len;
    }
    return 0;
}

void prompt_release(struct prompt *p)
{
    buf_release(&p->text);
    buf_release(&p->sources);
    buf_release(&p->must_call_name);
    buf_release(&p->answer.text);
    buf_release(&p->answer.grammar);
    free(p->answer.tools);
    free(p->segments);
    free(p->ends);
    free(p->images);
    free(p->ids);
}
