#include "cli/asked.h"

#include <stdlib.h>
#include <string.h>

#include "cli/nearest.h"
#include "cli/pictures.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const char *const passed[] = {/* to the chat format */
                                     "tools",           "tool_choice",
                                     "response_format", "reasoning_effort",
                                     "thinking",        "parallel_tool_calls",
                                     "messages"};
static const char *const ignored[] = {"id",       "prompt", "model",     "user",
                                      "metadata", "stop",   "logit_bias"};
static const struct {
    const char *member, *option;
} settings[] = {
    {"max_tokens", "n"},
    {"max_completion_tokens", "n"},
    {"thinking_budget", "think-limit"},
    {"temperature", "temp"},
    {"top_p", "top-p"},
    {"top_k", "top-k"},
    {"min_p", "min-p"},
    {"seed", "seed"},
    {"repeat_penalty", "repeat-penalty"},
    {"repeat_window", "repeat-window"},
    {"presence_penalty", "presence-penalty"},
    {"frequency_penalty", "frequency-penalty"},
};

static bool listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(list[i], name))
            return true;
    }
    return false;
}

static int unknown_member(const char *name, struct err *e)
{
    const char *names[N_ELEMS(passed) + N_ELEMS(ignored) + N_ELEMS(settings)], *near;
    unsigned n = 0;

    for (size_t i = 0; i < N_ELEMS(passed); i++)
        names[n++] = passed[i];
    for (size_t i = 0; i < N_ELEMS(ignored); i++)
        names[n++] = ignored[i];
    for (size_t i = 0; i < N_ELEMS(settings); i++)
        names[n++] = settings[i].member;
    near = nearest_name(name, names, n);
    return err_set(e, ERR_ARG, "unknown member \"%.40s\"%s%s%s", name,
                   near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
}

static int take_setting(struct asked *a, const char *option, const json_t *value, struct err *e)
{
    char text[40];

    if (json_is_null(value))
        return 0;
    if (json_is_string(value) && !strcmp(option, "seed"))
        return opts_set(&a->opts, option, json_string_value(value), e);
    if (json_is_integer(value))
        snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof(text), "%.17g", json_real_value(value));
    else
        return err_set(e, ERR_ARG, "must be a number");
    return opts_set(&a->opts, option, text, e);
}

static int take_stop(struct asked *a, const json_t *value, struct err *e)
{
    size_t n = json_is_array(value) ? json_array_size(value) : !json_is_null(value);

    if (n > OPTS_LIST_MAX)
        return err_set(e, ERR_ARG, "stop: more than %d texts", OPTS_LIST_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;

        if (!json_string_length(text))
            return err_set(e, ERR_ARG, "stop: a text with something in it, or a list of them");
        a->opts.stop[i] = json_string_value(text);
    }
    a->opts.n_stop = (unsigned)n;
    return 0;
}

static int take_bias(struct asked *a, json_t *value, struct err *e)
{
    const char *key;
    json_t *v;

    a->opts.n_bias = 0;
    if (!json_is_object(value) && !json_is_null(value))
        return err_set(e, ERR_ARG, "logit_bias: an object of ids and numbers");
    json_object_foreach(value, key, v)
    {
        char *end;
        long id = strtol(key, &end, 10);

        if (*end || end == key || id < 0 || id > INT32_MAX || !json_is_number(v) ||
            a->opts.n_bias == OPTS_LIST_MAX)
            return err_set(e, ERR_ARG, "logit_bias: \"%.20s\" is no id with a number", key);
        a->opts.bias[a->opts.n_bias++] =
            (waste_bias){.id = (int32_t)id, .value = (float)json_number_value(v)};
    }
    return 0;
}

/* {"type": "enabled", "budget_tokens": N} is how others write thinking_budget, which beats it. */
static int take_thinking(struct asked *a, const json_t *value, struct err *e)
{
    const json_t *budget = json_object_get(value, "budget_tokens");

    if (!budget || json_is_integer(json_object_get(a->line, "thinking_budget")))
        return 0;
    return take_setting(a, "think-limit", budget, e) ? err_wrap(e, "budget_tokens") : 0;
}

static int take_member(struct asked *a, const char *name, json_t *value, struct err *e)
{
    for (size_t i = 0; i < N_ELEMS(settings); i++) {
        if (!strcmp(settings[i].member, name))
            return take_setting(a, settings[i].option, value, e) ? err_wrap(e, "%s", name) : 0;
    }
    if (!strcmp(name, "stop"))
        return take_stop(a, value, e);
    if (!strcmp(name, "logit_bias"))
        return take_bias(a, value, e);
    if (!strcmp(name, "thinking") && take_thinking(a, value, e))
        return err_wrap(e, "%s", name);
    if (listed(name, passed, N_ELEMS(passed)) || listed(name, ignored, N_ELEMS(ignored)))
        return 0;
    return unknown_member(name, e);
}

int asked_parse(struct asked *a, const char *text, size_t len, struct err *e)
{
    json_error_t why;
    const char *name;
    json_t *value;

    a->line = json_loadb(text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    if (!a->line)
        return err_set(e, ERR_ARG, "not JSON: %s%s", why.text,
                       json_error_code(&why) == json_error_numeric_overflow
                           ? " (a seed beyond 2^63-1 is written as a text)"
                           : "");
    if (!json_is_object(a->line))
        return err_set(e, ERR_ARG, "not a JSON object");
    json_object_foreach(a->line, name, value)
    {
        if (take_member(a, name, value, e))
            return e->code;
    }
    if (!json_object_get(a->line, "prompt") == !json_object_get(a->line, "messages"))
        return err_set(e, ERR_ARG, "it has to have either prompt or messages");
    value = json_object_get(a->line, "prompt");
    if (value && !json_is_string(value))
        return err_set(e, ERR_ARG, "prompt must be a text");
    if (value && !json_string_length(value))
        return err_set(e, ERR_ARG, "the prompt is empty");
    return 0;
}

static bool is_system(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role && (!strcmp(role, "system") || !strcmp(role, "developer"));
}

/* --system comes first, unless the messages have one. */
static int with_system(json_t *messages, const char *system)
{
    if (!system || is_system(json_array_get(messages, 0)))
        return 0;
    return json_array_insert_new(
        messages, 0,
        json_pack("{s:s, s:o}", "role", "system", "content", json_text(system, strlen(system))));
}

/* Before the format asks for the size of a picture that is not looked at anyway. */
static int no_images(const json_t *messages, struct err *e)
{
    const json_t *m, *part;
    size_t i, j;

    json_array_foreach(messages, i, m)
    {
        json_array_foreach(json_object_get(m, "content"), j, part)
        {
            const char *type = json_string_value(json_object_get(part, "type"));

            if (type && (!strcmp(type, "image") || !strcmp(type, "image_url")))
                return err_set(e, ERR_UNSUPPORTED,
                               "messages[%zu].content[%zu]: a picture, and --vision was not given",
                               i, j);
        }
    }
    return 0;
}

static int as_request(struct asked *a, struct err *e)
{
    json_t *request = json_object(), *prompt = json_object_get(a->line, "prompt");
    json_t *messages = json_deep_copy(json_object_get(a->line, "messages"));
    int bad = 0;

    if (a->opts.vision ? pictures_measure(messages, e) : no_images(messages, e)) {
        json_decref(messages);
        json_decref(request);
        return e->code;
    }
    if (prompt)
        messages = json_pack("[{s:s, s:O}]", "role", "user", "content", prompt);
    for (size_t i = 0; i < N_ELEMS(passed); i++) {
        json_t *v = json_object_get(a->line, passed[i]);

        bad |= v && json_object_set(request, passed[i], v);
    }
    if (a->opts.think && !json_object_get(request, "reasoning_effort") &&
        !json_object_get(request, "thinking"))
        bad |= json_object_set_new(request, "reasoning_effort", json_string(a->opts.think));
    if (json_is_array(messages))
        bad |= with_system(messages, a->opts.system);
    a->has_system = is_system(json_array_get(messages, 0));
    bad |= json_object_set_new(request, "messages", messages);
    a->request = bad ? NULL : json_dumps(request, JSON_COMPACT);
    json_decref(request);
    return a->request ? 0 : err_set(e, ERR_NOMEM, "a request");
}

static int as_text(struct asked *a, const struct speaker *s, struct err *e)
{
    json_t *prompt = json_object_get(a->line, "prompt");
    size_t len = json_string_length(prompt);

    for (size_t i = 0; i < N_ELEMS(passed); i++) {
        if (strcmp(passed[i], "messages") && json_object_get(a->line, passed[i]))
            return err_set(e, ERR_UNSUPPORTED, "%s: %s", passed[i],
                           a->opts.raw ? "--raw continues texts" : "the model has no chat format");
    }
    if (!prompt)
        return err_set(e, ERR_UNSUPPORTED, "messages: %s",
                       a->opts.raw ? "--raw continues texts" : "the model has no chat format");
    if (!s->tokenizer)
        return err_set(e, ERR_UNSUPPORTED, "the container has no tokenizer");
    a->ids.id = malloc(len * sizeof(*a->ids.id));
    if (!a->ids.id || waste_encode(s->tokenizer, WASTE_CONTENT, json_string_value(prompt), len,
                                   a->ids.id, len, &a->ids.n) != WASTE_OK)
        return err_set(e, ERR_NOMEM, "a prompt of %zu bytes", len);
    return 0;
}

/* The command's own limit is without effect where there is no thinking: this one is the line's. */
static int check_limit(const struct asked *a, const struct speaker *s, struct err *e)
{
    if (a->opts.think_limit <= 0 || s->format.has_thinking)
        return 0;
    if (s->chat)
        return err_set(e, ERR_UNSUPPORTED,
                       "thinking_budget: the format of this model (%s) has no thinking",
                       s->format.name);
    return err_set(e, ERR_UNSUPPORTED, "thinking_budget: %s",
                   a->opts.raw ? "--raw continues texts" : "the model has no chat format");
}

int asked_prepare(struct asked *a, const struct speaker *s, struct err *e)
{
    if (check_limit(a, s, e))
        return e->code;
    return s->chat ? as_request(a, e) : as_text(a, s, e);
}

void asked_release(struct asked *a)
{
    json_decref(a->line);
    free(a->request);
    free(a->ids.id);
}
