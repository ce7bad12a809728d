/* tests/model/chat_fixture.h - small tokenizers with the control tokens of K3 and of K2, and
 * prompts as text: M[markup] and t[content].
 *
 * Their numbers collide on purpose: what is <|end_of_msg|> in the one is <|im_end|> in the other.
 */
#ifndef TESTS_MODEL_CHAT_FIXTURE_H
#define TESTS_MODEL_CHAT_FIXTURE_H

#include "model/chat.h"
#include "tests/model/rank_file.h"

#include <stdio.h>

static const char *const chat_ranks[] = {
    "=\"", "=\"_",  "_id",    "id",  "me",   "ss",   "mess",     "age",      "message",  "th",
    "ink", "think", "re",     "sp",  "on",   "se",   "\xc3\xa9", "\xf0\x9f", "\x8e\x89", "<|",
    "|>",  "open",  "<|open", "```", "\n\n", " key", " t",       "st",       NULL};

#define K3_SPECIALS                                                                                \
    "[{\"id\":600,\"text\":\"[BOS]\"},{\"id\":601,\"text\":\"[EOS]\"},"                            \
    "{\"id\":602,\"text\":\"<|end_of_msg|>\"},{\"id\":603,\"text\":\"<|open|>\"},"                 \
    "{\"id\":604,\"text\":\"<|close|>\"},{\"id\":605,\"text\":\"<|sep|>\"},"                       \
    "{\"id\":610,\"text\":\"<|media_begin|>\"},{\"id\":611,\"text\":\"<|media_content|>\"},"       \
    "{\"id\":612,\"text\":\"<|media_end|>\"},{\"id\":613,\"text\":\"<|media_pad|>\"},"             \
    "{\"id\":614,\"text\":\"<|kimi_image_placeholder|>\"}]"

#define IM_SPECIALS                                                                                \
    "{\"id\":600,\"text\":\"[BOS]\"},{\"id\":601,\"text\":\"[EOS]\"},"                             \
    "{\"id\":602,\"text\":\"<|im_end|>\"},{\"id\":603,\"text\":\"<|im_user|>\"},"                  \
    "{\"id\":604,\"text\":\"<|im_assistant|>\"},{\"id\":605,\"text\":\"<|im_system|>\"},"          \
    "{\"id\":606,\"text\":\"<|im_middle|>\"}"

#define K2_SPECIALS                                                                                \
    "[" IM_SPECIALS ",{\"id\":607,\"text\":\"<|tool_calls_section_begin|>\"},"                     \
    "{\"id\":608,\"text\":\"<|tool_calls_section_end|>\"},"                                        \
    "{\"id\":609,\"text\":\"<|tool_call_begin|>\"},"                                               \
    "{\"id\":610,\"text\":\"<|tool_call_argument_begin|>\"},"                                      \
    "{\"id\":611,\"text\":\"<|tool_call_end|>\"}]"

static inline struct tokenizer *chat_tokenizer(const char *specials)
{
    struct rank_file ranks = rank_file_of(chat_ranks);
    struct tokenizer *t = NULL;
    struct err e;

    if (tokenizer_parse(&t, ranks.text, ranks.len, specials, strlen(specials), 640, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    free(ranks.text);
    return t;
}

/* The same with an effort by default; NULL: "none". */
static inline struct chat *chat_of(const struct tokenizer *t, const char *effort)
{
    struct thinking_rules rules = {.effort = effort ? effort : "none"};
    struct chat *c = NULL;
    struct err e;

    if (chat_open(&c, t, NULL, &rules, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    return c;
}

/* What the model sees, as text. Free it. */
static inline char *prompt_text(const struct prompt *p)
{
    struct buf b = {0};

    for (size_t i = 0; i < p->n_segments; i++)
        buf_put(&b, p->segments[i].text, p->segments[i].len);
    buf_put(&b, "", 1);
    return b.s;
}

static inline char *prompt_segments(const struct prompt *p)
{
    struct buf b = {0};

    for (size_t i = 0; i < p->n_segments; i++) {
        buf_put(&b, p->segments[i].mode == WASTE_MARKUP ? "M[" : "t[", 2);
        buf_put(&b, p->segments[i].text, p->segments[i].len);
        buf_put(&b, "]", 1);
    }
    buf_put(&b, "", 1);
    return b.s;
}

static inline size_t n_controls(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    size_t found = 0;

    for (size_t i = 0; i < n; i++)
        found += tokenizer_is_special(t, ids[i]);
    return found;
}

#endif
