/* cli/bench/bench_mask.c - what a grammar costs a token: its mask, the mask on the logits, moving
 * on by the token chosen. Random answers, the same in every round. */
#include "cli/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/grammar.h"
#include "model/sampler.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static struct {
    int64_t tokens;
} opt = {.tokens = 300};

static const struct flag flags[] = {
    {"tokens", FLAG_INT, &opt.tokens, 1, 1 << 20, "N", "of an arm's answers, a round (300)"},
    {0},
};

static const struct metric metrics[] = {
    {"tokens_s", "tokens/s"}, {"us", "us/token"},        {"mask_us", "mask"},
    {"apply_us", "apply"},    {"advance_us", "advance"}, {"worst_us", "worst"},
    {"new_share", "new %"},   {"compile_ms", "compile"},
};
enum { M_RATE, M_US, M_MASK, M_APPLY, M_ADVANCE, M_WORST, M_NEW, M_COMPILE };

enum { TOOLS = 50, PROPERTIES = 10 };

static const struct {
    const char *name, *schema, *grammar; /* both NULL: tools */
} cases[] = {
    {"record",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
     "\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":["
     "\"red\",\"green\",\"blue\"]}},\"note\":{\"type\":[\"string\",\"null\"]}},\"required\":["
     "\"name\",\"age\",\"tags\",\"note\"],\"additionalProperties\":false}",
     NULL},
    {"text", "{\"type\":\"string\"}", NULL},
    {"text of at most 500", "{\"type\":\"string\",\"maxLength\":500}", NULL},
    {"any JSON", "{}", NULL},
    {"date", "{\"type\":\"string\",\"format\":\"date-time\"}", NULL},
    {"tree",
     "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"number\"},\"l\":{\"$ref\":\"#\"}"
     ",\"r\":{\"$ref\":\"#\"}},\"required\":[\"v\"],\"additionalProperties\":false}",
     NULL},
    {"free text", NULL, "root ::= .*"},
    {"50 tools", NULL, NULL},
};

struct vocabulary {
    struct tokenizer *tokenizer;
    struct token_trie *trie;
    unsigned n, n_words;
    float *logits;
};

struct mask_arm {
    const struct vocabulary *v;
    struct grammar *grammar;
    struct grammar_match *match; /* kept, if warm */
    bool warm;
    double compile_s;
};

/* The n-th allowed token, for a random n. */
static int32_t draw(const uint64_t *mask, unsigned words, uint64_t *rng)
{
    unsigned n = 0, pick;

    for (unsigned i = 0; i < words; i++)
        n += (unsigned)__builtin_popcountll(mask[i]);
    if (!n)
        return -1;
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    pick = (unsigned)((*rng >> 33) % n);
    for (unsigned i = 0; i < words; i++) {
        unsigned here = (unsigned)__builtin_popcountll(mask[i]);
        uint64_t bits = mask[i];

        if (pick >= here) {
            pick -= here;
            continue;
        }
        while (pick--)
            bits &= bits - 1;
        return (int32_t)(i * 64 + (unsigned)__builtin_ctzll(bits));
    }
    return -1;
}

struct spent {
    double mask, apply, advance, worst;
    unsigned n, n_new;
};

static int token_spend(struct grammar_match *m, const struct vocabulary *v, uint64_t *rng,
                       struct spent *s, struct err *e)
{
    double t0 = thread_cpu_s(), t1, t2, t3;
    const uint64_t *mask;
    int32_t token;

    if (match_mask(m, MATCH_BASE, &mask, e))
        return e->code;
    t1 = thread_cpu_s();
    sampler_mask(v->logits, v->n, mask);
    t2 = thread_cpu_s();
    memset(v->logits, 0, v->n * sizeof(*v->logits));
    token = draw(mask, v->n_words, rng);
    t3 = thread_cpu_s();
    if (match_advance(m, MATCH_BASE, MATCH_BASE, token, e))
        return e->code;
    t3 = thread_cpu_s() - t3;
    s->mask += t1 - t0;
    s->n_new += t1 - t0 > 5e-6;
    s->apply += t2 - t1;
    s->advance += t3;
    s->worst = t2 - t0 + t3 > s->worst ? t2 - t0 + t3 : s->worst;
    s->n++;
    return 0;
}

static int run_mask(void *context, unsigned round, struct sample *out, struct err *e)
{
    struct mask_arm *a = context;
    struct grammar_match *m = a->match;
    struct spent s = {0};
    uint64_t rng = 1;
    double all;
    int rc = 0;

    (void)round;
    if (!m && match_open(&m, a->grammar, a->v->trie, e))
        return e->code;
    if (a->warm)
        a->match = m;
    rc = match_reset(m, e);
    while (!rc && s.n < (unsigned)opt.tokens) {
        rc = token_spend(m, a->v, &rng, &s, e);
        if (!rc && match_exhausted(m, MATCH_BASE))
            rc = match_reset(m, e);
    }
    if (!a->warm)
        match_close(m);
    if (rc)
        return rc;
    all = s.mask + s.apply + s.advance;
    out->value[M_RATE] = s.n / all;
    out->value[M_US] = 1e6 * all / s.n;
    out->value[M_COMPILE] = 1e3 * a->compile_s;
    out->value[M_MASK] = 1e6 * s.mask / s.n;
    out->value[M_APPLY] = 1e6 * s.apply / s.n;
    out->value[M_ADVANCE] = 1e6 * s.advance / s.n;
    out->value[M_WORST] = 1e6 * s.worst;
    out->value[M_NEW] = 100.0 * s.n_new / s.n;
    out->digest = rng;
    out->has_digest = true;
    return 0;
}

/* Calls of one of many tools, as a chat format without markers would have them. */
static void put_tools(FILE *f)
{
    static const char *const types[] = {
        "{\"type\":\"string\"}",
        "{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}",
        "{\"type\":[\"string\",\"null\"],\"maxLength\":64}",
        "{\"enum\":[\"alpha\",\"beta\",\"gamma\"]}",
        "{\"type\":\"string\",\"format\":\"date-time\"}",
        "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":"
        "\"number\"},\"y\":{\"type\":\"number\"}},\"required\":[\"x\",\"y\"],"
        "\"additionalProperties\":false}}",
    };

    fputs("root ::= \"functions.\" (\"none\"", f);
    for (unsigned i = 0; i < TOOLS; i++)
        fprintf(f, " | \"tool_%u:\" arguments-%u", i, i);
    fputs(")\n", f);
    for (unsigned i = 0; i < TOOLS; i++) {
        fprintf(f, "arguments-%u ::= %%json{\"type\":\"object\",\"properties\":{", i);
        for (unsigned k = 0; k < PROPERTIES; k++)
            fprintf(f, "%s\"property_%u\":%s", k ? "," : "", k, types[(i + k) % N_ELEMS(types)]);
        fputs("},\"required\":[\"property_0\"],\"additionalProperties\":false}\n", f);
    }
}

static int compile(struct mask_arm *a, unsigned which, struct err *e)
{
    const char *schema = cases[which].schema, *grammar = cases[which].grammar;
    char *text = NULL;
    double begun;
    size_t len = 0;
    FILE *f;
    int rc;

    if (!schema && !grammar) {
        f = open_memstream(&text, &len);
        if (f)
            put_tools(f);
        if (!f || fclose(f))
            return err_set(e, ERR_NOMEM, "%s", cases[which].name);
    }
    begun = thread_cpu_s();
    if (schema)
        rc = grammar_compile(&a->grammar, GRAMMAR_JSON_SCHEMA, schema, strlen(schema),
                             a->v->tokenizer, -1, e);
    else
        rc = grammar_compile(&a->grammar, GRAMMAR_TEXT, grammar ? grammar : text,
                             grammar ? strlen(grammar) : len, a->v->tokenizer, -1, e);
    a->compile_s = thread_cpu_s() - begun;
    free(text);
    return rc;
}

static int run_case(struct bench *b, const struct vocabulary *v, unsigned which, struct err *e)
{
    struct mask_arm arm[2] = {{.v = v}, {.v = v, .warm = true}};
    struct trial *t;
    int rc = compile(&arm[0], which, e);

    if (rc)
        return rc;
    arm[1].grammar = arm[0].grammar;
    arm[1].compile_s = arm[0].compile_s;
    t = trial_new(metrics, N_ELEMS(metrics), (unsigned)b->rounds, "%s, %u ids", cases[which].name,
                  v->n);
    if (t) {
        trial_add(t, run_mask, &arm[0], "first answer");
        trial_add(t, run_mask, &arm[1], "later answers");
        if (!trial_run(t))
            rc = err_set(e, ERR_CANCELLED, "%s", cases[which].name);
        report_trial(&b->report, t, NULL);
    } else {
        rc = err_set(e, ERR_NOMEM, "%s", cases[which].name);
    }
    free(t);
    match_close(arm[1].match);
    grammar_close(arm[0].grammar);
    return rc;
}

/* ---- an invented vocabulary: the size of Kimi's, and at least as much punctuation ---- */

enum { INVENTED = 163584, PUNCTUATION = 8000, BLANKS = 64, LONGEST = 64 };

struct invented {
    char *text; /* a rank file */
    size_t len;
    unsigned n;
};

static void rank_add(struct invented *v, const uint8_t *bytes, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        uint32_t w = (uint32_t)bytes[i] << 16 | (i + 1 < n ? bytes[i + 1] << 8 : 0) |
                     (i + 2 < n ? bytes[i + 2] : 0);

        v->text[v->len++] = digit[w >> 18];
        v->text[v->len++] = digit[w >> 12 & 63];
        v->text[v->len++] = i + 1 < n ? digit[w >> 6 & 63] : '=';
        v->text[v->len++] = i + 2 < n ? digit[w & 63] : '=';
    }
    v->len += (size_t)sprintf(v->text + v->len, " %u\n", v->n++);
}

/* Words of syllables, by number; each second one begins with a blank. */
static void word_add(struct invented *v, unsigned k)
{
    static const char first[] = "bcdfghjklmnprstvwxz", vowel[] = "aeiou";
    uint8_t w[LONGEST];
    size_t n = 0;

    if (k % 2)
        w[n++] = ' ';
    for (k = k / 2 + 1; k; k /= 19 * 5) {
        w[n++] = (uint8_t)first[k % 19];
        w[n++] = (uint8_t)vowel[k / 19 % 5];
    }
    w[n++] = 'n';
    rank_add(v, w, n);
}

static void invent(struct invented *v)
{
    static const char mark[] = "\"\\:,{}[] \n.-'(_)t=</";
    uint8_t w[LONGEST];

    for (unsigned c = 0; c < 256; c++)
        rank_add(v, (const uint8_t[]){(uint8_t)c}, 1);
    for (unsigned n = 2; n <= BLANKS; n++) {
        memset(w, ' ', n);
        rank_add(v, w, n);
    }
    for (unsigned k = 0; k < 1100; k++)
        rank_add(v, w,
                 (size_t)sprintf((char *)w, k < 100 ? "%02u" : "%03u", k < 100 ? k : k - 100));
    for (unsigned k = 0; k < PUNCTUATION; k++) { /* 2 or 3 marks, none twice in a row of numbers */
        size_t n = 0;

        w[n++] = (uint8_t)mark[k % 20];
        w[n++] = (uint8_t)mark[k / 20 % 20];
        w[n++] = (uint8_t)mark[k / 400 % 20];
        if (memcmp(w, "   ", 3) != 0)
            rank_add(v, w, n);
    }
    for (unsigned k = 0; v->n < INVENTED; k++)
        word_add(v, k);
}

static int vocabulary_open(struct vocabulary *v, const struct bench *b, struct err *e)
{
    struct invented made = {.text = NULL};
    int rc;

    if (b->n_args) {
        rc = tokenizer_open(&v->tokenizer, b->arg[0], 0, e);
    } else {
        made.text = malloc((size_t)INVENTED * 2 * LONGEST);
        if (!made.text)
            return err_set(e, ERR_NOMEM, "vocabulary");
        invent(&made);
        rc = tokenizer_parse(&v->tokenizer, made.text, made.len, NULL, 0, 0, e);
        free(made.text);
    }
    if (rc)
        return rc;
    v->n = tokenizer_n_ranks(v->tokenizer) + 256;
    v->n_words = (v->n + 63) / 64;
    v->logits = calloc((size_t)v->n_words * 64, sizeof(*v->logits));
    if (!v->logits)
        return err_set(e, ERR_NOMEM, "logits");
    return token_trie_open(&v->trie, v->tokenizer, v->n, e);
}

static int run(struct bench *b)
{
    struct vocabulary v = {0};
    struct err e;
    int rc = vocabulary_open(&v, b, &e);

    if (!rc)
        report_note(&b->report, "%s: %u ids, their tree takes %.1f MB; times are of one processor",
                    b->n_args ? b->arg[0] : "an invented vocabulary", v.n,
                    (double)token_trie_bytes(v.trie) * 1e-6);
    for (unsigned i = 0; !rc && i < N_ELEMS(cases); i++)
        rc = run_case(b, &v, i, &e);
    token_trie_close(v.trie);
    tokenizer_close(v.tokenizer);
    free(v.logits);
    return rc ? bench_fail_err(b, &e) : 0;
}

const struct bench_command bench_mask = {
    .name = "mask",
    .args = "[OPTIONS] [MODEL]",
    .summary = "constrained answers: what a grammar costs a token",
    .text = "Random answers under several JSON schemas: the mask of each token, the mask on the\n"
            "logits, moving on by the token chosen. \"First answer\" begins with nothing known;\n"
            "`new` masks are those that were not kept from before, `worst` is the dearest token.\n"
            "Without MODEL the vocabulary is an invented one of 163,584 tokens, 8,000 of them\n"
            "punctuation.",
    .flags = flags,
    .min_args = 0,
    .max_args = 1,
    .takes_model = true,
    .examples = "  waste-bench mask\n"
                "  waste-bench mask kimi.waste --tokens 2000\n",
    .run = run,
};
