#include "model/chat.h"

#include "base/json.h"
#include "model/chat_grammar.h"
#include "model/plain.h"
#include "model/xtml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define CHAT_JSON_BYTES_MAX ((size_t)1 << 20)

static const char *const marker_texts[N_MARKERS] = {
    [MARK_OPEN] = "<|open|>",
    [MARK_CLOSE] = "<|close|>",
    [MARK_SEP] = "<|sep|>",
    [MARK_END_OF_MSG] = "<|end_of_msg|>",
    [MARK_MEDIA_BEGIN] = "<|media_begin|>",
    [MARK_MEDIA_CONTENT] = "<|media_content|>",
    [MARK_MEDIA_PAD] = "<|media_pad|>",
    [MARK_MEDIA_END] = "<|media_end|>",
    [MARK_IM_USER] = "<|im_user|>",
    [MARK_IM_ASSISTANT] = "<|im_assistant|>",
    [MARK_IM_SYSTEM] = "<|im_system|>",
    [MARK_IM_MIDDLE] = "<|im_middle|>",
    [MARK_IM_END] = "<|im_end|>",
    [MARK_CALLS_BEGIN] = "<|tool_calls_section_begin|>",
    [MARK_CALLS_END] = "<|tool_calls_section_end|>",
    [MARK_CALL_BEGIN] = "<|tool_call_begin|>",
    [MARK_CALL_ARGUMENT] = "<|tool_call_argument_begin|>",
    [MARK_CALL_END] = "<|tool_call_end|>",
};

static const char *const role_names[3] = {"system", "user", "assistant"};

static const struct chat_turn k2_turns[3] = {
    {STR("<|im_system|>system<|im_middle|>"), STR("<|im_end|>")},
    {STR("<|im_user|>user<|im_middle|>"), STR("<|im_end|>")},
    {STR("<|im_assistant|>assistant<|im_middle|>"), STR("<|im_end|>")},
};

struct str chat_marker_text(enum marker m)
{
    return str_of(marker_texts[m]);
}

/* The first of these that is no control token; N_MARKERS: all are. */
static enum marker missing(const struct chat *c, enum marker from, enum marker to)
{
    for (unsigned m = from; m <= (unsigned)to; m++)
        if (c->ids[m] < 0)
            return (enum marker)m;
    return N_MARKERS;
}

/* ---- chat.json ---- */

/* Every <|...|> of a template is one control token. *first: the first one's id, -1: there is none.
 */
static int check_markers(const struct chat *c, const char *where, struct str text, int32_t *first,
                         struct err *e)
{
    char shown[64];

    *first = -1;
    for (size_t i = 0, end; i + 1 < text.len; i++) {
        int32_t id;

        if (text.s[i] != '<' || text.s[i + 1] != '|')
            continue;
        for (end = i + 2; end + 1 < text.len && memcmp(text.s + end, "|>", 2); end++)
            ;
        if (end + 1 >= text.len)
            break;
        id = tokenizer_special_id(c->tokenizer, text.s + i, end + 2 - i);
        if (id < 0)
            return err_set(e, ERR_FORMAT, "%s: %s is no control token of specials.json", where,
                           json_printable(shown, sizeof(shown), text.s + i, end + 2 - i));
        if (*first < 0)
            *first = id;
        i = end + 1;
    }
    return 0;
}

static int read_turn(struct chat *c, struct chat_turn *turn, const json_t *root, const char *role,
                     struct err *e)
{
    const json_t *v = json_object_get(root, role);
    struct str *to[2] = {&turn->before, &turn->after};
    int32_t first = -1;

    if (!v)
        return 0;
    if (json_array_size(v) != 2 || !json_is_string(json_array_get(v, 0)) ||
        !json_is_string(json_array_get(v, 1)))
        return err_set(e, ERR_FORMAT, "%s must be a pair of texts", role);
    for (unsigned i = 0; i < 2; i++) {
        const json_t *text = json_array_get(v, i);

        *to[i] = (struct str){json_string_value(text), json_string_length(text)};
        if (check_markers(c, role, *to[i], &first, e))
            return e->code;
    }
    if (turn == &c->turns[ROLE_ASSISTANT])
        c->end_id = first;
    return 0;
}

static int read_turns(struct chat *c, const json_t *root, struct err *e)
{
    const json_t *open = json_object_get(root, "open");
    int32_t first;

    if (!json_is_object(root))
        return err_set(e, ERR_FORMAT, "must be an object");
    for (unsigned role = 0; role < 3; role++)
        if (read_turn(c, &c->turns[role], root, role_names[role], e))
            return e->code;
    for (unsigned role = ROLE_USER; role <= ROLE_ASSISTANT; role++)
        if (!c->turns[role].before.s)
            return err_set(e, ERR_FORMAT, "%s is missing", role_names[role]);
    if (c->end_id < 0)
        return err_set(e, ERR_FORMAT, "assistant: no <|...|> ends it");
    if (!json_is_string(open) || !json_string_length(open))
        return err_set(e, ERR_FORMAT, "open must be a text with something in it");
    c->open = (struct str){json_string_value(open), json_string_length(open)};
    return check_markers(c, "open", c->open, &first, e);
}

/* The texts outlive the JSON that they came from. */
static int keep(struct chat *c, struct err *e)
{
    struct str *texts[7] = {&c->open};
    size_t at = 0;

    for (unsigned i = 0; i < 3; i++) {
        texts[2 * i + 1] = &c->turns[i].before;
        texts[2 * i + 2] = &c->turns[i].after;
    }
    for (unsigned i = 0; i < 7; i++)
        buf_str(&c->text, *texts[i]);
    if (c->text.failed)
        return err_set(e, ERR_NOMEM, "chat.json");
    for (unsigned i = 0; i < 7; i++) {
        if (texts[i]->s)
            texts[i]->s = c->text.s + at;
        at += texts[i]->len;
    }
    return 0;
}

/* *found: there is one, in the container. */
static int read_chat_json(struct chat *c, const char *path, bool *found, struct err *e)
{
    int dir = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    json_t *root = NULL;
    int rc = 0;

    *found = false;
    if (path && dir < 0)
        return err_sys(e, errno, "%s", path);
    if (dir < 0)
        return 0;
    *found = !no_such_entry(dir, "chat.json");
    if (*found)
        rc = json_parse_file(&root, dir, "chat.json", CHAT_JSON_BYTES_MAX, e);
    close(dir);
    if (*found && !rc) {
        rc = read_turns(c, root, e) || keep(c, e) ? e->code : 0;
        json_decref(root);
        if (rc)
            return err_wrap(e, "chat.json");
    }
    return rc;
}

/* ---- which format ---- */

static bool says_what_k2_says(const struct chat *c)
{
    for (unsigned i = 0; i < 3; i++)
        if (!str_is(c->turns[i].before, k2_turns[i].before) ||
            !str_is(c->turns[i].after, k2_turns[i].after))
            return false;
    return str_is(c->open, k2_turns[ROLE_ASSISTANT].before);
}

static void become_k2(struct chat *c)
{
    memcpy(c->turns, k2_turns, sizeof(c->turns));
    c->open = k2_turns[ROLE_ASSISTANT].before;
    c->end_id = c->ids[MARK_IM_END];
    c->format = WASTE_CHAT_K2;
    c->has_tools = missing(c, MARK_CALLS_BEGIN, MARK_CALL_END) == N_MARKERS;
}

static int choose(struct chat *c, const char *dir, struct err *e)
{
    enum marker no_xtml = missing(c, MARK_OPEN, MARK_END_OF_MSG);
    enum marker no_k2 = missing(c, MARK_IM_USER, MARK_IM_END);
    bool found;

    if (no_xtml == N_MARKERS) {
        c->format = WASTE_CHAT_XTML;
        c->end_id = c->ids[MARK_END_OF_MSG];
        c->has_tools = true;
        c->has_images = missing(c, MARK_MEDIA_BEGIN, MARK_MEDIA_END) == N_MARKERS;
        return 0;
    }
    if (read_chat_json(c, dir, &found, e))
        return e->code;
    if (no_k2 == N_MARKERS && (!found || says_what_k2_says(c))) {
        become_k2(c);
        return 0;
    }
    c->format = WASTE_CHAT_PLAIN;
    if (found)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "no chat format: XTML: %s is no control token; chat.json: there is none; K2: %s "
                   "is no control token",
                   marker_texts[no_xtml], marker_texts[no_k2]);
}

/* <|close|>think<|sep|>, each by itself, as a prompt would have it. */
static int find_think_close(struct chat *c, struct err *e)
{
    size_t n = 0;

    c->think_close[0] = c->ids[MARK_CLOSE];
    if (tokenizer_encode(c->tokenizer, TOKEN_CONTENT, "think", 5, c->think_close + 1,
                         THINK_CLOSE_MAX - 2, &n, e))
        return e->code;
    c->think_close[1 + n] = c->ids[MARK_SEP];
    c->n_think_close = (unsigned)n + 2;
    return 0;
}

int chat_open(struct chat **out, const struct tokenizer *t, const char *dir,
              const struct thinking_rules *rules, struct err *e)
{
    struct chat *c = calloc(1, sizeof(*c));

    if (!c)
        return err_set(e, ERR_NOMEM, "chat");
    c->tokenizer = t;
    c->rules = *rules;
    c->end_id = -1;
    for (unsigned m = 0; m < N_MARKERS; m++)
        c->ids[m] = tokenizer_special_id(t, marker_texts[m], strlen(marker_texts[m]));
    if (choose(c, dir, e) || (c->format == WASTE_CHAT_XTML && find_think_close(c, e))) {
        chat_close(c);
        return e->code;
    }
    if (c->format != WASTE_CHAT_XTML)
        c->rules.effort = "none";
    *out = c;
    return 0;
}

void chat_close(struct chat *c)
{
    if (!c)
        return;
    buf_release(&c->text);
    free(c);
}

/* ---- a request ---- */

static int render(struct prompt *p, const struct chat *c, const struct conversation *talk,
                  struct err *e)
{
    p->effort = talk->effort;
    p->may_call = (talk->tools || talk->tools_later) && talk->choice != CHOICE_NONE;
    p->must_call = talk->choice == CHOICE_REQUIRED;
    buf_str(&p->must_call_name, talk->choice_name);
    memcpy(p->note, talk->note, sizeof(p->note));
    chat_grammar_keep(p, talk);
    if (c->format == WASTE_CHAT_XTML ? xtml_render(p, c, talk, e) : plain_render(p, c, talk, e))
        return e->code;
    return prompt_encode(p, c->tokenizer, c->ids[MARK_MEDIA_PAD], e);
}

int chat_render(const struct chat *c, struct prompt **out, const char *json, size_t len,
                struct err *e)
{
    struct conversation talk = {0};
    struct prompt *p = calloc(1, sizeof(*p));
    int rc = p ? 0 : err_set(e, ERR_NOMEM, "prompt");

    if (p)
        p->chat = c;
    if (!rc)
        rc = conversation_read(&talk, json, len, &c->rules, e);
    if (!rc)
        rc = render(p, c, &talk, e);
    conversation_release(&talk);
    if (rc)
        prompt_close(p);
    else
        *out = p;
    return rc;
}

void prompt_close(struct prompt *p)
{
    if (!p)
        return;
    prompt_release(p);
    free(p);
}
