#include "model/reply.h"

#include "base/hash.h"
#include "base/list.h"
#include "model/json_write.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- events ---- */

static waste_event *add_event(struct reply *r, uint32_t kind)
{
    if (!list_room(&r->events, &r->events_cap, r->n_events + 1, sizeof(*r->events)) ||
        !list_room(&r->at, &r->at_cap, r->n_events + 1, sizeof(*r->at))) {
        r->failed = true;
        return NULL;
    }
    r->at[r->n_events] = r->text.n;
    r->events[r->n_events] = (waste_event){.kind = kind, .number = -1};
    if (kind >= WASTE_CALL_BEGIN && kind <= WASTE_CALL_CUT)
        r->events[r->n_events].call = r->n_calls - 1;
    return &r->events[r->n_events++];
}

/* Text that follows text of its kind joins it. */
static void add_text(struct reply *r, uint32_t kind, struct str text)
{
    waste_event *last = r->n_events ? &r->events[r->n_events - 1] : NULL;

    if (!text.len)
        return;
    if (!last || last->kind != kind)
        last = add_event(r, kind);
    if (!last)
        return;
    buf_str(&r->text, text);
    last->len += text.len;
}

void reply_text(struct reply *r, uint32_t kind, struct str text)
{
    buf_str(kind == WASTE_REASONING ? &r->reasoning : &r->response, text);
    add_text(r, kind, text);
}

static struct reply_call *last_call(struct reply *r)
{
    return &r->calls[r->n_calls - 1];
}

void reply_call_begin(struct reply *r, struct str name, int32_t number)
{
    struct reply_call *call;
    waste_event *event;

    if (!list_room(&r->calls, &r->calls_cap, (size_t)r->n_calls + 1, sizeof(*r->calls))) {
        r->failed = true;
        return;
    }
    call = &r->calls[r->n_calls++];
    *call = (struct reply_call){.number = number};
    buf_str(&call->name, name);
    r->failed |= call->name.failed;
    snprintf(call->id, sizeof(call->id), "call_%016" PRIx64 "_%" PRIu32, r->hash, r->n_calls - 1);
    r->call_open = true;
    event = add_event(r, WASTE_CALL_BEGIN);
    if (!event)
        return;
    event->number = number;
    event->len = name.len;
    buf_str(&r->text, name);
}

void reply_call_arguments(struct reply *r, struct str part)
{
    if (!r->call_open)
        return;
    buf_str(&last_call(r)->arguments, part);
    r->failed |= last_call(r)->arguments.failed;
    add_text(r, WASTE_CALL_ARGUMENTS, part);
}

void reply_call_end(struct reply *r)
{
    if (!r->call_open)
        return;
    last_call(r)->state = CALL_COMPLETE;
    r->call_open = false;
    add_event(r, WASTE_CALL_END);
}

void reply_call_cut(struct reply *r)
{
    if (!r->call_open)
        return;
    last_call(r)->state = CALL_CUT;
    r->call_open = false;
    add_event(r, WASTE_CALL_CUT);
}

/* ---- reading ---- */

static void put_text(struct reply *r, size_t n)
{
    struct str text = {r->chars.s, n};

    if (!n || r->chars.failed)
        return;
    if (r->format == WASTE_CHAT_XTML)
        xtml_reader_text(r, text);
    else
        k2_reader_text(r, text);
}

static void flush(struct reply *r)
{
    char *to;

    r->chars.n = 0;
    to = buf_room(&r->chars, UTF8_FLUSH_MAX);
    if (to)
        put_text(r, utf8_flush(&r->utf8, to));
}

static void finish(struct reply *r, bool complete)
{
    waste_event *end;

    if (r->held && !complete) {
        r->utf8 = (struct utf8){0};
        r->xtml.in_header = HEADER_NONE;
    }
    flush(r);
    if (r->format == WASTE_CHAT_XTML)
        xtml_reader_end(r);
    else
        k2_reader_end(r);
    reply_call_cut(r);
    end = add_event(r, WASTE_MESSAGE_END);
    if (end)
        end->complete = complete;
    r->done = true;
}

static void put_token(struct reply *r, int32_t id)
{
    const char *bytes;
    size_t len;
    char *to;

    if (!tokenizer_token_bytes(r->tokenizer, id, &bytes, &len))
        return;
    r->chars.n = 0;
    to = buf_room(&r->chars, UTF8_FEED_MAX(len));
    if (to)
        put_text(r, utf8_feed(&r->utf8, bytes, len, to));
}

static bool is_marker(const struct reply *r, int32_t id)
{
    for (unsigned m = 0; m < N_MARKERS; m++)
        if (r->ids[m] == id)
            return true;
    return false;
}

static void begin_events(struct reply *r)
{
    r->n_events = 0;
    r->text.n = 0;
}

static int deliver(struct reply *r, const waste_event **events, size_t *n, struct err *e)
{
    const struct xtml_reader *x = &r->xtml;
    bool failed = r->failed || r->chars.failed || r->text.failed || r->reasoning.failed ||
                  r->response.failed || r->k2.header.failed || x->header.failed ||
                  x->value.failed || x->scratch.failed || x->names.failed || x->key.failed ||
                  x->type.failed || x->keys.failed;

    r->failed = failed;
    if (failed)
        return err_set(e, ERR_NOMEM, "reply");
    for (size_t i = 0; i < r->n_events; i++) {
        waste_event *event = &r->events[i];

        event->text = event->len ? r->text.s + r->at[i] : "";
        if (event->kind == WASTE_CALL_BEGIN)
            event->id = r->calls[event->call].id;
    }
    *events = r->events;
    *n = r->n_events;
    return 0;
}

int reply_feed(struct reply *r, int32_t id, const waste_event **events, size_t *n, struct err *e)
{
    begin_events(r);
    if (r->done || r->failed)
        return deliver(r, events, n, e);
    if (id == r->end_id) {
        finish(r, true);
    } else if (!tokenizer_is_special(r->tokenizer, id)) {
        put_token(r, id);
    } else if (is_marker(r, id)) {
        flush(r);
        if (r->format == WASTE_CHAT_XTML)
            xtml_reader_mark(r, id);
        else
            k2_reader_mark(r, id);
    }
    return deliver(r, events, n, e);
}

int reply_end(struct reply *r, const waste_event **events, size_t *n, struct err *e)
{
    begin_events(r);
    if (!r->done && !r->failed)
        finish(r, false);
    return deliver(r, events, n, e);
}

/* ---- the message ---- */

static void write_calls(struct buf *b, const struct reply *r)
{
    bool any = false;

    for (uint32_t i = 0; i < r->n_calls; i++) {
        const struct reply_call *call = &r->calls[i];

        if (call->state != CALL_COMPLETE)
            continue;
        buf_str(b, any ? STR(", ") : STR(", \"tool_calls\": ["));
        any = true;
        buf_str(b, STR("{\"id\": "));
        json_write_string(b, str_of(call->id));
        buf_str(b, STR(", \"type\": \"function\", \"function\": {\"name\": "));
        json_write_string(b, buf_all(&call->name));
        buf_str(b, STR(", \"arguments\": "));
        json_write_string(b, buf_all(&call->arguments));
        buf_str(b, STR("}}"));
    }
    if (any)
        buf_str(b, STR("]"));
}

int reply_message(struct reply *r, struct str *json, struct err *e)
{
    struct buf *b = &r->message;

    if (r->failed)
        return err_set(e, ERR_NOMEM, "reply");
    b->n = 0;
    buf_str(b, STR("{\"role\": \"assistant\", \"content\": "));
    if (r->response.n)
        json_write_string(b, buf_all(&r->response));
    else
        buf_str(b, STR("null"));
    if (r->reasoning.n) {
        buf_str(b, STR(", \"reasoning_content\": "));
        json_write_string(b, buf_all(&r->reasoning));
    }
    write_calls(b, r);
    buf_str(b, STR("}"));
    if (b->failed)
        return err_set(e, ERR_NOMEM, "reply");
    *json = buf_all(b);
    return 0;
}

/* ---- open and close ---- */

static uint64_t hash_of(const int32_t *ids, size_t n)
{
    uint64_t h = HASH_BEGIN;

    for (size_t i = 0; i < n; i++)
        for (unsigned shift = 0; shift < 32; shift += 8)
            h = hash_step(h, (uint32_t)ids[i] >> shift & 0xff);
    return h;
}

int reply_open(struct reply **out, const struct prompt *p, struct err *e)
{
    struct reply *r;

    if (!p->begins)
        return err_set(e, ERR_ARG,
                       "the prompt does not hand over the turn (add_generation_prompt: false)");
    r = calloc(1, sizeof(*r));
    if (!r)
        return err_set(e, ERR_NOMEM, "reply");
    r->tokenizer = p->chat->tokenizer;
    r->format = p->chat->format;
    r->end_id = p->chat->end_id;
    r->held = p->answer.grammar.n != 0;
    memcpy(r->ids, p->chat->ids, sizeof(r->ids));
    r->hash = hash_of(p->ids, p->n_ids);
    if (r->format == WASTE_CHAT_XTML && xtml_reader_init(r, p->begins)) {
        reply_close(r);
        return err_set(e, ERR_NOMEM, "reply");
    }
    *out = r;
    return 0;
}

void reply_close(struct reply *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_calls; i++) {
        buf_release(&r->calls[i].name);
        buf_release(&r->calls[i].arguments);
    }
    xtml_reader_release(&r->xtml);
    buf_release(&r->k2.header);
    buf_release(&r->chars);
    buf_release(&r->reasoning);
    buf_release(&r->response);
    buf_release(&r->text);
    buf_release(&r->message);
    free(r->calls);
    free(r->events);
    free(r->at);
    free(r);
}
