/* cli/cmd_run.c - one generation: prompt in, text out as it comes; or, with --out, many. */
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/batch.h"
#include "cli/load.h"
#include "cli/pictures.h"
#include "cli/prompt.h"
#include "cli/talk.h"
#include "cli/turn.h"
#include "cli/units.h"

enum { BATCH_CHECKPOINTS = 2 };

struct run {
    struct cli *c;
    const char *path; /* of the container */
    struct speaker by;
    struct ids prompt;
    struct turn turn;
    waste_tokenizer *own; /* the chat format's; it was there before the model */
    struct batch *batch;  /* --out; NULL */
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

    turn_show_reasoning(t);
    if (!r->c->opts.json)
        return !a->len || term_print_text(&r->c->term, a->text, a->len);
    if (item) {
        waste_get_counters(r->by.ctx, &now);
        line = token_json(item->token, item->logprob, a->text, a->len, ms, &t->before, &now);
    } else {
        line = json_pack("{s:n, s:o}", "token", "text", json_text(a->text, a->len));
    }
    if (line && t->reasoning.n)
        json_object_set_new(line, "reasoning", json_text(t->reasoning.s, t->reasoning.n));
    return !say_json(r->c, line);
}

/* What a chat format knows of an answer besides its text. */
static void add_message(json_t *summary, struct turn *t)
{
    json_t *message = t->reply ? turn_message(t) : NULL;
    json_t *reasoning = json_object_get(message, "reasoning_content");
    json_t *calls = json_object_get(message, "tool_calls");

    if (t->reply)
        json_object_set_new(summary, "format", json_string(t->by->format.name));
    if (t->n_reused)
        json_object_set_new(summary, "reused_tokens", json_integer((json_int_t)t->n_reused));
    if (reasoning)
        json_object_set(summary, "reasoning", reasoning);
    if (calls)
        json_object_set(summary, "tool_calls", calls);
    json_decref(message);
}

/* Of the prompt's passes: what the vision tower took before them is no property of tokens. */
static double prompt_s(const struct turn *t, const struct tally *d)
{
    double s = t->prefill_s - d->c.sec_images;

    return s > 0 ? s : 0;
}

static json_t *summary_json(struct run *r, const struct tally *d)
{
    const struct opts *o = &r->c->opts;
    struct turn *t = &r->turn;
    json_t *s = json_pack(
        "{s:b, s:s, s:o, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o}", "done", 1, "stop",
        end_name(t->end), "text", json_text(buf_all(&t->answer.whole).s, t->answer.whole.n),
        "prompt_tokens", (json_int_t)t->n_ids, "generated_tokens", (json_int_t)t->n_generated,
        "prefill_s", t->prefill_s, "decode_s", t->decode_s, "prefill_tok_per_s",
        per_second((double)t->n_fed, prompt_s(t, d)), "tok_per_s", turn_rate(t), "temperature",
        o->temp, "seed", json_u64(o->seed));

    if (s && (tally_json(s, d) ||
              (o->profile && json_object_set_new(s, "profile", profile_json(&r->profile))))) {
        json_decref(s);
        return NULL;
    }
    if (s)
        add_message(s, t);
    if (s && speaker_held(&r->by))
        json_object_set_new(s, "complete", json_boolean(!speaker_cut(&r->by)));
    if (s && t->end == END_STRING)
        json_object_set_new(
            s, "stop_string",
            json_text(o->stop[t->answer.matched], strlen(o->stop[t->answer.matched])));
    return s;
}

static void closing_lines(const struct run *r, const struct tally *d)
{
    const struct turn *t = &r->turn;

    note(r->c, "%s", "");
    if (d->c.images)
        note(r->c, "images   %llu seen, %.2f s in the vision tower",
             (unsigned long long)d->c.images, d->c.sec_images);
    if (t->n_reused)
        note(r->c, "kept     %zu of %zu token%s, read before", t->n_reused, t->n_ids,
             plural(t->n_ids));
    if (t->n_reused + t->n_fed < t->n_ids)
        note(r->c, "prompt   %zu of %zu token%s", t->n_fed, t->n_ids, plural(t->n_ids));
    else
        note(r->c, "prompt   %zu token%s, %.2f tok/s", t->n_fed, plural(t->n_fed),
             per_second((double)t->n_fed, prompt_s(t, d)));
    note(r->c, "answer   %u token%s, %.2f tok/s, ended by %s%s%s%s", t->n_generated,
         plural(t->n_generated), turn_rate(t), end_text(t->end), t->end == END_STRING ? " \"" : "",
         t->end == END_STRING ? r->c->opts.stop[t->answer.matched] : "",
         t->end == END_STRING ? "\"" : "");
    if (speaker_cut(&r->by))
        note(r->c, "%s", "         cut: the beginning of what the grammar allows");
    tally_lines(r->c, d);
    if (r->c->opts.profile)
        profile_lines(r->c, &r->profile);
}

/* The calls that were completed, a line of JSON each. */
static bool print_calls(struct run *r)
{
    json_t *message = r->turn.reply ? turn_message(&r->turn) : NULL, *call;
    bool open = true;
    size_t i;

    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        open = open && !say_json(r->c, json_incref(call));
    }
    json_decref(message);
    return open;
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

    turn_end_reasoning(t);
    if (t->n_generated && t->end != END_OUTPUT && !c->opts.json && !term_print(&c->term, "\n", 1))
        t->end = END_OUTPUT;
    if (t->end != END_OUTPUT && c->opts.tools && !c->opts.json && !print_calls(r))
        t->end = END_OUTPUT;
    if (t->end != END_OUTPUT && c->opts.json && say_json(c, summary_json(r, &d)))
        t->end = END_OUTPUT;
    closing_lines(r, &d);
    if (t->end == END_CONTEXT)
        note(c, "The context of %u position%s is full; --ctx sets more.", r->by.ctx_max,
             plural(r->by.ctx_max));
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

    if (speaker_sampling(&r->by, t, o, 0, &e))
        return fail_err(r->c, &e, "sampling");
    banner_sampling(r->c);
    if (r->by.chat)
        note(r->c, "chat     %s format; --raw continues the text as it is", r->by.format.name);
    note(r->c, "%s", ""); /* a line between this and the answer */
    t->n_max = o->n_tokens ? (uint32_t)o->n_tokens : TOKENS_DEFAULT;
    t->show = show;
    t->user = r;
    turn_run(t);
    speaker_keep(&r->by, 0);
    return finish(r);
}

/* Pictures into the prompt, which may be too long now. */
static int see(struct run *r)
{
    struct err e;
    int rc;

    if (r->by.chat) {
        rc = turn_see(&r->turn, &e) ? fail_err(r->c, &e, "--image") : 0;
    } else {
        rc = pictures_place(r->c, r->by.ctx, &r->prompt);
        r->turn.ids = r->prompt.id;
        r->turn.n_ids = r->prompt.n;
    }
    return rc ? rc : prompt_fits(r->c, r->turn.n_ids);
}

static int open_and_generate(struct run *r, const char *path)
{
    struct cli *c = r->c;
    const char *states = c->opts.states ? c->opts.state_dir : NULL;
    int rc = model_open(c, path, &r->by.ctx);

    if (rc)
        return rc;
    rc = ids_check(c, r->by.ctx, r->prompt.id, r->prompt.n);
    if (!rc) {
        model_banner(c, r->by.ctx);
        rc = speaker_open(&r->by, c);
    }
    if (!rc && !r->batch && (c->opts.n_images || r->by.chat))
        rc = see(r);
    if (!rc && (c->opts.checkpoints > 0 || states))
        rc = speaker_store(&r->by, states);
    if (!rc) {
        rc = r->batch ? batch_run(r->batch, &r->by) : generate(r);
        model_learn(c, r->by.ctx, path);
    }
    turn_close(&r->turn);
    speaker_close(&r->by);
    model_close(r->by.ctx);
    return rc;
}

/* ---- before the model is opened ---- */

/* How it speaks, unless the prompt is to be continued as it is. */
static int find_format(struct run *r, const char *path)
{
    const struct opts *o = &r->c->opts;
    const char *asked = o->tools                                     ? "tools"
                        : opts_origin(o, "system") == FROM_FLAG      ? "system"
                        : opts_origin(o, "think") == FROM_FLAG       ? "think"
                        : opts_origin(o, "think-limit") == FROM_FLAG ? "think-limit"
                                                                     : NULL;
    char name[SAY_OPTION];
    char why[256] = "the prompt is continued as it is";
    int rc = 0;

    if (!o->raw && !o->ids && !o->bos && !(o->markup_set && o->markup) &&
        waste_tokenizer_open(path, &r->own) == WASTE_OK) {
        r->by.tokenizer = r->own;
        rc = speaker_chat(&r->by, path, NULL, why);
    }
    if (!rc && !r->by.chat && asked)
        return fail(r->c, EXIT_USAGE, NULL, say_option(r->c, asked, name),
                    "it goes with a chat format, and %s", why);
    return rc ? rc : speaker_check_thinking(&r->by);
}

static int read_tools(struct run *r, struct talk *talk)
{
    const char *name = r->c->opts.tools;
    struct text text = {.bytes = NULL};
    json_error_t why;
    int rc = name ? text_of_file(r->c, name, &text) : 0;

    if (!name || rc)
        return rc;
    talk->tools = json_loadb(text.bytes, text.len, 0, &why);
    if (!json_is_array(talk->tools))
        rc = fail(r->c, EXIT_USAGE, NULL, name, "%s",
                  talk->tools ? "it has to be a JSON array of tools" : why.text);
    free(text.bytes);
    return rc;
}

/* What the user says, as a conversation that begins. */
static int read_message(struct run *r)
{
    struct cli *c = r->c;
    struct opts *o = &c->opts;
    struct text text = {.bytes = NULL};
    struct talk talk = {.messages = NULL};
    char *request = NULL;
    struct err e;
    int rc = text_read(c, 2, &text);

    if (rc)
        return rc;
    if (text.from_file)
        remove_newlines(&text);
    if (!text.len)
        rc = fail(c, EXIT_USAGE, NULL, "run", "the prompt is empty");
    if (!rc && talk_open(&talk, o->system, o->think, &e))
        rc = fail_err(c, &e, "run");
    if (!rc)
        rc = pictures_attach(c, r->path, &talk);
    if (!rc && talk_say(&talk, "user", text.bytes, text.len, &e))
        rc = fail_err(c, &e, "run");
    if (!rc)
        rc = read_tools(r, &talk);
    if (!rc && !(request = talk_request(&talk, true)))
        rc = fail(c, EXIT_MEMORY, NULL, "run", "no memory for the request");
    if (!rc &&
        turn_open_request(&r->turn, &r->by, request, strlen(request), o->stop, o->n_stop, &e))
        rc = fail_err(c, &e, "run");
    if (!rc && talk.system)
        turn_keep_long(&r->turn, 0);
    free(request);
    free(text.bytes);
    talk_close(&talk);
    return rc;
}

static int read_prompt(struct run *r, const char *path)
{
    struct cli *c = r->c;
    struct err e;
    int rc;

    if (r->by.chat)
        rc = read_message(r);
    else
        rc = prompt_read(c, path, 2, TEXT_PROMPT, &r->prompt);
    if (!rc && !r->by.chat &&
        turn_open_ids(&r->turn, &r->by, r->prompt.id, r->prompt.n, c->opts.stop, c->opts.n_stop,
                      &e))
        rc = fail_err(c, &e, "--stop");
    return rc ? rc : prompt_fits(c, r->turn.n_ids);
}

static int open_batch(struct run *r, const char *path)
{
    const struct opts *o = &r->c->opts;
    const char *other = o->ids        ? "--ids"
                        : o->n_images ? "--image: messages name their pictures (--vision)"
                        : o->json     ? "--json: the file has the objects"
                        : o->bos      ? "--bos"
                        : o->markup_set && o->markup             ? "--markup"
                        : opts_origin(o, "profile") == FROM_FLAG ? "--profile"
                                                                 : NULL;
    char name[SAY_OPTION];
    int rc;

    if (other)
        return fail(r->c, EXIT_USAGE, NULL, "--out", "it does not go with %s", other);
    if (o->tools)
        return fail(r->c, EXIT_USAGE, NULL, say_option(r->c, "tools", name),
                    "with --out the requests have the tools");
    rc = batch_open(&r->batch, r->c, path, &r->by.grammar);
    if (!rc)
        choose_checkpoints(r->c, path, BATCH_CHECKPOINTS);
    return rc;
}

int cmd_run(struct cli *c)
{
    struct run r = {.c = c, .by = {.c = c}};
    char path[PATH_MAX];
    int rc = model_find(c, c->opts.arg[1], path);

    r.path = path;
    if (!rc)
        rc = model_check(c, path);
    if (!rc)
        rc = pictures_check(c, path);
    if (!rc)
        rc = find_format(&r, path);
    if (!rc)
        rc = speaker_grammar(&r.by, c);
    if (!rc)
        rc = c->opts.out ? open_batch(&r, path) : read_prompt(&r, path);
    if (!rc && !r.batch)
        rc = draw_seed(c, &c->opts);
    if (!rc && !r.batch)
        rc = profile_begin(c, &r.profile);
    if (!rc && (!r.batch || batch_left(r.batch)))
        rc = open_and_generate(&r, path);
    else if (!rc)
        rc = batch_run(r.batch, &r.by);
    turn_close(&r.turn);
    speaker_close(&r.by);
    batch_close(r.batch);
    waste_tokenizer_close(r.own);
    free(r.prompt.id);
    return rc;
}
