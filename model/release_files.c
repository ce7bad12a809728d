#include "model/release_files.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/slurp.h"
#include "model/ranks.h"
#include "model/specials.h"
#include "model/tokenizer.h"

enum { JSON_BYTES = 64 << 20, TEMPLATE_BYTES = 4 << 20, MAX_PATCHES = 1024 };

void notice_add(struct notices *n, const char *fmt, ...)
{
    va_list ap;

    if (n->n == NOTICES_MAX)
        return;
    va_start(ap, fmt);
    vsnprintf(n->text[n->n++], NOTICE_BYTES, fmt, ap);
    va_end(ap);
}

/* *out NULL: there is no such file. */
static int read_json(json_t **out, int dirfd, const char *name, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int bad;

    *out = NULL;
    if (slurp(&text, &n, dirfd, name, JSON_BYTES, e))
        return e->code;
    bad = text ? json_parse(out, text, n, name, e) : 0;
    free(text);
    return bad;
}

/* Takes the bytes. */
static void add_file(struct release_files *f, const char *name, char *bytes, size_t n)
{
    f->file[f->n++] = (struct side_file){name, bytes, n};
}

static const struct side_file *find_file(const struct release_files *f, const char *name)
{
    for (unsigned i = 0; i < f->n; i++)
        if (!strcmp(f->file[i].name, name))
            return &f->file[i];
    return NULL;
}

static int add_json(struct release_files *f, const char *name, const json_t *value, struct err *e)
{
    char *text = value ? json_dumps(value, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;

    if (!text)
        return err_set(e, ERR_NOMEM, "%s", name);
    add_file(f, name, text, strlen(text));
    return 0;
}

/* A SentencePiece model is a protobuf whose first field, a string, has this tag; no rank file
 * begins with an empty line. */
static bool is_sentencepiece(const char *text, size_t n)
{
    return n && text[0] == '\n';
}

/* A rank file goes over as it is. *n_ranks: its tokens, 0 when there is none. */
static int read_tokenizer(struct release_files *f, int dirfd, uint32_t *n_ranks,
                          struct notices *notices, struct err *e)
{
    static const char *const names[] = {"tiktoken.model", "tokenizer.model"};
    struct ranks ranks = {0};
    char *text = NULL;
    unsigned i;
    size_t n;
    int bad;

    *n_ranks = 0;
    for (i = 0; i < 2 && !text; i++)
        if (slurp(&text, &n, dirfd, names[i], RANKS_BYTES_MAX, e))
            return e->code;
    if (!text) {
        notice_add(notices, "no tokenizer.model in the release: only token ids can be used");
        return 0;
    }
    if (i == 2 && is_sentencepiece(text, n)) {
        notice_add(notices, "tokenizer.model is SentencePiece's, not a rank file: left out");
        free(text);
        return 0;
    }
    bad = ranks_parse(&ranks, text, n, e);
    *n_ranks = ranks.n;
    ranks_release(&ranks);
    if (bad) {
        free(text);
        return err_wrap(e, "%s", names[i - 1]);
    }
    add_file(f, "tokenizer.model", text, n);
    return 0;
}

static int id_order(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "id"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "id"));

    return (x > y) - (x < y);
}

/* A decimal as people write it, so that no two keys are one id; -1: it is none. */
static json_int_t id_of_key(const char *key)
{
    size_t digits = strspn(key, "0123456789");

    if (!digits || key[digits] || digits > 9 || (digits > 1 && key[0] == '0'))
        return -1;
    return strtol(key, NULL, 10);
}

/* The ids that the container's list has, ascending. Those of ordinary tokens and beyond the
 * vocabulary are of no use. */
static int choose_specials(json_t **entry, size_t *used, json_t *added, uint32_t n_ranks,
                           json_int_t vocab, struct err *e)
{
    const char *key;
    json_t *value;
    char clean[64];

    json_object_foreach(added, key, value)
    {
        const json_t *text = json_object_get(value, "content");
        json_int_t id = id_of_key(key);

        if (id < 0)
            return err_set(e, ERR_FORMAT,
                           "tokenizer_config.json: added_tokens_decoder: \"%s\" is not an id",
                           json_printable(clean, sizeof(clean), key, strlen(key)));
        if (id < n_ranks || id >= vocab || !json_string_length(text))
            continue;
        entry[*used] = json_pack("{s:I, s:O}", "id", id, "text", text);
        if (!entry[*used])
            return err_set(e, ERR_NOMEM, "specials.json");
        ++*used;
    }
    qsort(entry, *used, sizeof(*entry), id_order);
    return 0;
}

static int text_order(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    const json_t *s = json_object_get(x, "text"), *t = json_object_get(y, "text");
    size_t n = json_string_length(s), m = json_string_length(t);
    int order = n != m ? (n > m) - (n < m) : memcmp(json_string_value(s), json_string_value(t), n);

    return order ? order : id_order(a, b);
}

/* Of several ids with one text the first stays: readers find a control token by its text. */
static int drop_repeated(json_t **entry, size_t *used, struct notices *notices, struct err *e)
{
    json_t **by_text = malloc((*used + 1) * sizeof(json_t *));
    size_t n = 0;

    if (!by_text)
        return err_set(e, ERR_NOMEM, "specials.json");
    memcpy(by_text, entry, *used * sizeof(json_t *));
    qsort(by_text, *used, sizeof(*by_text), text_order);
    for (size_t i = 1, first = 0; i < *used; i++) {
        const json_t *kept = by_text[first];

        if (!json_equal(json_object_get(kept, "text"), json_object_get(by_text[i], "text"))) {
            first = i;
            continue;
        }
        notice_add(notices,
                   "added_tokens_decoder: ids %lld and %lld have one text: the first stays",
                   (long long)json_integer_value(json_object_get(kept, "id")),
                   (long long)json_integer_value(json_object_get(by_text[i], "id")));
        json_object_set_new(by_text[i], "id", json_integer(-1));
    }
    free(by_text);
    for (size_t i = 0; i < *used; i++)
        if (json_integer_value(json_object_get(entry[i], "id")) < 0)
            json_decref(entry[i]);
        else
            entry[n++] = entry[i];
    *used = n;
    return 0;
}

/* added_tokens_decoder as [{"id", "text"}], ascending: "id" first, as some readers need it.
 * *specials: what the container's file says, or NULL when the release has no list. */
static int read_specials(struct release_files *f, const json_t *tokenizer_config, uint32_t n_ranks,
                         const struct release *r, json_t **specials, struct notices *notices,
                         struct err *e)
{
    json_t *added = json_object_get(tokenizer_config, "added_tokens_decoder"), **entry;
    json_int_t vocab = json_integer_value(json_object_get(r->config, "vocab_size"));
    size_t used = 0;
    int bad;

    *specials = NULL;
    if (tokenizer_config && !json_is_object(tokenizer_config))
        return err_set(e, ERR_FORMAT, "tokenizer_config.json: must be an object");
    if (!added || json_is_null(added))
        return 0;
    if (!json_is_object(added))
        return err_set(e, ERR_FORMAT,
                       "tokenizer_config.json: added_tokens_decoder must be an object");
    entry = calloc(json_object_size(added) + 1, sizeof(json_t *));
    bad = entry ? choose_specials(entry, &used, added, n_ranks, vocab, e) ||
                      drop_repeated(entry, &used, notices, e)
                : err_set(e, ERR_NOMEM, "specials.json");
    *specials = json_array();
    for (size_t i = 0; i < used; i++)
        json_array_append_new(*specials, entry[i]);
    free(entry);
    return bad ? e->code : add_json(f, "specials.json", *specials, e);
}

/* As the container's readers will see them. */
static int check_tokenizer(const struct release_files *f, const struct release *r, struct err *e)
{
    const struct side_file *ranks = find_file(f, "tokenizer.model");
    const struct side_file *list = find_file(f, "specials.json");
    uint32_t vocab = (uint32_t)json_integer_value(json_object_get(r->config, "vocab_size"));
    struct specials specials = {0};
    struct tokenizer *t;
    int bad = 0;

    if (ranks) {
        bad = tokenizer_parse(&t, ranks->bytes, ranks->n, list ? list->bytes : NULL,
                              list ? list->n : 0, vocab, e);
        if (!bad)
            tokenizer_close(t);
    } else if (list) {
        bad = specials_parse(&specials, list->bytes, list->n, 0, vocab, e);
        specials_release(&specials);
    }
    return bad ? err_wrap(e, "the release's tokenizer, as a container has it") : 0;
}

/* chat_template.jinja; or the text of chat_template.json, or of tokenizer_config.json. */
static int read_template(struct release_files *f, int dirfd, const json_t *tokenizer_config,
                         struct err *e)
{
    static const char name[] = "chat_template.jinja";
    json_t *wrapped = NULL;
    const json_t *inside;
    char *text;
    size_t n;
    int bad = 0;

    if (slurp(&text, &n, dirfd, name, TEMPLATE_BYTES, e))
        return e->code;
    if (text) {
        add_file(f, name, text, n);
        return 0;
    }
    if (read_json(&wrapped, dirfd, "chat_template.json", e))
        return e->code;
    inside = json_object_get(wrapped, "chat_template");
    if (!json_is_string(inside))
        inside = json_object_get(tokenizer_config, "chat_template");
    if (json_is_string(inside)) {
        n = json_string_length(inside);
        text = malloc(n + 1);
        if (text)
            add_file(f, name, memcpy(text, json_string_value(inside), n), n);
        else
            bad = err_set(e, ERR_NOMEM, "%s", name);
    }
    json_decref(wrapped);
    return bad;
}

static json_t *turn(const char *before, const char *after)
{
    return json_pack("[s, s]", before, after);
}

static json_t *chat_of_k3(void)
{
    static const char end[] = "<|close|>message<|sep|><|end_of_msg|>";
    static const char open[] = "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>";

    return json_pack(
        "{s:o, s:o, s:o, s:s}", "system", turn("<|open|>message role=\"system\"<|sep|>", end),
        "user", turn("<|open|>message role=\"user\"<|sep|>", end), "assistant",
        turn(open, "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"), "open", open);
}

static json_t *chat_of_kimi_linear(void)
{
    return json_pack("{s:o, s:o, s:o, s:s}", "system",
                     turn("<|im_system|>system<|im_middle|>", "<|im_end|>"), "user",
                     turn("<|im_user|>user<|im_middle|>", "<|im_end|>"), "assistant",
                     turn("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"), "open",
                     "<|im_assistant|>assistant<|im_middle|>");
}

static bool is_special(const json_t *specials, const char *text, size_t n)
{
    const json_t *entry;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)specials, i, entry)
    {
        const json_t *t = json_object_get(entry, "text");

        if (json_string_length(t) == n && !memcmp(json_string_value(t), text, n))
            return true;
    }
    return false;
}

/* Is every <|...|> of the format one of the release's? A release without a list is believed. */
static bool markers_known(const char *format, const json_t *specials)
{
    const char *at = format;

    while (specials && (at = strstr(at, "<|"))) {
        const char *end = strstr(at, "|>");

        if (!end || !is_special(specials, at, (size_t)(end - at) + 2))
            return false;
        at = end;
    }
    return true;
}

static int make_chat(struct release_files *f, const struct release *r, const json_t *specials,
                     struct err *e)
{
    bool k3 = !strcmp(r->arch, "kimi-k3");
    json_t *chat;
    char *text;

    if (!k3 && strcmp(r->arch, "kimi-linear"))
        return 0;
    chat = k3 ? chat_of_k3() : chat_of_kimi_linear();
    text = chat ? json_dumps(chat, JSON_INDENT(1)) : NULL;
    json_decref(chat);
    if (!text)
        return err_set(e, ERR_NOMEM, "chat.json");
    if (markers_known(text, specials)) {
        add_file(f, "chat.json", text, strlen(text));
    } else {
        f->no_chat = r->arch;
        free(text);
    }
    return 0;
}

static int set_from(json_t *to, const char *key, const json_t *from, const char *theirs)
{
    json_t *value = json_object_get(from, theirs);

    return json_given(value) ? json_object_set(to, key, value) : 0;
}

static json_t *vision_of_release(const struct release *r, const json_t *vision, const json_t *media)
{
    const json_t *pad = release_outer(r, "media_placeholder_token_id");
    json_t *out = json_object(), *value, *half = json_pack("[f, f, f]", 0.5, 0.5, 0.5);
    const char *key;
    int bad = 0;

    json_object_foreach((json_t *)(uintptr_t)vision, key, value)
    {
        if (key[0] != '_')
            bad |= json_object_set(out, key, value);
    }
    if (!json_object_get(out, "text_hidden_size"))
        bad |= set_from(out, "text_hidden_size", r->config, "hidden_size");
    if (json_given(pad))
        bad |= json_object_set(out, "media_placeholder_token_id", (json_t *)(uintptr_t)pad);
    if (!json_object_get(out, "max_patches"))
        bad |= json_object_set_new(out, "max_patches", json_integer(MAX_PATCHES));
    if (!json_object_get(out, "vt_rms_eps"))
        bad |= json_object_set_new(out, "vt_rms_eps", json_real(0x1p-23));
    bad |= json_object_set(out, "image_mean", half) | json_object_set(out, "image_std", half);
    bad |= set_from(out, "image_mean", media, "image_mean") |
           set_from(out, "image_std", media, "image_std") |
           set_from(out, "patch_size", media, "patch_size") |
           set_from(out, "in_patch_limit", media, "in_patch_limit") |
           set_from(out, "patch_limit_on_one_side", media, "patch_limit_on_one_side");
    json_decref(half);
    if (bad) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static int make_vision(struct release_files *f, int dirfd, const struct release *r, bool tower,
                       struct notices *notices, struct err *e)
{
    const json_t *vision = release_vision(r);
    json_t *preprocessor, *out;
    int bad;

    if (tower != (vision != NULL))
        notice_add(notices, tower ? "a vision tower without a vision_config: no vision.json"
                                  : "a vision_config without a vision tower: text only");
    if (!tower || !vision)
        return 0;
    if (read_json(&preprocessor, dirfd, "preprocessor_config.json", e))
        return e->code;
    if (!preprocessor)
        notice_add(notices,
                   "no preprocessor_config.json in the release: images are normalised with 0.5");
    out = vision_of_release(r, vision, json_object_get(preprocessor, "media_proc_cfg"));
    bad = add_json(f, "vision.json", out, e);
    json_decref(out);
    json_decref(preprocessor);
    return bad;
}

int release_files_read(struct release_files *out, int dirfd, const struct release *r, bool vision,
                       struct notices *notices, struct err *e)
{
    json_t *tokenizer_config = NULL, *specials = NULL;
    struct release_files f = {0};
    uint32_t n_ranks;
    int bad;

    bad = read_tokenizer(&f, dirfd, &n_ranks, notices, e) ||
          read_json(&tokenizer_config, dirfd, "tokenizer_config.json", e) ||
          read_specials(&f, tokenizer_config, n_ranks, r, &specials, notices, e) ||
          check_tokenizer(&f, r, e) || read_template(&f, dirfd, tokenizer_config, e) ||
          make_chat(&f, r, specials, e) || make_vision(&f, dirfd, r, vision, notices, e);
    json_decref(specials);
    json_decref(tokenizer_config);
    if (bad) {
        release_files_release(&f);
        return e->code;
    }
    *out = f;
    return 0;
}

void release_files_release(struct release_files *f)
{
    for (unsigned i = 0; i < f->n; i++)
        free(f->file[i].bytes);
    *f = (struct release_files){0};
}

int release_files_write(const struct release_files *f, struct writer *w, struct notices *notices,
                        struct err *e)
{
    bool has_chat = writer_file_bytes(w, "chat.json") > 0;

    if (f->no_chat && !has_chat)
        notice_add(notices, "no chat.json: the control tokens of %s are not among the release's",
                   f->no_chat);
    for (unsigned i = 0; i < f->n; i++) {
        const struct side_file *s = &f->file[i];

        if ((!has_chat || strcmp(s->name, "chat.json") != 0) &&
            writer_side_file(w, s->name, s->bytes, s->n, e))
            return e->code;
    }
    return 0;
}
