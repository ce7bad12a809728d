#include "cli/turn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/load.h"
#include "cli/pictures.h"
#include "cli/places.h"

enum {
    NEAR = 8, /* positions: a state so close behind a kept one is not worth a pass of its own */
};

static const char *const names[N_ENDS] = {
    [END_NONE] = "none",
    [END_LENGTH] = "length",
    [END_ID] = "stop_id",
    [END_STRING] = "stop_string",
    [END_GRAMMAR] = "grammar",
    [END_CONTEXT] = "context",
    [END_INTERRUPTED] = "interrupted",
    [END_OUTPUT] = "output_closed",
    [END_ERROR] = "error",
};

static const char *const texts[N_ENDS] = {
    [END_NONE] = "nothing",
    [END_LENGTH] = "the limit of -n",
    [END_ID] = "the model",
    [END_STRING] = "the stop text",
    [END_GRAMMAR] = "the grammar",
    [END_CONTEXT] = "a full context",
    [END_INTERRUPTED] = "an interrupt",
    [END_OUTPUT] = "a reader who left",
    [END_ERROR] = "an error",
};

const char *end_name(enum end end)
{
    return names[end];
}

const char *end_text(enum end end)
{
    return texts[end];
}

/* ---- opening ---- */

int turn_open_ids(struct turn *t, struct speaker *by, const int32_t *ids, size_t n,
                  const char *const *stop, unsigned n_stop, struct err *e)
{
    *t = (struct turn){.by = by, .ids = ids, .n_ids = n};
    return answer_open(&t->answer, stop, n_stop, true, e);
}

/* ctx NULL: this thread's last failure. */
static int library_said(waste_status st, const waste_ctx *ctx, struct err *e)
{
    const char *detail = waste_error_detail(ctx);
    int code = st == WASTE_E_OOM           ? ERR_NOMEM
               : st == WASTE_E_UNSUPPORTED ? ERR_UNSUPPORTED
               : st == WASTE_E_LIMIT       ? ERR_LIMIT
                                           : ERR_ARG;

    return err_set(e, code, "%s", detail ? detail : waste_strerror(st));
}

static int take_ends(struct turn *t, const waste_prompt_info *p, struct err *e)
{
    t->ends = calloc(p->n_ends + 1, sizeof(*t->ends));
    if (!t->ends)
        return err_set(e, ERR_NOMEM, "the ends of %zu messages", p->n_ends);
    for (size_t i = 0; i < p->n_ends; i++)
        t->ends[i] = p->ends[i].n_ids;
    t->n_ends = p->n_ends;
    return 0;
}

/* What the request, and --json-schema or --grammar, say of the answer. */
static waste_status take_grammar(struct turn *t)
{
    const char *given = t->by->grammar.bytes;
    waste_constraint k;
    size_t len;

    waste_constraint_init(&k);
    if (t->by->c->opts.json_schema)
        k.schema = given;
    else
        k.grammar = given;
    return waste_prompt_grammar(t->prompt, &k, &t->grammar, &len);
}

int turn_open_request(struct turn *t, struct speaker *by, const char *json, size_t len,
                      const char *const *stop, unsigned n_stop, struct err *e)
{
    waste_prompt_info info = {.size = sizeof(info)};
    waste_status st;

    if (turn_open_ids(t, by, NULL, 0, stop, n_stop, e))
        return e->code;
    st = waste_chat_render(by->chat, json, len, &t->prompt);
    if (st == WASTE_OK)
        st = waste_prompt_get_info(t->prompt, &info);
    if (st == WASTE_OK && info.n_images && !by->c->opts.vision)
        return err_set(e, ERR_UNSUPPORTED,
                       "messages[%u].content[%u] is a picture, and the vision tower was not asked "
                       "for: --vision",
                       info.images[0].message, info.images[0].part);
    if (st == WASTE_OK)
        st = take_grammar(t);
    if (st == WASTE_OK)
        st = waste_reply_open(t->prompt, &t->reply);
    if (st != WASTE_OK)
        return library_said(st, NULL, e);
    t->ids = info.ids;
    t->n_ids = info.n_ids;
    return take_ends(t, &info, e);
}

void turn_keep_long(struct turn *t, int32_t message)
{
    waste_prompt_info info = {.size = sizeof(info)};

    if (waste_prompt_get_info(t->prompt, &info) != WASTE_OK)
        return;
    for (size_t i = 0; i < info.n_ends; i++) {
        if (info.ends[i].message == message)
            t->n_system = info.ends[i].n_ids;
    }
}

/* Where an end is when pictures have all their places. rows: of each. */
static size_t moved(size_t end, const waste_prompt_info *p, const uint32_t *rows)
{
    size_t to = end;

    for (size_t i = 0; i < p->n_images; i++)
        to += p->images[i].at < end ? rows[i] - 1 : 0;
    return to;
}

int turn_see(struct turn *t, struct err *e)
{
    waste_prompt_info info = {.size = sizeof(info)};
    uint32_t rows[WASTE_IMAGES_MAX];

    if (!t->prompt || t->seen || !t->by->c->opts.vision)
        return 0;
    if (waste_prompt_get_info(t->prompt, &info) != WASTE_OK || !info.n_images)
        return 0;
    if (pictures_see(t->by->ctx, &info, rows, &t->seen, &t->n_ids, e))
        return e->code;
    t->ids = t->seen;
    for (size_t i = 0; i < t->n_ends; i++)
        t->ends[i] = moved(t->ends[i], &info, rows);
    t->n_system = moved(t->n_system, &info, rows);
    return 0;
}

void turn_show_reasoning(struct turn *t)
{
    struct cli *c = t->by->c;
    bool hidden = c->opts.hide_thinking || c->opts.quiet || c->opts.json;

    if (t->reasoning.n && !hidden) {
        term_clear_line(&c->term);
        if (!t->thinking)
            fputs(c->term.color ? term_style(&c->term, STYLE_DIM) : "[thinking]\n", stderr);
        t->thinking = true;
        say_text(t->reasoning.s, t->reasoning.n);
        fflush(stderr);
    }
    if (t->answer.len)
        turn_end_reasoning(t);
}

void turn_end_reasoning(struct turn *t)
{
    struct cli *c = t->by->c;

    if (!t->thinking)
        return;
    t->thinking = false;
    fprintf(stderr, "%s\n%s", term_style(&c->term, STYLE_PLAIN),
            c->term.color ? "\n" : "[answer]\n");
    fflush(stderr);
}

void turn_close(struct turn *t)
{
    waste_reply_close(t->reply);
    waste_prompt_close(t->prompt);
    answer_close(&t->answer);
    free(t->seen);
    free(t->ends);
    buf_release(&t->reasoning);
    buf_release(&t->response);
    *t = (struct turn){.by = t->by};
}

/* ---- an answer, token by token ---- */

static void failed(struct turn *t, waste_status st)
{
    const char *detail = waste_error_detail(t->by->ctx);

    t->status = st;
    t->end = st == WASTE_E_CANCELLED && term_interrupted() ? END_INTERRUPTED : END_ERROR;
    snprintf(t->detail, sizeof(t->detail), "%s", detail ? detail : waste_strerror(st));
}

/* One call of the engine; *ms is what it took. An interrupt that came when nothing ran cancels the
 * next call; if it was meant for something else, that call is made again. */
static waste_status step(struct turn *t, waste_item *item, double *ms)
{
    uint64_t begun = clock_ns();
    waste_status st;

    t->before.size = sizeof(t->before);
    waste_get_counters(t->by->ctx, &t->before);
    do {
        item->n_done = 0;
        item->token = -1;
        item->stop = 0;
        st = waste_step(t->by->ctx, item, 1);
        if (st == WASTE_OK)
            st = item->status;
    } while (st == WASTE_E_CANCELLED && !term_interrupted());
    *ms = (double)(clock_ns() - begun) * 1e-6;
    return st;
}

/* The bytes of a token; its number where the container has no tokenizer. */
static const char *token_bytes(const struct turn *t, int32_t token, char number[16], size_t *len)
{
    const char *bytes;

    if (!t->by->tokenizer) {
        *len = (size_t)snprintf(number, 16, "%s%d", t->n_generated > 1 ? " " : "", token);
        return number;
    }
    if (waste_token_bytes(t->by->tokenizer, token, &bytes, len) == WASTE_OK)
        return bytes;
    *len = 0;
    return "";
}

static int piece_add(struct buf *b, const waste_event *ev, struct err *e)
{
    buf_put(b, ev->text, ev->len);
    return b->failed ? err_set(e, ERR_NOMEM, "%zu bytes of an answer", b->n + ev->len) : 0;
}

static int take_events(struct turn *t, const waste_event *ev, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i++) {
        if (ev[i].kind == WASTE_REASONING)
            rc = piece_add(&t->reasoning, &ev[i], &t->err);
        else if (ev[i].kind == WASTE_RESPONSE)
            rc = piece_add(&t->response, &ev[i], &t->err);
    }
    return rc;
}

/* token -1: none, the answer was ended from outside. last: what is held back comes, too. */
static int read_reply(struct turn *t, int32_t token, bool last)
{
    const waste_event *ev = NULL;
    waste_status st = WASTE_OK;
    size_t n = 0;

    t->reasoning.n = t->response.n = 0;
    if (token >= 0)
        st = waste_reply_feed(t->reply, token, &ev, &n);
    if (st == WASTE_OK && take_events(t, ev, n))
        return t->err.code;
    n = 0;
    if (st == WASTE_OK && last)
        st = waste_reply_end(t->reply, &ev, &n);
    if (st == WASTE_OK && take_events(t, ev, n))
        return t->err.code;
    if (st != WASTE_OK)
        return library_said(st, NULL, &t->err);
    return answer_feed(&t->answer, buf_all(&t->response).s, t->response.n, last, &t->err);
}

static int read_token(struct turn *t, int32_t token, bool last, bool stop_id)
{
    const char *bytes = "";
    char number[16];
    size_t len = 0;

    if (t->reply)
        return read_reply(t, token, last);
    if (token >= 0 && !stop_id)
        bytes = token_bytes(t, token, number, &len);
    return answer_feed(&t->answer, bytes, len, last, &t->err);
}

static void show(struct turn *t, const waste_item *item, double ms)
{
    if (!t->show(t, item, ms))
        t->end = END_OUTPUT;
}

/* A token was chosen: show it, and decide whether it was the last. */
static void deliver(struct turn *t, const waste_item *item, double ms)
{
    bool stop_id = item->stop == WASTE_STOP_ID, last;

    t->n_generated++;
    last = item->stop || t->n_generated == t->n_max;
    if (read_token(t, item->token, last, stop_id)) {
        t->end = END_ERROR;
        return;
    }
    if (t->answer.matched >= 0)
        t->end = END_STRING;
    else if (last)
        t->end = stop_id ? END_ID : item->stop ? END_GRAMMAR : END_LENGTH;
    show(t, item, ms);
}

/* ---- the prompt ---- */

/* The session begins with what is kept of the prompt. */
static void resume(struct turn *t)
{
    struct speaker *s = t->by;
    waste_status st = WASTE_OK;

    if (s->store)
        st = waste_store_resume(s->store, s->session, t->ids, t->n_ids, NULL, &t->n_reused);
    else if (waste_session_pos(s->session))
        st = waste_session_reset(s->session);
    if (st != WASTE_OK)
        failed(t, st);
}

/* Where the next pass is to end: at the end of a message, to keep what is there then, if that is
 * not what is kept already. */
static size_t next_place(const struct turn *t, size_t at, size_t kept)
{
    size_t to = at;

    if (!t->by->store)
        return t->n_ids;
    do {
        to = waste_store_cut(t->by->store, to, t->ends, t->n_ends, t->n_ids);
    } while (to < t->n_ids && to - kept < NEAR);
    return to;
}

static void fed(struct turn *t, const waste_item *item)
{
    t->n_fed += item->n_done;
    t->by->c->prompt_done += item->n_done;
}

/* Feed it, however many passes that takes; the last one chooses the first token. */
static void prefill(struct turn *t, waste_item *item)
{
    struct cli *c = t->by->c;
    size_t at = t->n_reused, kept = at, to;
    double ms = 0;

    c->prompt_done = 0;
    c->prompt_total = t->n_ids - at;
    while (!t->end && at < t->n_ids) {
        waste_status st;

        to = next_place(t, at, kept);
        item->ids = t->ids + at;
        item->n_ids = to - at;
        item->want = to == t->n_ids ? WASTE_WANT_TOKEN : 0;
        st = step(t, item, &ms);
        t->prefill_s += ms * 1e-3;
        fed(t, item);
        at += item->n_done;
        if (st != WASTE_OK)
            failed(t, st);
        else if (item->stop == WASTE_STOP_CONTEXT)
            t->end = END_CONTEXT;
        else if (at < t->n_ids && at == to)
            speaker_keep(t->by, (kept = at) == t->n_system ? WASTE_KEEP_LONG : 0);
    }
    bar_end(&c->bar);
    c->prompt_total = 0;
    if (!t->end)
        deliver(t, item, ms);
}

/* ---- the answer ---- */

/* Each token is shown before it is fed. */
static void decode(struct turn *t, waste_item *item)
{
    int32_t token;
    double ms;

    item->want = WASTE_WANT_TOKEN;
    while (!t->end) {
        waste_status st;

        token = item->token;
        item->ids = &token;
        item->n_ids = 1;
        st = step(t, item, &ms);
        t->decode_s += ms * 1e-3;
        if (st != WASTE_OK)
            failed(t, st);
        else if (item->stop == WASTE_STOP_CONTEXT)
            t->end = END_CONTEXT;
        else
            deliver(t, item, ms);
    }
    item->ids = NULL; /* it was a place of ours */
    item->n_ids = 0;
}

/* What was still held back when it ended between two tokens. */
static void show_tail(struct turn *t)
{
    enum end end = t->end;

    if (end != END_INTERRUPTED && end != END_CONTEXT && end != END_ERROR)
        return;
    if (!read_token(t, -1, true, false) && (t->answer.len || t->reasoning.n))
        show(t, NULL, 0);
}

void turn_run(struct turn *t)
{
    waste_item item = {.size = sizeof(item), .session = t->by->session};

    tally_now(&t->begun, t->by->ctx);
    if (turn_see(t, &t->err))
        t->end = END_ERROR;
    else if (t->n_ids > t->by->ctx_max)
        t->end = END_CONTEXT;
    if (!t->end)
        resume(t);
    prefill(t, &item);
    tally_now(&t->fed, t->by->ctx);
    decode(t, &item);
    show_tail(t);
    tally_now(&t->ended, t->by->ctx);
}

double turn_rate(const struct turn *t)
{
    return t->n_generated > 1 && t->decode_s > 0 ? (t->n_generated - 1) / t->decode_s : 0;
}

int turn_fail(const struct turn *t, const char *what)
{
    if (t->status != WASTE_OK)
        return fail_detail(t->by->c, t->status, what, t->detail);
    return fail_err(t->by->c, &t->err, what);
}

json_t *turn_message(struct turn *t)
{
    const char *text;
    json_t *m;
    size_t len;

    if (waste_reply_message(t->reply, &text, &len) != WASTE_OK)
        return NULL;
    m = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    if (m && t->end == END_STRING) /* the reply has the stop text, too */
        json_object_set_new(m, "content",
                            json_text(buf_all(&t->answer.whole).s, t->answer.whole.n));
    return m;
}

/* ---- the speaker ---- */

void speaker_keep(struct speaker *s, uint32_t flags)
{
    const char *detail;

    if (!s->store || waste_store_keep(s->store, s->session, NULL, flags) == WASTE_OK ||
        s->keep_failed)
        return;
    s->keep_failed = true;
    detail = waste_error_detail(s->ctx);
    note(s->c, "waste: warning: a state was not kept: %s", detail ? detail : "no reason is known");
}

int speaker_open(struct speaker *s, struct cli *c)
{
    waste_model_info info;

    s->c = c;
    s->session = waste_session_default(s->ctx);
    s->tokenizer = waste_tokenizer_of(s->ctx);
    if (waste_model_get_info(s->ctx, &info) != WASTE_OK)
        return fail_status(c, WASTE_E_ARG, s->ctx, "model");
    s->ctx_max = info.ctx_max;
    return 0;
}

int speaker_chat(struct speaker *s, const char *path, const char *effort, char why[256])
{
    const char *detail;
    waste_chat_opts o;
    waste_status st;

    waste_chat_opts_init(&o);
    o.effort = effort;
    o.constrains = 1;
    s->format.size = sizeof(s->format);
    if (!s->tokenizer) {
        snprintf(why, 256, "no chat format: the container has no tokenizer");
        return 0;
    }
    st = waste_chat_open(s->tokenizer, path, &o, &s->chat);
    if (st == WASTE_OK)
        st = waste_chat_get_info(s->chat, &s->format);
    if (st == WASTE_OK)
        return 0;
    detail = waste_error_detail(NULL);
    detail = detail ? detail : waste_strerror(st);
    if (st == WASTE_E_UNSUPPORTED) {
        snprintf(why, 256, "%s", detail);
        return 0;
    }
    return fail(s->c, exit_of_status(st), "`waste run --raw` continues texts with it.", path, "%s",
                detail);
}

int speaker_check_thinking(struct speaker *s)
{
    struct opts *o = &s->c->opts;
    bool wants = opts_origin(o, "think") == FROM_FLAG && strcmp(o->think, "none") != 0;
    bool limits = opts_origin(o, "think-limit") == FROM_FLAG && o->think_limit > 0;

    if (s->format.has_thinking)
        return 0;
    if (wants || limits)
        return fail(s->c, EXIT_UNSUPPORTED, NULL, wants ? "--think" : "--think-limit",
                    "the format of this model (%s) has no thinking", s->format.name);
    o->think = NULL;
    o->think_limit = -1;
    return 0;
}

void speaker_close(struct speaker *s)
{
    waste_store_close(s->store);
    waste_chat_close(s->chat);
    s->store = NULL;
    s->chat = NULL;
    free(s->grammar.bytes);
    s->grammar.bytes = NULL;
}

int draw_seed(struct cli *c, struct opts *o)
{
    uint64_t seed;

    if (o->temp <= 0 || o->seed_set)
        return 0;
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        return fail(c, EXIT_RUNTIME, "Give one with --seed.", "seed",
                    "the system has none to give");
    o->seed = seed >> 11;
    return 0;
}

void choose_checkpoints(struct cli *c, const char *path, int most)
{
    waste_plan plan = {.size = sizeof(plan)};
    waste_cfg cfg;
    waste_opts opts;

    if (c->opts.checkpoints >= 0)
        return;
    for (c->opts.checkpoints = most; c->opts.checkpoints; c->opts.checkpoints--) {
        model_settings(c, &cfg, &opts);
        if (waste_plan_ex(path, &cfg, &opts, &plan) != WASTE_OK ||
            (plan.fits && plan.mem.floor_bytes <= plan.usable_ram_bytes / 4 * 3))
            break;
    }
    if (c->opts.checkpoints < most)
        note(c, "states   memory has room for %d to go back to, not the usual %d",
             (int)c->opts.checkpoints, most);
}

int speaker_store(struct speaker *s, const char *dir)
{
    struct cli *c = s->c;
    char name[PATH_MAX];
    waste_store_cfg cfg;
    waste_status st;

    waste_store_cfg_init(&cfg);
    if (dir) {
        dir = dir_name(dir, name);
        make_parents(dir);
    }
    cfg.dir = dir;
    cfg.dir_bytes = c->opts.state_disk;
    st = waste_store_open(s->ctx, &cfg, &s->store);
    if (st == WASTE_OK)
        return 0;
    if (!dir || c->opts.state_dir)
        return fail_status(c, st, s->ctx, dir ? dir : "states");
    note(c, "waste: warning: states are not kept in files: %s", waste_error_detail(s->ctx));
    return speaker_store(s, NULL);
}

int speaker_sampling(struct speaker *s, const struct turn *t, const struct opts *o, uint32_t stream,
                     struct err *e)
{
    waste_prompt_info info = {.size = sizeof(info)};
    waste_sampling p;
    waste_status st;

    waste_sampling_init(&p);
    p.temperature = (float)o->temp;
    p.top_p = (float)o->top_p;
    p.min_p = (float)o->min_p;
    p.seed = o->seed;
    p.stream = stream;
    p.repeat_penalty = (float)o->repeat_penalty;
    p.presence_penalty = (float)o->presence_penalty;
    p.frequency_penalty = (float)o->frequency_penalty;
    p.logit_bias = o->bias;
    p.n_logit_bias = o->n_bias;
    if (o->top_k >= 0)
        p.top_k = (int32_t)o->top_k;
    if (o->repeat_window >= 0)
        p.repeat_window = (uint32_t)o->repeat_window;
    p.grammar = t->prompt ? t->grammar : s->grammar.bytes;
    p.grammar_kind =
        !t->prompt && s->c->opts.json_schema ? WASTE_GRAMMAR_JSON_SCHEMA : WASTE_GRAMMAR_TEXT;
    if (s->chat) {
        p.stop_tokens = &s->format.end_id;
        p.n_stop = 1;
    }
    if (t->prompt && o->think_limit >= 0 && waste_prompt_get_info(t->prompt, &info) == WASTE_OK) {
        p.close_ids = info.close_ids;
        p.n_close = (uint32_t)info.n_close;
        p.close_after = (uint32_t)o->think_limit;
    }
    st = waste_session_sampling(s->session, &p);
    return st == WASTE_OK ? 0 : library_said(st, s->ctx, e);
}

int speaker_grammar(struct speaker *s, struct cli *c)
{
    const struct opts *o = &c->opts;
    const char *name = o->grammar ? o->grammar : o->json_schema;
    char *text, ours[SAY_OPTION], other[SAY_OPTION];
    int rc;

    if (o->grammar && o->json_schema)
        return fail(c, EXIT_USAGE, "Choose one.", say_option(c, "grammar", ours), "given with %s",
                    say_option(c, "json-schema", other));
    if (!name)
        return 0;
    rc = text_of_file(c, name, &s->grammar);
    if (rc)
        return rc;
    text = realloc(s->grammar.bytes, s->grammar.len + 1);
    if (!text)
        return fail(c, EXIT_MEMORY, NULL, name, "no memory for it");
    text[s->grammar.len] = '\0';
    s->grammar.bytes = text;
    if (strlen(text) != s->grammar.len)
        return fail(c, EXIT_USAGE, NULL, name, "a NUL byte at %zu", strlen(text));
    return 0;
}

bool speaker_held(const struct speaker *s)
{
    return waste_session_grammar(s->session) != WASTE_GRAMMAR_NONE;
}

bool speaker_cut(const struct speaker *s)
{
    return waste_session_grammar(s->session) == WASTE_GRAMMAR_CUT;
}

void banner_sampling(struct cli *c)
{
    if (c->opts.temp <= 0)
        note(c, "choosing the likeliest token");
    else
        note(c, "choosing temperature %g, top-p %g, top-k %lld, min-p %g, seed %llu", c->opts.temp,
             c->opts.top_p, (long long)(c->opts.top_k > 0 ? c->opts.top_k : 0), c->opts.min_p,
             (unsigned long long)c->opts.seed);
}
