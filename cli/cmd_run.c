/* cli/cmd_run.c - one generation: prompt in, text out as it comes. */
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/answer.h"
#include "cli/estimate.h"
#include "cli/load.h"
#include "cli/pictures.h"
#include "cli/prompt.h"
#include "cli/tally.h"
#include "cli/units.h"

enum { TOKENS_DEFAULT = 128 };

enum end {
    END_NONE,
    END_LENGTH,      /* -n */
    END_ID,          /* the model ended its turn */
    END_STRING,      /* --stop */
    END_CONTEXT,     /* no position left */
    END_INTERRUPTED, /* Ctrl-C */
    END_OUTPUT,      /* nobody reads any more */
    END_ERROR,
};

static const char *const end_name[] = {
    [END_LENGTH] = "length",
    [END_ID] = "stop_id",
    [END_STRING] = "stop_string",
    [END_CONTEXT] = "context",
    [END_INTERRUPTED] = "interrupted",
    [END_OUTPUT] = "output_closed",
    [END_ERROR] = "error",
};

/* The same for people. */
static const char *const end_text[] = {
    [END_LENGTH] = "the limit of -n",   [END_ID] = "the model",
    [END_STRING] = "the stop text",     [END_CONTEXT] = "a full context",
    [END_INTERRUPTED] = "an interrupt", [END_OUTPUT] = "a reader who left",
    [END_ERROR] = "an error",
};

struct run {
    struct cli *c;
    waste_ctx *ctx;
    waste_session *session;
    const waste_tokenizer *tokenizer; /* NULL: ids are printed */
    struct ids prompt;
    uint32_t n_prompt; /* fed so far */
    uint32_t n_generated, n_max, ctx_max;
    struct answer answer;
    enum end end;
    double prefill_s, decode_s;
    waste_counters before;   /* the running step */
    struct tally begun, fed; /* at the start; when the prompt was in */
    struct profile profile;
    waste_status status; /* what ended it, if END_ERROR; OK: see err */
    struct err err;
};

static json_t *token_json(int32_t token, float logprob, const char *text, size_t len, double ms,
                          const waste_counters *before, const waste_counters *after)
{
    return json_pack("{s:i, s:o, s:f, s:o, s:I, s:I, s:I}", "token", token, "text",
                     json_text(text, len), "ms", ms, "logprob", json_f64(logprob), "experts_hit",
                     (json_int_t)(after->hits_resident + after->hits_prefetch -
                                  before->hits_resident - before->hits_prefetch),
                     "experts_missed", (json_int_t)(after->misses - before->misses), "bytes_read",
                     (json_int_t)(after->bytes_read - before->bytes_read));
}

/* Show what the answer lets go of. item NULL: it came after the last token. */
static void show(struct run *r, const waste_item *item, double ms)
{
    const struct answer *a = &r->answer;
    waste_counters now = {.size = sizeof(now)};
    json_t *line;

    if (!r->c->opts.json) {
        if (a->len && !term_print_text(&r->c->term, a->text, a->len))
            r->end = END_OUTPUT;
        return;
    }
    if (item) {
        waste_get_counters(r->ctx, &now);
        line = token_json(item->token, item->logprob, a->text, a->len, ms, &r->before, &now);
    } else {
        line = json_pack("{s:n, s:o}", "token", "text", json_text(a->text, a->len));
    }
    if (say_json(r->c, line))
        r->end = END_OUTPUT;
}

/* The bytes of a token; its number where the container has no tokenizer. */
static const char *token_bytes(const struct run *r, int32_t token, char number[16], size_t *len)
{
    const char *bytes;

    if (!r->tokenizer) {
        *len = (size_t)snprintf(number, 16, "%s%d", r->n_generated > 1 ? " " : "", token);
        return number;
    }
    if (waste_token_bytes(r->tokenizer, token, &bytes, len) == WASTE_OK)
        return bytes;
    *len = 0;
    return "";
}

/* A token was chosen: show it, and decide whether it was the last. */
static void deliver(struct run *r, const waste_item *item, double ms)
{
    bool stop_id = item->stop == WASTE_STOP_ID, last;
    const char *bytes = "";
    size_t len = 0;
    char number[16];

    r->n_generated++;
    last = stop_id || r->n_generated == r->n_max;
    if (!stop_id)
        bytes = token_bytes(r, item->token, number, &len);
    if (answer_feed(&r->answer, bytes, len, last, &r->err)) {
        r->end = END_ERROR;
        return;
    }
    if (r->answer.matched >= 0)
        r->end = END_STRING;
    else if (last)
        r->end = stop_id ? END_ID : END_LENGTH;
    show(r, item, ms);
}

/* One call of the engine; *ms is what it took. */
static waste_status step(struct run *r, waste_item *item, double *ms)
{
    uint64_t begun = clock_ns();
    waste_status st;

    r->before.size = sizeof(r->before);
    waste_get_counters(r->ctx, &r->before);
    item->n_done = 0;
    item->token = -1;
    item->stop = 0;
    st = waste_step(r->ctx, item, 1);
    if (st == WASTE_OK)
        st = item->status;
    *ms = (double)(clock_ns() - begun) * 1e-6;
    return st;
}

static void step_failed(struct run *r, waste_status st)
{
    r->status = st;
    r->end = st == WASTE_E_CANCELLED && term_interrupted() ? END_INTERRUPTED : END_ERROR;
}

/* Feed the prompt, however many passes that takes; the last one chooses the first token. */
static void prefill(struct run *r, waste_item *item)
{
    struct cli *c = r->c;
    double ms;

    item->ids = r->prompt.id;
    item->n_ids = r->prompt.n;
    c->prompt_total = r->prompt.n;
    while (!r->end && item->n_ids) {
        waste_status st = step(r, item, &ms);

        r->prefill_s += ms * 1e-3;
        item->ids += item->n_done;
        item->n_ids -= item->n_done;
        c->prompt_done += item->n_done;
        r->n_prompt = (uint32_t)c->prompt_done;
        if (st != WASTE_OK)
            step_failed(r, st);
        else if (item->stop == WASTE_STOP_CONTEXT)
            r->end = END_CONTEXT;
        else if (!item->n_ids) {
            bar_end(&c->bar);
            deliver(r, item, ms);
        }
    }
    bar_end(&c->bar);
    c->prompt_total = 0;
}

/* Each token is shown before it is fed. */
static void decode(struct run *r, waste_item *item)
{
    int32_t token;
    double ms;

    while (!r->end) {
        waste_status st;

        token = item->token;
        item->ids = &token;
        item->n_ids = 1;
        st = step(r, item, &ms);
        r->decode_s += ms * 1e-3;
        if (st != WASTE_OK)
            step_failed(r, st);
        else if (item->stop == WASTE_STOP_CONTEXT)
            r->end = END_CONTEXT;
        else
            deliver(r, item, ms);
    }
}

/* What memory gives, before the model takes it: half a GiB is touched for 0.3 s. */
static int profile_begin(struct run *r)
{
    struct err e;

    if (!r->c->opts.profile || waste_usable_ram() < (uint64_t)2 << 30)
        return 0;
    if (measure_ram(&r->profile.ram_rate, &e) && term_interrupted())
        return EXIT_INTERRUPTED;
    return 0;
}

/* 53 bits, so that every JSON reader gives it back. */
static int draw_seed(struct cli *c)
{
    uint64_t seed;

    if (c->opts.temp <= 0 || c->opts.seed_set)
        return 0;
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        return fail(c, EXIT_RUNTIME, "Give one with --seed.", "seed",
                    "the system has none to give");
    c->opts.seed = seed >> 11;
    return 0;
}

static int set_sampling(struct run *r)
{
    const struct opts *o = &r->c->opts;
    waste_sampling s;
    waste_status st;

    waste_sampling_init(&s);
    s.temperature = (float)o->temp;
    s.top_p = (float)o->top_p;
    s.min_p = (float)o->min_p;
    s.seed = o->seed;
    s.repeat_penalty = (float)o->repeat_penalty;
    s.presence_penalty = (float)o->presence_penalty;
    s.frequency_penalty = (float)o->frequency_penalty;
    s.logit_bias = o->bias;
    s.n_logit_bias = o->n_bias;
    if (o->top_k >= 0)
        s.top_k = (int32_t)o->top_k;
    if (o->repeat_window >= 0)
        s.repeat_window = (uint32_t)o->repeat_window;
    st = waste_session_sampling(r->session, &s);
    return st == WASTE_OK ? 0 : fail_status(r->c, st, r->ctx, "sampling");
}

static void banner_sampling(struct cli *c)
{
    if (c->opts.temp <= 0)
        note(c, "choosing the likeliest token");
    else
        note(c, "choosing temperature %g, top-p %g, top-k %lld, min-p %g, seed %llu", c->opts.temp,
             c->opts.top_p, (long long)(c->opts.top_k > 0 ? c->opts.top_k : 0), c->opts.min_p,
             (unsigned long long)c->opts.seed);
    note(c, "%s", ""); /* a line between this and the answer */
}

static double rate(double n, double seconds)
{
    return seconds > 0 && n > 0 ? n / seconds : 0;
}

static json_t *summary_json(const struct run *r, const struct tally *d)
{
    const struct opts *o = &r->c->opts;
    double n_decode = r->n_generated > 1 ? r->n_generated - 1 : 0;
    json_t *s =
        json_pack("{s:b, s:s, s:o, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o}", "done", 1, "stop",
                  end_name[r->end], "text",
                  json_text(r->answer.whole ? r->answer.whole : "", r->answer.whole_len),
                  "prompt_tokens", (json_int_t)r->prompt.n, "generated_tokens",
                  (json_int_t)r->n_generated, "prefill_s", r->prefill_s, "decode_s", r->decode_s,
                  "prefill_tok_per_s", rate(r->n_prompt, r->prefill_s), "tok_per_s",
                  rate(n_decode, r->decode_s), "temperature", o->temp, "seed", json_u64(o->seed));

    if (s && (tally_json(s, d) ||
              (o->profile && json_object_set_new(s, "profile", profile_json(&r->profile))))) {
        json_decref(s);
        return NULL;
    }
    if (s && r->end == END_STRING)
        json_object_set_new(
            s, "stop_string",
            json_text(o->stop[r->answer.matched], strlen(o->stop[r->answer.matched])));
    return s;
}

static void closing_lines(const struct run *r, const struct tally *d)
{
    double n_decode = r->n_generated > 1 ? r->n_generated - 1 : 0;

    note(r->c, "%s", "");
    if (r->n_prompt < r->prompt.n)
        note(r->c, "prompt   %u of %zu tokens", r->n_prompt, r->prompt.n);
    else
        note(r->c, "prompt   %zu tokens, %.2f tok/s", r->prompt.n, rate(r->n_prompt, r->prefill_s));
    note(r->c, "answer   %u tokens, %.2f tok/s, ended by %s%s%s%s", r->n_generated,
         rate(n_decode, r->decode_s), end_text[r->end], r->end == END_STRING ? " \"" : "",
         r->end == END_STRING ? r->c->opts.stop[r->answer.matched] : "",
         r->end == END_STRING ? "\"" : "");
    tally_lines(r->c, d);
    if (r->c->opts.profile)
        profile_lines(r->c, &r->profile);
}

/* What the run took; its profile, too. */
static struct tally add_up(struct run *r)
{
    waste_engine engine = {.size = sizeof(engine)};
    waste_memplan mem = {0};
    struct tally now;

    tally_now(&now, r->ctx);
    waste_engine_info(r->ctx, &engine);
    waste_memory_used(r->ctx, &mem);
    r->profile.prefill = tally_between(&r->begun, &r->fed);
    r->profile.decode = tally_between(&r->fed, &now);
    r->profile.trunk = mem.trunk_bytes;
    r->profile.record = engine.frame_bytes;
    return tally_between(&r->begun, &now);
}

/* What was still held back when it ended between two tokens. */
static void show_tail(struct run *r)
{
    if (r->end != END_INTERRUPTED && r->end != END_CONTEXT && r->end != END_ERROR)
        return;
    if (!answer_feed(&r->answer, "", 0, true, &r->err) && r->answer.len)
        show(r, NULL, 0);
}

static int finish(struct run *r)
{
    struct cli *c = r->c;
    struct tally d = add_up(r);

    show_tail(r);
    if (r->n_generated && r->end != END_OUTPUT && !c->opts.json && !term_print(&c->term, "\n", 1))
        r->end = END_OUTPUT;
    if (r->end != END_OUTPUT && c->opts.json && say_json(c, summary_json(r, &d)))
        r->end = END_OUTPUT;
    closing_lines(r, &d);
    if (r->end == END_CONTEXT)
        note(c, "The context of %u positions is full; --ctx sets more.", r->ctx_max);
    if (r->end == END_ERROR && r->status == WASTE_OK)
        return fail_err(c, &r->err, "run");
    if (r->end == END_ERROR)
        return fail_status(c, r->status, r->ctx, "run");
    if (r->end == END_OUTPUT)
        return c->opts.json ? EXIT_RUNTIME : fail_output(c);
    return r->end == END_INTERRUPTED ? EXIT_INTERRUPTED : 0;
}

static int generate(struct run *r)
{
    waste_item item = {.size = sizeof(item), .want = WASTE_WANT_TOKEN};
    int rc;

    r->session = item.session = waste_session_default(r->ctx);
    r->tokenizer = waste_tokenizer_of(r->ctx);
    rc = set_sampling(r);
    if (rc)
        return rc;
    banner_sampling(r->c);
    tally_now(&r->begun, r->ctx);
    prefill(r, &item);
    tally_now(&r->fed, r->ctx);
    decode(r, &item);
    return finish(r);
}

static int open_and_generate(struct run *r, const char *path)
{
    waste_model_info info;
    int rc = model_open(r->c, path, &r->ctx);

    if (rc)
        return rc;
    rc = ids_check(r->c, r->ctx, r->prompt.id, r->prompt.n);
    if (!rc) {
        model_banner(r->c, r->ctx);
        if (waste_model_get_info(r->ctx, &info) == WASTE_OK)
            r->ctx_max = info.ctx_max;
        rc = pictures_place(r->c, r->ctx, &r->prompt);
        if (!rc)
            rc = prompt_fits(r->c, r->prompt.n);
        if (!rc)
            rc = generate(r);
        model_learn(r->c, r->ctx, path);
    }
    model_close(r->ctx);
    return rc;
}

int cmd_run(struct cli *c)
{
    struct run r = {.c = c};
    char path[PATH_MAX];
    struct err e;
    int rc = model_find(c, c->opts.arg[1], path);

    r.n_max = c->opts.n_tokens ? (uint32_t)c->opts.n_tokens : TOKENS_DEFAULT;
    if (!rc)
        rc = model_check(c, path);
    if (!rc)
        rc = pictures_check(c, path);
    if (!rc)
        rc = prompt_read(c, path, 2, TEXT_PROMPT, &r.prompt);
    if (!rc)
        rc = prompt_fits(c, r.prompt.n);
    if (!rc)
        rc = draw_seed(c);
    if (!rc)
        rc = profile_begin(&r);
    if (!rc && answer_open(&r.answer, c->opts.stop, c->opts.n_stop, c->opts.json, &e))
        rc = fail_err(c, &e, "--stop");
    if (!rc)
        rc = open_and_generate(&r, path);
    answer_close(&r.answer);
    free(r.prompt.id);
    return rc;
}
