/* cli/cmd_run.c - one generation: prompt in, text out as it comes. */
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/load.h"
#include "cli/prompt.h"
#include "cli/turn.h"

enum { TOKENS_DEFAULT = 128 };

struct run {
    struct cli *c;
    struct speaker by;
    struct ids prompt;
    struct turn turn;
    bool thinking; /* is being shown */
    struct profile profile;
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

/* item NULL: it came after the last token. */
static bool show(struct turn *t, const waste_item *item, double ms)
{
    const struct answer *a = &t->answer;
    struct run *r = t->user;
    waste_counters now = {.size = sizeof(now)};
    json_t *line;

    if (!r->c->opts.json)
        return !a->len || term_print_text(&r->c->term, a->text, a->len);
    if (item) {
        waste_get_counters(r->by.ctx, &now);
        line = token_json(item->token, item->logprob, a->text, a->len, ms, &t->before, &now);
    } else {
        line = json_pack("{s:n, s:o}", "token", "text", json_text(a->text, a->len));
    }
    return !say_json(r->c, line);
}

static double rate(double n, double seconds)
{
    return seconds > 0 && n > 0 ? n / seconds : 0;
}

static json_t *summary_json(const struct run *r, const struct tally *d)
{
    const struct opts *o = &r->c->opts;
    const struct turn *t = &r->turn;
    double n_decode = t->n_generated > 1 ? t->n_generated - 1 : 0;
    json_t *s =
        json_pack("{s:b, s:s, s:o, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o}", "done", 1, "stop",
                  end_name(t->end), "text",
                  json_text(t->answer.whole ? t->answer.whole : "", t->answer.whole_len),
                  "prompt_tokens", (json_int_t)t->n_ids, "generated_tokens",
                  (json_int_t)t->n_generated, "prefill_s", t->prefill_s, "decode_s", t->decode_s,
                  "prefill_tok_per_s", rate((double)t->n_fed, t->prefill_s), "tok_per_s",
                  rate(n_decode, t->decode_s), "temperature", o->temp, "seed", json_u64(o->seed));

    if (s && (tally_json(s, d) ||
              (o->profile && json_object_set_new(s, "profile", profile_json(&r->profile))))) {
        json_decref(s);
        return NULL;
    }
    if (s && t->end == END_STRING)
        json_object_set_new(
            s, "stop_string",
            json_text(o->stop[t->answer.matched], strlen(o->stop[t->answer.matched])));
    return s;
}

static void closing_lines(const struct run *r, const struct tally *d)
{
    const struct turn *t = &r->turn;
    double n_decode = t->n_generated > 1 ? t->n_generated - 1 : 0;

    note(r->c, "%s", "");
    if (t->n_fed < t->n_ids)
        note(r->c, "prompt   %zu of %zu tokens", t->n_fed, t->n_ids);
    else
        note(r->c, "prompt   %zu tokens, %.2f tok/s", t->n_ids,
             rate((double)t->n_fed, t->prefill_s));
    note(r->c, "answer   %u tokens, %.2f tok/s, ended by %s%s%s%s", t->n_generated,
         rate(n_decode, t->decode_s), end_text(t->end), t->end == END_STRING ? " \"" : "",
         t->end == END_STRING ? r->c->opts.stop[t->answer.matched] : "",
         t->end == END_STRING ? "\"" : "");
    tally_lines(r->c, d);
    if (r->c->opts.profile)
        profile_lines(r->c, &r->profile);
}

/* What the run took; its profile, too. */
static struct tally add_up(struct run *r)
{
    const struct turn *t = &r->turn;
    waste_engine engine = {.size = sizeof(engine)};
    waste_memplan mem = {0};

    waste_engine_info(r->by.ctx, &engine);
    waste_memory_used(r->by.ctx, &mem);
    r->profile.prefill = tally_between(&t->begun, &t->fed);
    r->profile.decode = tally_between(&t->fed, &t->ended);
    r->profile.trunk = mem.trunk_bytes;
    r->profile.record = engine.frame_bytes;
    return tally_between(&t->begun, &t->ended);
}

static int finish(struct run *r)
{
    struct cli *c = r->c;
    struct turn *t = &r->turn;
    struct tally d = add_up(r);

    if (t->n_generated && t->end != END_OUTPUT && !c->opts.json && !term_print(&c->term, "\n", 1))
        t->end = END_OUTPUT;
    if (t->end != END_OUTPUT && c->opts.json && say_json(c, summary_json(r, &d)))
        t->end = END_OUTPUT;
    closing_lines(r, &d);
    if (t->end == END_CONTEXT)
        note(c, "The context of %u positions is full; --ctx sets more.", r->by.ctx_max);
    if (t->end == END_ERROR)
        return turn_fail(t, "run");
    if (t->end == END_OUTPUT)
        return c->opts.json ? EXIT_RUNTIME : fail_output(c);
    return t->end == END_INTERRUPTED ? EXIT_INTERRUPTED : 0;
}

static int generate(struct run *r)
{
    struct opts *o = &r->c->opts;
    struct turn *t = &r->turn;
    struct err e;
    int rc = speaker_sampling(&r->by, o, 0);

    if (rc)
        return rc;
    if (turn_open_ids(t, &r->by, r->prompt.id, r->prompt.n, o->stop, o->n_stop, &e))
        return fail_err(r->c, &e, "--stop");
    banner_sampling(r->c);
    note(r->c, "%s", ""); /* a line between this and the answer */
    t->n_max = o->n_tokens ? (uint32_t)o->n_tokens : TOKENS_DEFAULT;
    t->show = show;
    t->user = r;
    turn_run(t);
    return finish(r);
}

static int open_and_generate(struct run *r, const char *path)
{
    int rc = model_open(r->c, path, &r->by.ctx);

    if (rc)
        return rc;
    rc = ids_check(r->c, r->by.ctx, r->prompt.id, r->prompt.n);
    if (!rc) {
        model_banner(r->c, r->by.ctx);
        rc = speaker_open(&r->by, r->c);
    }
    if (!rc) {
        rc = generate(r);
        model_learn(r->c, r->by.ctx, path);
    }
    turn_close(&r->turn);
    model_close(r->by.ctx);
    return rc;
}

int cmd_run(struct cli *c)
{
    struct run r = {.c = c};
    char path[PATH_MAX];
    int rc = model_find(c, c->opts.arg[1], path);

    if (!rc)
        rc = model_check(c, path);
    if (!rc)
        rc = prompt_read(c, path, 2, TEXT_PROMPT, &r.prompt);
    if (!rc)
        rc = prompt_fits(c, r.prompt.n);
    if (!rc)
        rc = draw_seed(c, &c->opts);
    if (!rc)
        rc = profile_begin(c, &r.profile);
    if (!rc)
        rc = open_and_generate(&r, path);
    free(r.prompt.id);
    return rc;
}
