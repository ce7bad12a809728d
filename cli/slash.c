#include "cli/slash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/nearest.h"
#include "cli/pictures.h"
#include "cli/prompt.h"
#include "cli/safe.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

/* What was asked for is said even where notes are not. */
__attribute__((format(printf, 2, 3))) static void tell(struct chat *chat, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    term_clear_line(&chat->c->term);
    say_text(text, n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1);
    fputc('\n', stderr);
}

static int refuse(struct chat *chat, const char *what, const char *why)
{
    return fail(chat->c, EXIT_USAGE, NULL, what, "%s", why);
}

/* Ids of the conversation as it stands, or as it would be asked. */
static int render(struct chat *chat, bool asks, waste_prompt **p, waste_prompt_info *info)
{
    char *request = talk_request(&chat->talk, asks);
    waste_status st;

    info->size = sizeof(*info);
    if (!request)
        return fail(chat->c, EXIT_MEMORY, NULL, "chat", "no memory for the request");
    st = waste_chat_render(chat->by.chat, request, strlen(request), p);
    free(request);
    if (st == WASTE_OK)
        st = waste_prompt_get_info(*p, info);
    return st == WASTE_OK ? 0 : fail_status(chat->c, st, NULL, "chat");
}

/* The same with a place for each row of its pictures: free(*ids). */
static int render_seen(struct chat *chat, int32_t **ids, size_t *n)
{
    waste_prompt *p = NULL;
    waste_prompt_info info;
    uint32_t rows[WASTE_IMAGES_MAX];
    struct err e;
    int rc = render(chat, false, &p, &info);

    *ids = NULL;
    *n = 0;
    if (!rc && info.n_images && pictures_see(chat->by.ctx, &info, rows, ids, n, &e))
        rc = fail_err(chat->c, &e, "chat");
    if (!rc && !info.n_images && info.n_ids) {
        *ids = malloc(info.n_ids * sizeof(**ids));
        if (!*ids)
            rc = fail(chat->c, EXIT_MEMORY, NULL, "chat", "no memory for %zu ids", info.n_ids);
        else
            memcpy(*ids, info.ids, (*n = info.n_ids) * sizeof(**ids));
    }
    waste_prompt_close(p);
    return rc;
}

/* ---- going back ---- */

static int retry(struct chat *chat, char *rest)
{
    (void)rest;
    talk_take_back(&chat->talk, "assistant");
    if (!talk_waits(&chat->talk))
        return refuse(chat, "/retry", "nothing was asked yet");
    if (chat->n_tries && chat->c->opts.temp <= 0)
        note(chat->c, "(the likeliest tokens again: /set temp 0.7 brings others)");
    return chat_answer(chat);
}

static int undo(struct chat *chat, char *rest)
{
    size_t left;

    (void)rest;
    talk_take_back(&chat->talk, "assistant");
    if (!talk_take_back(&chat->talk, "user"))
        return refuse(chat, "/undo", "nothing was said yet");
    left = json_array_size(chat->talk.messages);
    tell(chat, "(the last message and its answer are taken back; %zu message%s left)", left,
         left == 1 ? " is" : "s are");
    return 0;
}

enum { EDITED_MAX = 64 << 20 };

/* Put what was said in the editor's file, and read what is there afterwards. */
static char *edit_elsewhere(struct chat *chat, const char *editor, const char *text, size_t *len)
{
    const char *tmp = getenv("TMPDIR");
    char name[PATH_MAX], command[PATH_MAX + 300];
    char *edited = NULL;
    int fd, status = -1;
    bool written;
    FILE *f;

    snprintf(name, sizeof(name), "%s/waste-XXXXXX.txt", tmp && *tmp ? tmp : "/tmp");
    fd = mkstemps(name, 4);
    f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        refuse(chat, name, strerror(errno));
        return NULL;
    }
    written = fwrite(text, 1, *len, f) == *len && fputc('\n', f) != EOF;
    if (fclose(f) || !written) {
        refuse(chat, name, strerror(errno));
        unlink(name);
        return NULL;
    }
    snprintf(command, sizeof(command), "%.250s '%s'", editor, name);
    if (!strchr(name, '\''))
        status = system(command);
    if (!status) {
        struct err e;

        edited = file_text(name, EDITED_MAX, len, &e);
        if (!edited)
            fail_err(chat->c, &e, "/edit");
    } else {
        refuse(chat, "/edit", "the editor failed; the message is as it was");
    }
    unlink(name);
    return edited;
}

/* Does the conversation, as it would be asked, leave room for an answer? */
static int fits(struct chat *chat)
{
    waste_prompt *p = NULL;
    waste_prompt_info info;
    int rc = render(chat, true, &p, &info);

    if (!rc && info.n_ids > chat->by.ctx_max)
        rc = fail(chat->c, EXIT_USAGE, NULL, "/edit",
                  "%zu tokens with it, the context has %u positions; the old message is as it was",
                  info.n_ids, chat->by.ctx_max);
    waste_prompt_close(p);
    return rc;
}

static int ask_again(struct chat *chat, const char *text, size_t len)
{
    json_t *before;
    struct err e;
    int rc;

    while (len && strchr("\n\r", text[len - 1]))
        len--;
    if (!len)
        return refuse(chat, "/edit", "an empty message asks nothing; the old one is as it was");
    before = json_copy(chat->talk.messages);
    talk_attach_again(&chat->talk);
    talk_take_back(&chat->talk, "assistant");
    talk_take_back(&chat->talk, "user");
    rc = !before || talk_say(&chat->talk, "user", text, len, &e)
             ? fail(chat->c, EXIT_MEMORY, NULL, "/edit", "no memory for the message")
             : fits(chat);
    if (rc && before) {
        json_decref(chat->talk.messages);
        chat->talk.messages = before;
        return rc;
    }
    json_decref(before);
    chat->n_tries = 0;
    return rc ? rc : chat_answer(chat);
}

static int edit(struct chat *chat, char *rest)
{
    const char *editor = getenv("VISUAL"), *last;
    size_t len = 0;
    char *edited;
    int rc;

    last = talk_last(&chat->talk, "user", &len);
    if (!last)
        return refuse(chat, "/edit", "nothing was said yet");
    if (*rest)
        return ask_again(chat, rest, strlen(rest));
    /* A prefill is keys that are pressed, and those of control characters do something. */
    if (lines_edits(chat->lines) && safe_as_is(last, len)) {
        chat->prefill = malloc(len + sizeof("/edit "));
        if (chat->prefill)
            sprintf(chat->prefill, "/edit %s", last);
        return 0;
    }
    if (!editor || !*editor)
        editor = getenv("EDITOR");
    if (!editor || !*editor || !lines_edits(chat->lines))
        return refuse(chat, "/edit", "say `/edit TEXT` (or set $VISUAL or $EDITOR to an editor)");
    edited = edit_elsewhere(chat, editor, last, &len);
    rc = edited ? ask_again(chat, edited, len) : EXIT_RUNTIME;
    free(edited);
    return rc;
}

static int reset(struct chat *chat, char *rest)
{
    (void)rest;
    json_array_clear(chat->talk.messages);
    json_array_clear(chat->talk.attached);
    tell(chat, "(a new conversation%s)", chat->talk.system ? " with the same system prompt" : "");
    return 0;
}

/* ---- files ---- */

/* The session to where the conversation is: after /undo and /reset it is further. */
static int rewind_session(struct chat *chat)
{
    int32_t *ids = NULL;
    size_t n = 0, reused;
    int rc =
        json_array_size(chat->talk.messages) || chat->talk.system ? render_seen(chat, &ids, &n) : 0;

    if (!rc && n)
        waste_store_resume(chat->by.store, chat->by.session, ids, n, NULL, &reused);
    else if (!rc)
        waste_session_reset(chat->by.session);
    free(ids);
    return rc;
}

static void tell_state(struct chat *chat, const char *path)
{
    size_t n = json_array_size(chat->talk.messages), pos = waste_session_pos(chat->by.session);

    tell(chat, "(%s: %zu message%s, and the state after %zu token%s)", path, n, plural(n), pos,
         plural(pos));
}

static int save(struct chat *chat, char *rest)
{
    char *note_text;
    waste_status st;
    int rc;

    if (!*rest)
        return refuse(chat, "/save", "say where: /save FILE");
    rc = rewind_session(chat);
    if (rc)
        return rc;
    note_text = talk_note(&chat->talk, chat->path);
    if (!note_text)
        return fail(chat->c, EXIT_MEMORY, NULL, rest, "no memory for the conversation");
    st = waste_session_save(chat->by.session, rest, note_text, strlen(note_text));
    free(note_text);
    if (st != WASTE_OK)
        return fail_status(chat->c, st, chat->by.ctx, rest);
    tell_state(chat, rest);
    return 0;
}

/* What a state's file has beside the state; free() it. */
static int read_note(struct chat *chat, const char *path, char **out, size_t *len)
{
    waste_state_info info = {.size = sizeof(info)};
    waste_status st = waste_state_read(path, &info, NULL, 0);
    const char *detail;
    char *text = NULL;

    if (st == WASTE_OK || (st == WASTE_E_ARG && info.note_bytes)) {
        *len = info.note_bytes;
        text = malloc(*len + 1);
        if (!text)
            return fail(chat->c, EXIT_MEMORY, NULL, path, "no memory for %zu bytes", *len);
        st = waste_state_read(path, &info, text, *len);
    }
    if (st == WASTE_OK) {
        *out = text;
        return 0;
    }
    detail = waste_error_detail(NULL);
    free(text);
    return fail(chat->c, exit_of_status(st), NULL, path, "%s",
                detail ? detail : waste_strerror(st));
}

/* A state of other weights or settings still has its conversation. A damaged file has nothing. */
static int load(struct chat *chat, char *rest)
{
    struct talk talk = {0};
    struct err e;
    char *text = NULL;
    size_t len = 0, n;
    waste_status st;
    int rc;

    if (!*rest)
        return refuse(chat, "/load", "say what: /load FILE");
    rc = read_note(chat, rest, &text, &len);
    if (rc)
        return rc;
    rc = talk_from_note(&talk, text, len, &e);
    free(text);
    if (rc)
        return fail_err(chat->c, &e, rest);
    st = waste_session_load(chat->by.session, rest);
    if (st != WASTE_OK && st != WASTE_E_FORMAT && st != WASTE_E_LIMIT) {
        talk_close(&talk);
        return fail_status(chat->c, st, chat->by.ctx, rest);
    }
    talk_close(&chat->talk);
    chat->talk = talk;
    n = json_array_size(talk.messages);
    chat->n_tries = 0;
    if (st == WASTE_OK)
        tell_state(chat, rest);
    else
        tell(chat,
             "(%s: %zu message%s, but not the state: %s. The model reads the conversation again "
             "before its next answer.)",
             rest, n, plural(n), waste_error_detail(chat->by.ctx));
    return 0;
}

/* ---- settings ---- */

static int reread_later(struct chat *chat)
{
    if (json_array_size(chat->talk.messages))
        note(chat->c, "(the model reads the whole conversation again before its next answer)");
    return 0;
}

static int set_system(struct chat *chat, char *rest)
{
    struct err e;

    if (!*rest) {
        tell(chat, "%s", chat->talk.system ? chat->talk.system : "(no system prompt)");
        return 0;
    }
    if (talk_set(&chat->talk.system, strcmp(rest, "\"\"") ? rest : NULL, &e))
        return fail_err(chat->c, &e, "/system");
    return reread_later(chat);
}

static int think(struct chat *chat, char *rest)
{
    static const char *const efforts[] = {"low", "high", "max", "none"};
    const char *to = !strcmp(rest, "on") ? "low" : !strcmp(rest, "off") ? "none" : rest;
    struct err e;
    bool known = false;

    if (!chat->by.format.has_thinking)
        return refuse(chat, "/think", "the format of this model has no thinking");
    if (!*rest) {
        tell(chat, "thinking %s", chat->talk.effort ? chat->talk.effort : "low");
        return 0;
    }
    for (unsigned i = 0; i < N_ELEMS(efforts); i++)
        known |= !strcmp(to, efforts[i]);
    if (!known)
        return refuse(chat, "/think", "it is one of low, high, max, none, on, off");
    if (talk_set(&chat->talk.effort, to, &e))
        return fail_err(chat->c, &e, "/think");
    return reread_later(chat);
}

static int set(struct chat *chat, char *rest)
{
    struct opts *o = &chat->c->opts;
    char *value = rest + strcspn(rest, " \t=");
    struct err e;

    if (!*rest) {
        tell(chat,
             "temp %g, top-p %g, top-k %lld, min-p %g, seed %llu, n %lld\nrepeat-penalty %g, "
             "repeat-window %lld, presence-penalty %g, frequency-penalty %g",
             o->temp, o->top_p, (long long)(o->top_k > 0 ? o->top_k : 0), o->min_p,
             (unsigned long long)o->seed, (long long)o->n_tokens, o->repeat_penalty,
             (long long)(o->repeat_window < 0 ? 64 : o->repeat_window), o->presence_penalty,
             o->frequency_penalty);
        if (o->think_limit >= 0)
            tell(chat, "think-limit %lld", (long long)o->think_limit);
        return 0;
    }
    if (*value)
        *value++ = '\0';
    value += strspn(value, " \t=");
    if (!*value)
        return refuse(chat, "/set", "say what and how much: /set temp 0.7");
    if (!strcmp(rest, "think-limit") && !chat->by.format.has_thinking)
        return refuse(chat, "/set", "the format of this model has no thinking");
    if (opts_set(o, rest, value, &e))
        return fail_err(chat->c, &e, "/set");
    if (!strcmp(rest, "seed"))
        chat->n_tries = 0; /* its draws begin anew */
    if (draw_seed(chat->c, o))
        return EXIT_RUNTIME;
    banner_sampling(chat->c);
    if (o->quiet && o->temp > 0 && !o->seed_set)
        tell(chat, "seed %llu", (unsigned long long)o->seed);
    return 0;
}

/* ---- looking ---- */

static int tokens(struct chat *chat, char *rest)
{
    size_t n_messages = json_array_size(chat->talk.messages), n = 0;
    int32_t *ids = NULL;
    int rc;

    (void)rest;
    if (!n_messages && !chat->talk.system) {
        tell(chat, "0 of %u positions", chat->by.ctx_max);
        return 0;
    }
    rc = render_seen(chat, &ids, &n);
    if (!rc)
        tell(chat, "%zu of %u positions, %zu message%s; %zu in the session", n, chat->by.ctx_max,
             n_messages, plural(n_messages), waste_session_pos(chat->by.session));
    free(ids);
    return rc;
}

void chat_stats(struct chat *chat)
{
    waste_store_info kept = {.size = sizeof(kept)};
    waste_engine engine = {.size = sizeof(engine)};
    waste_memplan mem = {0};
    struct profile *p = &chat->profile;
    char memory[UNITS_TEXT], files[UNITS_TEXT];
    struct tally all = p->prefill;
    bool quiet = chat->c->opts.quiet;

    typedef unsigned long long ull;

    chat->c->opts.quiet = false; /* it was asked for */
    waste_engine_info(chat->by.ctx, &engine);
    waste_memory_used(chat->by.ctx, &mem);
    p->trunk = mem.trunk_bytes;
    p->record = engine.frame_bytes;
    tally_add(&all, &p->decode);
    tell(chat, "answers  %llu", (ull)chat->n_answers);
    tell(chat, "prompts  %llu token%s: %llu kept, %llu read, %.2f tok/s", (ull)chat->n_prompt,
         plural(chat->n_prompt), (ull)chat->n_reused, (ull)chat->n_fed,
         per_second((double)chat->n_fed, p->prefill.c.sec_prefill + p->prefill.c.sec_decode));
    tell(chat, "answered %llu token%s, %.2f tok/s", (ull)chat->n_generated,
         plural(chat->n_generated),
         per_second((double)p->decode.c.decode_tokens,
                    p->decode.c.sec_prefill + p->decode.c.sec_decode));
    if (waste_store_get_info(chat->by.store, &kept) == WASTE_OK)
        tell(chat, "states   %u in memory (%s), %u in files (%s)", kept.n_memory,
             size_text(memory, kept.memory_bytes), kept.n_files, size_text(files, kept.file_bytes));
    tally_lines(chat->c, &all);
    profile_lines(chat->c, p);
    chat->c->opts.quiet = quiet;
}

static int stats(struct chat *chat, char *rest)
{
    (void)rest;
    chat_stats(chat);
    return 0;
}

/* ---- pictures ---- */

static int image(struct chat *chat, char *rest)
{
    struct cli *c = chat->c;
    char whole[PATH_MAX];
    waste_image_info info;
    struct err e;
    int rc;

    if (!c->opts.vision || !chat->by.format.has_images)
        return fail(c, EXIT_UNSUPPORTED, NULL, "/image", "%s",
                    chat->by.format.has_images
                        ? "the vision tower was not asked for: waste chat --vision"
                        : "the format of this model has no pictures");
    if (!*rest)
        return refuse(chat, "/image", "say which: /image FILE");
    if (talk_pictures(&chat->talk) == WASTE_IMAGES_MAX)
        return fail(c, EXIT_USAGE, NULL, "/image",
                    "the conversation has %d pictures, and cannot have more", WASTE_IMAGES_MAX);
    if (!realpath(rest, whole))
        return fail(c, EXIT_RUNTIME, NULL, rest, "%s", strerror(errno));
    rc = picture_look(c, chat->path, whole, &info);
    if (rc)
        return rc;
    if (talk_attach(&chat->talk, whole, info.width, info.height, &e))
        return fail_err(c, &e, "/image");
    tell(chat, "(%s: %u x %u, %u positions; it goes with the next message)", rest, info.width,
         info.height, info.n_rows);
    return 0;
}

/* ---- the table ---- */

static int quit(struct chat *chat, char *rest)
{
    (void)rest;
    chat->leave = true;
    return 0;
}

static int help(struct chat *chat, char *rest);

static const struct {
    const char *name, *args;
    int (*run)(struct chat *chat, char *rest);
    bool takes;
    const char *help;
} commands[] = {
    {"retry", "", retry, false, "answer the last message again"},
    {"edit", "[TEXT]", edit, true, "change the last message, and let it be answered"},
    {"undo", "", undo, false, "take back the last message and its answer"},
    {"reset", "", reset, false, "a new conversation; the system prompt stays"},
    {"system", "[TEXT]", set_system, true, "set the system prompt (\"\" for none), or show it"},
    {"think", "[EFFORT]", think, true, "how much to think: none, low, high, max; on, off"},
    {"set", "[NAME VALUE]", set, true, "how tokens are chosen: /set temp 0.7"},
    {"save", "FILE", save, true, "the conversation, and the model's state after it"},
    {"load", "FILE", load, true, "go on with one that was saved"},
    {"tokens", "", tokens, false, "how much of the context is used"},
    {"stats", "", stats, false, "where the time went, and what was kept"},
    {"image", "FILE", image, true, "a picture for the next message"},
    {"help", "", help, false, "this"},
    {"quit", "", quit, false, "leave; so does the end of input"},
};

static int help(struct chat *chat, char *rest)
{
    (void)rest;
    for (size_t i = 0; i < N_ELEMS(commands); i++) {
        char left[40];

        snprintf(left, sizeof(left), "/%s %s", commands[i].name, commands[i].args);
        tell(chat, "%-18s %s", left, commands[i].help);
    }
    tell(chat, "\n\"\"\" begins a message of several lines, and ends it; a \\ at the end of a line "
               "goes on.\n// begins a message with a slash. Ctrl-C stops an answer, a second one "
               "leaves.");
    return 0;
}

static int unknown(struct chat *chat, const char *name)
{
    const char *names[N_ELEMS(commands)], *near;

    for (size_t i = 0; i < N_ELEMS(commands); i++)
        names[i] = commands[i].name;
    near = nearest_name(name, names, N_ELEMS(commands));
    return fail(chat->c, EXIT_USAGE,
                "/help lists the commands; // begins a message that has a slash in front.", "chat",
                "unknown command /%s%s%s%s", name, near ? " (did you mean /" : "", near ? near : "",
                near ? "?)" : "");
}

int chat_command(struct chat *chat, char *line)
{
    char *name = line + 1, *rest = name + strcspn(name, " \t\n"), *end = rest + strlen(rest);

    if (*rest)
        *rest++ = '\0';
    rest += strspn(rest, " \t\n");
    while (end > rest && strchr(" \t\n", end[-1]))
        *--end = '\0';
    for (size_t i = 0; i < N_ELEMS(commands); i++) {
        if (strcmp(commands[i].name, name) != 0)
            continue;
        if (*rest && !commands[i].takes)
            return fail(chat->c, EXIT_USAGE, NULL, line, "nothing stands behind it");
        return commands[i].run(chat, rest);
    }
    return unknown(chat, name);
}
