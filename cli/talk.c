#include "cli/talk.h"

#include <stdlib.h>
#include <string.h>

#include "cli/say.h"

int talk_set(char **text, const char *to, struct err *e)
{
    char *copy = to ? strdup(to) : NULL;

    if (to && !copy)
        return err_set(e, ERR_NOMEM, "a text of %zu bytes", strlen(to));
    free(*text);
    *text = copy;
    return 0;
}

int talk_open(struct talk *t, const char *system, const char *effort, struct err *e)
{
    *t = (struct talk){.messages = json_array(), .attached = json_array()};
    if (!t->messages || !t->attached)
        return err_set(e, ERR_NOMEM, "a conversation");
    return talk_set(&t->system, system && *system ? system : NULL, e) ||
                   talk_set(&t->effort, effort, e)
               ? e->code
               : 0;
}

void talk_close(struct talk *t)
{
    free(t->system);
    free(t->effort);
    json_decref(t->messages);
    json_decref(t->tools);
    json_decref(t->attached);
    *t = (struct talk){0};
}

static json_t *message(const char *role, const char *text, size_t len)
{
    return json_pack("{s:s, s:o}", "role", role, "content", json_text(text, len));
}

char *talk_request(const struct talk *t, bool asks)
{
    json_t *request = json_object(), *all = json_array();
    char *text = NULL;
    int bad = json_object_set_new(request, "messages", all);

    if (t->system)
        bad |= json_array_append_new(all, message("system", t->system, strlen(t->system)));
    bad |= json_array_extend(all, t->messages);
    if (t->effort)
        bad |= json_object_set_new(request, "reasoning_effort", json_string(t->effort));
    if (t->tools)
        bad |= json_object_set(request, "tools", t->tools);
    bad |= json_object_set_new(request, "add_generation_prompt", json_boolean(asks));
    if (!bad)
        text = json_dumps(request, JSON_COMPACT);
    json_decref(request);
    return text;
}

static bool is_picture(const json_t *part)
{
    return json_object_get(part, "image_url");
}

/* Pictures, then the text. */
static json_t *message_with(const json_t *pictures, const char *role, const char *text, size_t len)
{
    json_t *parts = json_copy((json_t *)pictures);

    if (json_array_append_new(
            parts, json_pack("{s:s, s:o}", "type", "text", "text", json_text(text, len)))) {
        json_decref(parts);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "role", role, "content", parts);
}

int talk_say(struct talk *t, const char *role, const char *text, size_t len, struct err *e)
{
    bool with = !strcmp(role, "user") && json_array_size(t->attached);

    if (json_array_append_new(t->messages, with ? message_with(t->attached, role, text, len)
                                                : message(role, text, len)))
        return err_set(e, ERR_NOMEM, "a message of %zu bytes", len);
    if (with)
        json_array_clear(t->attached);
    return 0;
}

int talk_attach(struct talk *t, const char *path, uint32_t width, uint32_t height, struct err *e)
{
    json_t *part =
        json_pack("{s:s, s:{s:o}, s:i, s:i}", "type", "image_url", "image_url", "url",
                  json_text(path, strlen(path)), "width", (int)width, "height", (int)height);

    if (json_array_append_new(t->attached, part))
        return err_set(e, ERR_NOMEM, "a picture");
    return 0;
}

static unsigned count_pictures(const json_t *parts)
{
    unsigned n = 0;

    for (size_t i = 0; i < json_array_size(parts); i++)
        n += is_picture(json_array_get(parts, i));
    return n;
}

unsigned talk_pictures(const struct talk *t)
{
    unsigned n = count_pictures(t->attached);

    for (size_t i = 0; i < json_array_size(t->messages); i++)
        n += count_pictures(json_object_get(json_array_get(t->messages, i), "content"));
    return n;
}

static bool is_role(const json_t *m, const char *role)
{
    const char *r = json_string_value(json_object_get(m, "role"));

    return r && !strcmp(r, role);
}

bool talk_take_back(struct talk *t, const char *role)
{
    size_t n = json_array_size(t->messages);

    if (!n || !is_role(json_array_get(t->messages, n - 1), role))
        return false;
    json_array_remove(t->messages, n - 1);
    return true;
}

/* Content of the last message of this role, which is the last or the last but one; NULL. */
static json_t *last_content(const struct talk *t, const char *role)
{
    size_t n = json_array_size(t->messages);

    for (size_t i = n; i-- > 0 && i + 2 >= n;) {
        const json_t *m = json_array_get(t->messages, i);

        if (is_role(m, role))
            return json_object_get(m, "content");
    }
    return NULL;
}

const char *talk_last(const struct talk *t, const char *role, size_t *len)
{
    const json_t *text = last_content(t, role);

    if (json_is_array(text))
        text = json_object_get(json_array_get(text, json_array_size(text) - 1), "text");
    *len = json_string_length(text);
    return json_string_value(text);
}

void talk_attach_again(struct talk *t)
{
    const json_t *parts = last_content(t, "user");

    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *part = json_array_get(parts, i);

        if (is_picture(part))
            json_array_append(t->attached, part);
    }
}

bool talk_waits(const struct talk *t)
{
    size_t n = json_array_size(t->messages);

    return n && is_role(json_array_get(t->messages, n - 1), "user");
}

char *talk_note(const struct talk *t, const char *model)
{
    json_t *note = json_pack("{s:i, s:o, s:O}", "waste_chat", 1, "model",
                             json_text(model, strlen(model)), "messages", t->messages);
    int bad = !note;
    char *text = NULL;

    if (t->system)
        bad |= json_object_set_new(note, "system", json_text(t->system, strlen(t->system)));
    if (t->effort)
        bad |= json_object_set_new(note, "effort", json_string(t->effort));
    if (!bad)
        text = json_dumps(note, JSON_COMPACT);
    json_decref(note);
    return text;
}

/* A text, or pictures and the text behind them. */
static bool is_said(const json_t *content)
{
    size_t n = json_array_size(content);

    for (size_t i = 0; i + 1 < n; i++)
        if (!is_picture(json_array_get(content, i)))
            return false;
    return json_is_string(n ? json_object_get(json_array_get(content, n - 1), "text") : content);
}

static int check_messages(const json_t *messages, struct err *e)
{
    const json_t *m;
    size_t i;

    if (!json_is_array(messages))
        return err_set(e, ERR_FORMAT, "it has no messages");
    json_array_foreach(messages, i, m)
    {
        if (!is_role(m, "user") && !is_role(m, "assistant"))
            return err_set(e, ERR_FORMAT, "messages[%zu] is neither the user's nor the model's", i);
        if (is_role(m, "user") && !is_said(json_object_get(m, "content")))
            return err_set(e, ERR_FORMAT, "messages[%zu].content is no text", i);
    }
    return 0;
}

int talk_from_note(struct talk *t, const char *note, size_t len, struct err *e)
{
    json_t *root = json_loadb(note, len, JSON_ALLOW_NUL, NULL);
    json_t *messages = json_object_get(root, "messages");
    struct talk new = {0};
    int rc = 0;

    if (json_integer_value(json_object_get(root, "waste_chat")) != 1)
        rc = err_set(e, ERR_FORMAT, "no conversation of `waste chat` is in it");
    if (!rc)
        rc = check_messages(messages, e);
    if (!rc)
        rc = talk_open(&new, json_string_value(json_object_get(root, "system")),
                       json_string_value(json_object_get(root, "effort")), e);
    if (!rc) {
        json_array_extend(new.messages, messages);
        talk_close(t);
        *t = new;
    } else {
        talk_close(&new);
    }
    json_decref(root);
    return rc;
}
