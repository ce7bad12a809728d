/* cli/cmd_chat.c - a conversation on a terminal, or in a pipe: a message in, an answer out. */
#include "cli/cmd.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/slash.h"
#include "cli/load.h"
#include "cli/pictures.h"
#include "cli/places.h"

enum { CHECKPOINTS = 4 };

/* ---- showing an answer ---- */

static bool show(struct turn *t, const waste_item *item, double ms)
{
    struct chat *chat = t->user;

    (void)item, (void)ms;
    turn_show_reasoning(t);
    return !t->answer.len || chat->c->opts.json ||
           term_print_text(&chat->c->term, t->answer.text, t->answer.len);
}

static json_t *answer_json(struct turn *t, const json_t *message)
{
    json_t *o = json_pack("{s:s, s:o, s:I, s:I, s:I, s:f, s:f}", "stop", end_name(t->end), "text",
                          json_text(buf_all(&t->answer.whole).s, t->answer.whole.n),
                          "prompt_tokens", (json_int_t)t->n_ids, "reused_tokens",
                          (json_int_t)t->n_reused, "generated_tokens", (json_int_t)t->n_generated,
                          "prefill_s", t->prefill_s, "decode_s", t->decode_s);
    json_t *reasoning = json_object_get(message, "reasoning_content");

    if (o && reasoning)
        json_object_set(o, "reasoning", reasoning);
    if (o && t->by->c->opts.temp > 0)
        json_object_set_new(o, "seed", json_u64(t->by->c->opts.seed));
    return o;
}

/* What people want to know about the end of an answer. */
static void say_end(struct chat *chat, const struct turn *t)
{
    struct cli *c = chat->c;

    if (t->end == END_LENGTH)
        note(c, "(cut at %u token%s: /set n N allows more; say \"go on\" to let it)",
             t->n_generated, plural(t->n_generated));
    else if (t->end == END_CONTEXT)
        note(c, "(the context of %u positions is full: /undo, /reset, or another --ctx)",
             chat->by.ctx_max);
    else if (t->end == END_INTERRUPTED && t->n_generated)
        note(c, "(stopped; Ctrl-C again leaves)");
    else if (t->end == END_INTERRUPTED)
        note(c, "(stopped before an answer: /retry asks again; Ctrl-C again leaves)");
    if (c->opts.verbose)
        note(c, "(prompt %zu token%s, %zu of them kept, %.2f s; answer %u token%s, %.2f s)",
             t->n_ids, plural(t->n_ids), t->n_reused, t->prefill_s, t->n_generated,
             plural(t->n_generated), t->decode_s);
}

static void count(struct chat *chat, const struct turn *t)
{
    struct tally prefill = tally_between(&t->begun, &t->fed);
    struct tally decode = tally_between(&t->fed, &t->ended);

    tally_add(&chat->profile.prefill, &prefill);
    tally_add(&chat->profile.decode, &decode);
    chat->n_answers++;
    chat->n_prompt += t->n_ids;
    chat->n_reused += t->n_reused;
    chat->n_fed += t->n_fed;
    chat->n_generated += t->n_generated;
}

/* The answer is in: into the conversation with it, however it ended, if there is any of it. */
static int conclude(struct chat *chat, struct turn *t)
{
    struct cli *c = chat->c;
    json_t *message = t->n_generated ? turn_message(t) : NULL;
    int rc = 0;

    turn_end_reasoning(t);
    count(chat, t);
    if (t->end == END_INTERRUPTED) {
        chat->interrupted = true;
        term_go_on();
    }
    if (!c->opts.json && t->n_generated && t->end != END_OUTPUT && !term_print(&c->term, "\n", 1))
        t->end = END_OUTPUT;
    if (c->opts.json && t->end != END_ERROR && say_json(c, answer_json(t, message)))
        t->end = END_OUTPUT;
    if (message)
        rc = json_array_append_new(chat->talk.messages, message);
    if (rc)
        return fail(c, EXIT_MEMORY, NULL, "chat", "no memory for the answer");
    speaker_keep(&chat->by, 0);
    say_end(chat, t);
    if (t->end == END_ERROR)
        return turn_fail(t, "chat");
    if (t->end == END_OUTPUT)
        chat->leave = true;
    return t->end == END_OUTPUT ? (c->opts.json ? EXIT_RUNTIME : fail_output(c)) : 0;
}

static uint32_t most_tokens(const struct chat *chat)
{
    return chat->c->opts.n_tokens ? (uint32_t)chat->c->opts.n_tokens : UINT32_MAX;
}

int chat_answer(struct chat *chat)
{
    struct opts *o = &chat->c->opts;
    char *request = talk_request(&chat->talk, true);
    struct turn t = {0};
    struct err e;
    int rc;

    if (!request)
        return fail(chat->c, EXIT_MEMORY, NULL, "chat", "no memory for the request");
    term_cancels(chat->by.ctx, NULL);
    if (turn_open_request(&t, &chat->by, request, strlen(request), o->stop, o->n_stop, &e) ||
        speaker_sampling(&chat->by, &t, o, chat->n_tries++, &e)) {
        rc = fail_err(chat->c, &e, "chat");
    } else {
        if (chat->talk.system)
            turn_keep_long(&t, 0);
        t.n_max = most_tokens(chat);
        t.show = show;
        t.user = chat;
        turn_run(&t);
        rc = conclude(chat, &t);
    }
    term_cancels(NULL, NULL);
    turn_close(&t);
    free(request);
    return rc;
}

int chat_ask(struct chat *chat, const char *text, size_t len)
{
    struct err e;

    if (talk_take_back(&chat->talk, "user"))
        note(chat->c, "(in the place of the message before, which was not answered)");
    if (talk_say(&chat->talk, "user", text, len, &e))
        return fail_err(chat->c, &e, "chat");
    chat->n_tries = 0;
    return chat_answer(chat);
}

/* ---- the loop ---- */

/* An interrupt at the prompt. Returns whether it was the second in a row. */
static bool interrupted_again(struct chat *chat)
{
    if (chat->interrupted)
        return true;
    chat->interrupted = true;
    term_go_on();
    note(chat->c, "(Ctrl-C again leaves, and so does the end of input)");
    return false;
}

static void begin_anew(struct chat *chat)
{
    chat->interrupted = false;
    term_go_on();
}

static int one_message(struct chat *chat, char *text, size_t len)
{
    size_t white = strspn(text, " \t\n");

    if (white == len)
        return 0;
    if (text[0] == '/' && text[1] == '/') /* for a message that begins with a slash */
        return chat_ask(chat, text + 1, len - 1);
    if (text[0] == '/')
        return chat_command(chat, text);
    return chat_ask(chat, text, len);
}

/* Until the end of input. A failure does not end a conversation; in a pipe the first one is its
 * exit code. */
static int loop(struct chat *chat)
{
    int rc = 0, worst = 0;

    while (!chat->leave) {
        char *text;
        size_t len;
        enum lines_got got = lines_read(chat->lines, chat->prefill, &text, &len);

        free(chat->prefill);
        chat->prefill = NULL;
        if (got == LINES_INTERRUPT && interrupted_again(chat))
            return EXIT_INTERRUPTED;
        if (got == LINES_ERROR)
            return fail(chat->c, EXIT_RUNTIME, NULL, "standard input", "%s", strerror(errno));
        if (got == LINES_END)
            break;
        if (got == LINES_CLEARED)
            begin_anew(chat);
        if (got == LINES_INTERRUPT || got == LINES_CLEARED)
            continue;
        chat->interrupted = false;
        rc = one_message(chat, text, len);
        if (!worst)
            worst = rc;
        free(text);
    }
    return isatty(0) && !(chat->leave && rc) ? 0 : worst;
}

/* ---- opening ---- */

static int open_lines(struct chat *chat)
{
    char path[PATH_MAX], why[256];
    const char *history = NULL;
    struct err e;

    if (chat->c->opts.history && place_of(PLACE_STATE, "history", path)) {
        make_parents(path);
        history = path;
    }
    if (lines_open(&chat->lines, history, why, &e))
        return fail_err(chat->c, &e, "chat");
    if (*why)
        note(chat->c, "waste: warning: no history: %s", why);
    return 0;
}

/* Where states are kept, unless nobody wants that; NULL. */
static const char *states_dir(const struct cli *c, char room[PATH_MAX])
{
    if (!c->opts.states || c->opts.state_dir)
        return c->opts.states ? c->opts.state_dir : NULL;
    return place_of(PLACE_CACHE, "states", room) ? room : NULL;
}

static int open_speaker(struct chat *chat, const char *path)
{
    struct cli *c = chat->c;
    char why[256], dir[PATH_MAX];
    int rc = speaker_open(&chat->by, c);

    if (!rc)
        rc = ids_check(c, chat->by.ctx, NULL, 0);
    if (!rc)
        rc = speaker_chat(&chat->by, path, NULL, why);
    if (!rc && !chat->by.chat)
        rc = fail(c, EXIT_UNSUPPORTED, "`waste run` continues texts with it.", path, "%s", why);
    return rc ? rc : speaker_store(&chat->by, states_dir(c, dir));
}

/* Before a model is loaded for minutes: does it speak at all? */
static int check_speaks(struct cli *c, const char *path)
{
    struct speaker s = {.c = c};
    waste_tokenizer *t;
    waste_status st = waste_tokenizer_open(path, &t);
    char why[256];
    int rc;

    if (st != WASTE_OK)
        return fail_tokenizer(c, st, path);
    s.tokenizer = t;
    rc = speaker_chat(&s, path, NULL, why);
    if (!rc && !s.chat)
        rc = fail(c, EXIT_UNSUPPORTED, "`waste run` continues texts with it.", path, "%s", why);
    if (!rc)
        rc = speaker_check_thinking(&s);
    speaker_close(&s);
    waste_tokenizer_close(t);
    return rc;
}

static void greet(struct chat *chat)
{
    if (chat->c->opts.verbose)
        model_banner(chat->c, chat->by.ctx);
    banner_sampling(chat->c);
    note(chat->c,
         "chat     %s format, %u positions; /help lists the commands, Ctrl-C stops an answer",
         chat->by.format.name, chat->by.ctx_max);
    note(chat->c, "%s", "");
}

static int talk(struct chat *chat, const char *path)
{
    int rc = model_open(chat->c, path, &chat->by.ctx);

    if (rc)
        return rc;
    rc = open_speaker(chat, path);
    if (!rc)
        rc = open_lines(chat);
    if (!rc) {
        greet(chat);
        term_cancels(NULL, NULL);
        rc = loop(chat);
        if (chat->c->opts.profile)
            chat_stats(chat);
        model_learn(chat->c, chat->by.ctx, path);
    }
    lines_close(chat->lines);
    speaker_close(&chat->by);
    model_close(chat->by.ctx);
    return rc;
}

int cmd_chat(struct cli *c)
{
    struct chat chat = {.c = c};
    char path[PATH_MAX];
    struct err e;
    int rc = model_find(c, c->opts.arg[1], path);

    chat.path = path;
    if (!rc)
        rc = model_check(c, path);
    if (!rc)
        rc = check_speaks(c, path);
    if (!opts_origin(&c->opts, "learn") && !opts_origin(&c->opts, "no-learn"))
        c->opts.learn = true;
    if (!rc)
        rc = draw_seed(c, &c->opts);
    if (!rc && talk_open(&chat.talk, c->opts.system, c->opts.think, &e))
        rc = fail_err(c, &e, "chat");
    if (!rc)
        rc = pictures_attach(c, path, &chat.talk);
    if (!rc)
        rc = profile_begin(c, &chat.profile);
    if (!rc) {
        choose_checkpoints(c, path, CHECKPOINTS);
        rc = talk(&chat, path);
    }
    talk_close(&chat.talk);
    free(chat.prefill);
    return rc;
}
