#include "model/release_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/ranks.h"

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

static int read_all(int fd, char *out, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, out + at, n - at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? errno : EIO;
        at += (size_t)got;
    }
    return 0;
}

int release_file(char **bytes, size_t *n, int dirfd, const char *name, size_t most, struct err *e)
{
    /* Not blocking: a FIFO of that name must not hang the open. */
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), bad;
    struct stat st;
    char *text;

    if (fd < 0 && errno == ENOENT) {
        *bytes = NULL;
        *n = 0;
        return 0;
    }
    if (fd < 0 || fstat(fd, &st)) {
        err_sys(e, errno, "%s", name);
        if (fd >= 0)
            close(fd);
        return e->code;
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > most) {
        close(fd);
        if (!S_ISREG(st.st_mode))
            return err_set(e, ERR_IO, "%s: not a regular file", name);
        return err_set(e, ERR_LIMIT, "%s: %lld bytes, more than %zu", name, (long long)st.st_size,
                       most);
    }
    text = malloc((size_t)st.st_size + 1);
    bad = text ? read_all(fd, text, (size_t)st.st_size) : ENOMEM;
    close(fd);
    if (bad) {
        free(text);
        return err_sys(e, bad, "%s", name);
    }
    text[st.st_size] = 0;
    *bytes = text;
    *n = (size_t)st.st_size;
    return 0;
}

/* *out NULL: there is no such file. */
static int read_json(json_t **out, int dirfd, const char *name, struct err *e)
{
    char *text;
    size_t n;
    int bad;

    *out = NULL;
    if (release_file(&text, &n, dirfd, name, JSON_BYTES, e))
        return e->code;
    bad = text ? json_parse(out, text, n, name, e) : 0;
    free(text);
    return bad;
}

static int write_json(struct writer *w, const char *name, const json_t *value, struct err *e)
{
    char *text = value ? json_dumps(value, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    int bad;

    if (!text)
        return err_set(e, ERR_NOMEM, "%s", name);
    bad = writer_side_file(w, name, text, strlen(text), e);
    free(text);
    return bad;
}

/* A rank file goes over as it is. *n_ranks: its tokens, 0 when there is none. */
static int write_tokenizer(struct writer *w, int dirfd, uint32_t *n_ranks, struct notices *notices,
                           struct err *e)
{
    static const char *const names[] = {"tiktoken.model", "tokenizer.model"};
    struct ranks ranks = {0};
    struct err why;
    char *text = NULL;
    size_t n;
    int bad = 0;

    *n_ranks = 0;
    for (unsigned i = 0; i < 2 && !text; i++)
        if (release_file(&text, &n, dirfd, names[i], RANKS_BYTES_MAX, e))
            return e->code;
    if (!text) {
        notice_add(notices, "no tokenizer.model in the release: only token ids can be used");
        return 0;
    }
    if (ranks_parse(&ranks, text, n, &why)) {
        notice_add(notices, "tokenizer.model is not a rank file (%.100s): left out", why.text);
    } else {
        *n_ranks = ranks.n;
        bad = writer_side_file(w, "tokenizer.model", text, n, e);
    }
    ranks_release(&ranks);
    free(text);
    return bad;
}

static int id_order(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "id"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "id"));

    return (x > y) - (x < y);
}

/* added_tokens_decoder as [{"id", "text"}], ascending: "id" first, as some readers need it. Ids of
 * ordinary tokens and beyond the vocabulary are of no use. NULL: no memory. */
static json_t *specials_of_release(json_t *added, uint32_t n_ranks, json_int_t vocab)
{
    size_t n = json_object_size(added), used = 0;
    json_t **entry = calloc(n + 1, sizeof(json_t *)), *list = json_array(), *value;
    const char *key;

    json_object_foreach(added, key, value)
    {
        const json_t *text = json_object_get(value, "content");
        char *end;
        long long id = strtoll(key, &end, 10);

        if (!entry || !*key || *end || id < n_ranks || id >= vocab || !json_is_string(text) ||
            !json_string_length(text))
            continue;
        entry[used] = json_pack("{s:I, s:O}", "id", (json_int_t)id, "text", text);
        used += entry[used] != NULL;
    }
    if (entry)
        qsort(entry, used, sizeof(*entry), id_order);
    for (size_t i = 0; i < used; i++)
        json_array_append_new(list, entry[i]);
    if (!entry) {
        json_decref(list);
        list = NULL;
    }
    free(entry);
    return list;
}

/* *specials: what was written, or NULL when the release has no list. */
static int write_specials(struct writer *w, const json_t *tokenizer_config, uint32_t n_ranks,
                          const struct release *r, json_t **specials, struct err *e)
{
    json_t *added = json_object_get(tokenizer_config, "added_tokens_decoder");
    json_int_t vocab = json_integer_value(json_object_get(r->config, "vocab_size"));

    *specials = NULL;
    if (!json_is_object(added))
        return 0;
    *specials = specials_of_release(added, n_ranks, vocab);
    return write_json(w, "specials.json", *specials, e);
}

/* chat_template.jinja; or the text of chat_template.json, or of tokenizer_config.json. */
static int write_template(struct writer *w, int dirfd, const json_t *tokenizer_config,
                          struct err *e)
{
    static const char name[] = "chat_template.jinja";
    json_t *wrapped = NULL;
    const json_t *inside;
    char *text;
    size_t n;
    int bad = 0;

    if (release_file(&text, &n, dirfd, name, TEMPLATE_BYTES, e))
        return e->code;
    if (text) {
        bad = writer_side_file(w, name, text, n, e);
        free(text);
        return bad;
    }
    if (read_json(&wrapped, dirfd, "chat_template.json", e))
        return e->code;
    inside = json_object_get(wrapped, "chat_template");
    if (!json_is_string(inside))
        inside = json_object_get(tokenizer_config, "chat_template");
    if (json_is_string(inside))
        bad = writer_side_file(w, name, json_string_value(inside), json_string_length(inside), e);
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

static int write_chat(struct writer *w, const struct release *r, const json_t *specials,
                      struct notices *notices, struct err *e)
{
    bool k3 = !strcmp(r->arch, "kimi-k3");
    json_t *chat;
    char *text;
    int bad = 0;

    if ((!k3 && strcmp(r->arch, "kimi-linear")) || writer_file_bytes(w, "chat.json"))
        return 0;
    chat = k3 ? chat_of_k3() : chat_of_kimi_linear();
    text = chat ? json_dumps(chat, JSON_INDENT(1)) : NULL;
    json_decref(chat);
    if (!text)
        return err_set(e, ERR_NOMEM, "chat.json");
    if (markers_known(text, specials))
        bad = writer_side_file(w, "chat.json", text, strlen(text), e);
    else
        notice_add(notices, "no chat.json: the control tokens of %s are not among the release's",
                   r->arch);
    free(text);
    return bad;
}

static int set_from(json_t *to, const char *key, const json_t *from, const char *theirs)
{
    json_t *value = json_object_get(from, theirs);

    return value && !json_is_null(value) ? json_object_set(to, key, value) : 0;
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
    if (pad && !json_is_null(pad))
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

static int write_vision(struct writer *w, int dirfd, const struct release *r,
                        struct notices *notices, struct err *e)
{
    const json_t *vision = release_vision(r);
    json_t *preprocessor, *out;
    int bad;

    if (!vision) {
        notice_add(notices, "a vision tower without a vision_config: no vision.json");
        return 0;
    }
    if (read_json(&preprocessor, dirfd, "preprocessor_config.json", e))
        return e->code;
    if (!preprocessor)
        notice_add(notices,
                   "no preprocessor_config.json in the release: images are normalised with 0.5");
    out = vision_of_release(r, vision, json_object_get(preprocessor, "media_proc_cfg"));
    bad = write_json(w, "vision.json", out, e);
    json_decref(out);
    json_decref(preprocessor);
    return bad;
}

int release_files_write(struct writer *w, int dirfd, const struct release *r, bool vision,
                        struct notices *notices, struct err *e)
{
    json_t *tokenizer_config, *specials = NULL;
    uint32_t n_ranks;
    int bad;

    if (write_tokenizer(w, dirfd, &n_ranks, notices, e) ||
        read_json(&tokenizer_config, dirfd, "tokenizer_config.json", e))
        return e->code;
    bad = write_specials(w, tokenizer_config, n_ranks, r, &specials, e) ||
          write_template(w, dirfd, tokenizer_config, e) || write_chat(w, r, specials, notices, e) ||
          (vision && write_vision(w, dirfd, r, notices, e));
    json_decref(specials);
    json_decref(tokenizer_config);
    return bad ? e->code : 0;
}
