#include "cli/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/list.h"
#include "cli/asked.h"
#include "cli/prompt.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

struct request { /* a line with something in it */
    const char *text;
    size_t len, line; /* line: 1, 2, ... */
    uint64_t hash;
    bool answered;
};

enum made { MADE_MODEL, MADE_GRAMMAR, MADE_PROGRAM, MADE_NUMERIC, N_MADE };

struct batch {
    struct cli *c;
    struct text text;
    struct request *requests;
    size_t n, n_answered, n_failed;
    size_t next;       /* request that the next answer in the file is likely of */
    uint64_t settings; /* a hash of the options that answers depend on */
    /* Of every answer in the file. The profile is "" until an answer or the open model says it. */
    char made[N_MADE][24];
    int fd;
    const char *out;
};

/* ---- which request an answer is of ---- */

static uint64_t hash_text(uint64_t h, const char *text)
{
    return text ? hash_bytes(h, text, strlen(text) + 1) : hash_bytes(h, "", 1);
}

static uint64_t hash_settings(const struct opts *o)
{
    const double numbers[] = {
        o->temp,
        o->top_p,
        o->min_p,
        o->repeat_penalty,
        o->presence_penalty,
        o->frequency_penalty,
        (double)o->top_k,
        (double)o->repeat_window,
        (double)o->n_tokens,
        (double)(o->seed_set ? o->seed : 0),
        o->seed_set,
        o->raw,
    };
    uint64_t h = hash_bytes(HASH_BEGIN, numbers, sizeof(numbers));

    h = hash_text(hash_text(h, o->system), o->think);
    /* What is not asked for adds nothing: answers of programs that did not have it are taken up. */
    if (o->think_limit >= 0)
        h = hash_bytes(hash_text(h, "think-limit"), &o->think_limit, sizeof(o->think_limit));
    if (o->vision) /* without it a picture is a line's error */
        h = hash_bytes(h, "vision", 6);
    if (o->image_patches)
        h = hash_bytes(h, &o->image_patches, sizeof(o->image_patches));
    for (unsigned i = 0; i < o->n_stop; i++)
        h = hash_text(h, o->stop[i]);
    for (unsigned i = 0; i < o->n_bias; i++)
        h = hash_bytes(h, &o->bias[i], sizeof(o->bias[i]));
    return h;
}

static const char *hash_name(char text[17], uint64_t h)
{
    snprintf(text, 17, "%016" PRIx64, h);
    return text;
}

/* ---- what makes an answer, besides ---- */

static const struct {
    const char *member, *text;
} made_by[N_MADE] = {
    [MADE_MODEL] = {"model", "the model"},
    [MADE_GRAMMAR] = {"grammar", "--grammar or --json-schema"},
    [MADE_PROGRAM] = {"program", "waste"},
    [MADE_NUMERIC] = {"numeric", "--numeric"},
};

static int hash_file(struct batch *b, uint64_t *h, const char *dir, const char *name)
{
    char path[PATH_MAX + 32], bytes[4096];
    size_t n;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : fail(b->c, EXIT_RUNTIME, NULL, path, "%s", strerror(errno));
    *h = hash_text(*h, name);
    while ((n = fread(bytes, 1, sizeof(bytes), f)) > 0)
        *h = hash_bytes(*h, bytes, n);
    n = (size_t)ferror(f);
    fclose(f);
    return n ? fail(b->c, EXIT_RUNTIME, NULL, path, "cannot be read") : 0;
}

/* A container by its small files. Codebooks are fitted to the weights: other weights have others.
 */
static int name_model(struct batch *b, const char *path)
{
    static const char *const files[] = {"manifest.json", "codebooks.bin", "tokenizer.model",
                                        "specials.json", "chat.json"};
    uint64_t h = HASH_BEGIN;
    int rc = 0;

    for (size_t i = 0; i < N_ELEMS(files) && !rc; i++)
        rc = hash_file(b, &h, path, files[i]);
    hash_name(b->made[MADE_MODEL], h);
    return rc;
}

static void name_grammar(struct batch *b, const struct text *grammar)
{
    char *name = b->made[MADE_GRAMMAR];

    if (!grammar->bytes) {
        strcpy(name, "none");
        return;
    }
    hash_name(name + 2, hash_bytes(HASH_BEGIN, grammar->bytes, grammar->len));
    name[0] = b->c->opts.json_schema ? 's' : 'g';
    name[1] = ':';
}

static int made_otherwise(struct batch *b, size_t line, enum made i, const char *there)
{
    return fail(b->c, EXIT_USAGE, "Give another --out, or what the answers there were made with.",
                b->out, "line %zu was made with another %s: %s, now it is %s", line,
                made_by[i].text, there, b->made[i]);
}

/* All answers of a file are made by the same; the first one stands for a profile not yet known. */
static int match_made(struct batch *b, const json_t *answer, size_t line)
{
    const json_t *made = json_object_get(answer, "made_by");

    for (int i = 0; i < N_MADE; i++) {
        const char *there = json_string_value(json_object_get(made, made_by[i].member));

        if (!there)
            there = "nobody knows";
        if (i == MADE_NUMERIC && !*b->made[i])
            snprintf(b->made[i], sizeof(b->made[i]), "%s", there);
        if (strcmp(there, b->made[i]) != 0)
            return made_otherwise(b, line, (enum made)i, there);
    }
    return 0;
}

/* The profile that the open model computes in: is it that of the answers before? */
static int know_numeric(struct batch *b, const struct speaker *s)
{
    waste_engine engine = {.size = sizeof(engine)};
    char there[24];

    waste_engine_info(s->ctx, &engine);
    memcpy(there, b->made[MADE_NUMERIC], sizeof(there));
    snprintf(b->made[MADE_NUMERIC], sizeof(b->made[MADE_NUMERIC]), "%s", engine.numeric);
    if (b->n_answered && strcmp(there, engine.numeric) != 0)
        return made_otherwise(b, 1, MADE_NUMERIC, there);
    return 0;
}

/* ---- what is there ---- */

static int split(struct batch *b)
{
    const char *at = b->text.bytes, *end = at + b->text.len;
    size_t room = 0, line = 0;

    if (b->text.len >= 3 && !memcmp(at, "\xef\xbb\xbf", 3)) /* of some editors: no part of it */
        at += 3;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((stop ? stop : end) - at);

        line++;
        while (len && strchr(" \t\r", at[len - 1]) && at[len - 1])
            len--;
        if (!list_room(&b->requests, &room, b->n + 1, sizeof(*b->requests)))
            return fail(b->c, EXIT_MEMORY, NULL, "run", "no memory for %zu requests", b->n + 1);
        if (len)
            b->requests[b->n++] = (struct request){
                .text = at, .len = len, .line = line, .hash = hash_bytes(b->settings, at, len)};
        at = stop ? stop + 1 : end;
    }
    return 0;
}

static bool find_request(struct batch *b, const char *name, size_t *at)
{
    uint64_t h = strtoull(name, NULL, 16);

    for (size_t tried = 0; tried < b->n; tried++) {
        *at = (b->next + tried) % b->n;
        if (!b->requests[*at].answered && b->requests[*at].hash == h)
            return true;
    }
    return false;
}

/* An answer that is there: to which request? */
static int match(struct batch *b, const char *text, size_t len, size_t line)
{
    json_t *answer = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    const char *name = json_string_value(json_object_get(answer, "request"));
    size_t i;
    int rc = name ? match_made(b, answer, line) : 0;

    if (!rc && name && find_request(b, name, &i)) {
        b->next = i + 1;
        b->requests[i].answered = true;
        b->n_answered++;
        b->n_failed += json_object_get(answer, "error") != NULL;
    } else if (!rc) {
        rc = fail(b->c, EXIT_USAGE, "Give another --out, or remove what is to be answered anew.",
                  b->out,
                  name ? "line %zu answers no request that is asked now: the request, or a "
                         "setting, was another one"
                       : "line %zu is no answer of `waste run --out`",
                  line);
    }
    json_decref(answer);
    return rc;
}

/* A last line without its end: cut it if a crash left it of one of ours. */
static int cut_torn(struct batch *b, const char *text, size_t len, off_t at)
{
    static const char ours[] = "{\"line\":";
    size_t n = len < sizeof(ours) - 1 ? len : sizeof(ours) - 1;

    if (memcmp(text, ours, n) != 0)
        return fail(b->c, EXIT_USAGE, "Give another --out.", b->out,
                    "the last line has no end, and is no answer of `waste run --out`: it is not "
                    "cut");
    if (ftruncate(b->fd, at))
        return fail(b->c, EXIT_RUNTIME, NULL, b->out, "%s", strerror(errno));
    return 0;
}

/* What was written before, without a line that a crash has torn. */
static int read_answers(struct batch *b)
{
    off_t size = lseek(b->fd, 0, SEEK_END), whole = 0;
    char *text = size >= 0 ? malloc((size_t)size + 1) : NULL;
    int rc = 0;

    if (!text)
        return fail(b->c, EXIT_RUNTIME, NULL, b->out, "%s", strerror(errno));
    if (pread(b->fd, text, (size_t)size, 0) != size)
        rc = fail(b->c, EXIT_RUNTIME, NULL, b->out, "cannot be read");
    for (size_t line = 1; !rc && whole < size; line++) {
        char *end = memchr(text + whole, '\n', (size_t)(size - whole));

        if (!end)
            break;
        rc = match(b, text + whole, (size_t)(end - text - whole), line);
        whole = end - text + 1;
    }
    if (!rc && whole < size)
        rc = cut_torn(b, text + whole, (size_t)(size - whole), whole);
    free(text);
    return rc;
}

/* The file's name is to survive a loss of power, too. */
static void sync_name(const char *path)
{
    char copy[PATH_MAX];
    int fd;

    snprintf(copy, sizeof(copy), "%s", path);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

static bool same_file(int fd, const char *path)
{
    struct stat a, b;

    return path && strcmp(path, "-") && !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static int open_answers(struct batch *b)
{
    struct stat st;

    b->fd = open(b->out, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (b->fd < 0 || fstat(b->fd, &st))
        return fail(b->c, EXIT_RUNTIME, NULL, b->out, "%s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(b->c, EXIT_RUNTIME, NULL, b->out, "not a file");
    if (same_file(b->fd, b->c->opts.file))
        return fail(b->c, EXIT_USAGE, NULL, b->out, "the requests are in it");
    if (flock(b->fd, LOCK_EX | LOCK_NB))
        return fail(b->c, EXIT_BUSY, NULL, b->out, "another run writes answers to it");
    sync_name(b->out);
    return read_answers(b);
}

int batch_open(struct batch **out, struct cli *c, const char *path, const struct text *grammar)
{
    struct batch *b = calloc(1, sizeof(*b));
    int rc;

    if (!b)
        return fail(c, EXIT_MEMORY, NULL, "run", "no memory");
    *b = (struct batch){.c = c, .fd = -1, .out = c->opts.out, .settings = hash_settings(&c->opts)};
    snprintf(b->made[MADE_PROGRAM], sizeof(b->made[MADE_PROGRAM]), "%s", waste_version());
    snprintf(b->made[MADE_NUMERIC], sizeof(b->made[MADE_NUMERIC]), "%s",
             c->opts.numeric ? c->opts.numeric : "");
    name_grammar(b, grammar);
    rc = name_model(b, path);
    if (!rc)
        rc = text_read(c, 2, &b->text);
    if (!rc)
        rc = split(b);
    if (!rc)
        rc = open_answers(b);
    if (rc) {
        batch_close(b);
        return rc;
    }
    if (!b->n)
        note(c, "%s: 0 requests", b->out);
    else if (b->n_answered)
        note(c, "%s: %zu of %zu request%s answered already", b->out, b->n_answered, b->n,
             plural(b->n));
    *out = b;
    return 0;
}

void batch_close(struct batch *b)
{
    if (!b)
        return;
    if (b->fd >= 0)
        close(b->fd);
    free(b->requests);
    free(b->text.bytes);
    free(b);
}

size_t batch_left(const struct batch *b)
{
    return b->n - b->n_answered;
}

/* ---- an answer ---- */

static bool show(struct turn *t, const waste_item *item, double ms)
{
    (void)t, (void)item, (void)ms;
    return true;
}

static json_t *begin_answer(const struct batch *b, const struct request *r, const struct asked *a)
{
    json_t *o = json_pack("{s:I}", "line", (json_int_t)r->line), *id, *made = json_object();
    char name[17];

    id = json_object_get(a->line, "id");
    if (id)
        json_object_set(o, "id", id);
    json_object_set_new(o, "request", json_string(hash_name(name, r->hash)));
    for (int i = 0; i < N_MADE; i++)
        json_object_set_new(made, made_by[i].member, json_string(b->made[i]));
    json_object_set_new(o, "made_by", made);
    return o;
}

static void put(json_t *o, const json_t *message, const char *from, const char *as)
{
    json_t *v = json_object_get(message, from);

    if (v)
        json_object_set(o, as, v);
}

static const char *finish_name(const struct turn *t, const json_t *message)
{
    if (t->end == END_ID && json_object_get(message, "tool_calls"))
        return "tool_calls";
    return t->end == END_ID || t->end == END_STRING ? "stop" : end_name(t->end);
}

static void end_answer(json_t *o, struct turn *t, const struct asked *a)
{
    json_t *message = t->reply ? turn_message(t) : NULL;

    json_object_set_new(o, "text", json_text(buf_all(&t->answer.whole).s, t->answer.whole.n));
    put(o, message, "reasoning_content", "reasoning");
    put(o, message, "tool_calls", "tool_calls");
    json_object_set_new(o, "finish", json_string(finish_name(t, message)));
    if (speaker_held(t->by))
        json_object_set_new(o, "complete", json_boolean(!speaker_cut(t->by)));
    json_object_set_new(o, "usage",
                        json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)t->n_ids,
                                  "completion_tokens", (json_int_t)t->n_generated, "total_tokens",
                                  (json_int_t)t->n_ids + (json_int_t)t->n_generated));
    if (a->opts.temp > 0)
        json_object_set_new(o, "seed", json_u64(a->opts.seed));
    json_object_set_new(o, "ms", json_real((t->prefill_s + t->decode_s) * 1e3));
    json_decref(message);
}

/* Ask. 0: o has the answer; ERR_CANCELLED: an interrupt ended it; else why there is none. */
static int ask(struct batch *b, struct speaker *s, struct asked *a, json_t *o, struct err *e)
{
    const struct opts *p = &a->opts;
    struct turn t = {0};
    int rc;

    if (draw_seed(b->c, &a->opts))
        return err_set(e, ERR_IO, "the system has no seed to give");
    if (a->request)
        rc = turn_open_request(&t, s, a->request, strlen(a->request), p->stop, p->n_stop, e);
    else
        rc = turn_open_ids(&t, s, a->ids.id, a->ids.n, p->stop, p->n_stop, e);
    if (!rc && t.n_ids > s->ctx_max)
        rc = err_set(e, ERR_ARG, "the prompt has %zu token%s, the context %u position%s", t.n_ids,
                     plural(t.n_ids), s->ctx_max, plural(s->ctx_max));
    if (!rc)
        rc = speaker_sampling(s, &t, p, 0, e);
    if (!rc) {
        t.n_max = p->n_tokens ? (uint32_t)p->n_tokens : TOKENS_DEFAULT;
        t.show = show;
        if (a->has_system)
            turn_keep_long(&t, 0);
        turn_run(&t);
        if (t.end == END_INTERRUPTED)
            rc = err_set(e, ERR_CANCELLED, "interrupted");
        else if (t.end == END_ERROR)
            rc = err_set(e, ERR_IO, "%s", t.status != WASTE_OK ? t.detail : t.err.text);
        else
            end_answer(o, &t, a);
    }
    if (!rc)
        note(b->c, "line %lld: %u token%s, %.2f tok/s, ended by %s",
             (long long)json_integer_value(json_object_get(o, "line")), t.n_generated,
             plural(t.n_generated), turn_rate(&t), end_text(t.end));
    turn_close(&t);
    return rc;
}

/* One line, whole or (after a crash) torn; on the disk when this returns. */
static int append(struct batch *b, const json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    size_t len = text ? strlen(text) : 0, at = 0;

    if (!text)
        return fail(b->c, EXIT_MEMORY, NULL, b->out, "no memory for the answer");
    text[len++] = '\n'; /* in the place of the NUL */
    while (at < len) {
        ssize_t n = write(b->fd, text + at, len - at);

        if (n < 0 && errno != EINTR)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    free(text);
    if (at < len || fsync(b->fd))
        return fail(b->c, EXIT_RUNTIME, "The same command goes on where it was.", b->out, "%s",
                    strerror(errno));
    return 0;
}

static int answer(struct batch *b, struct speaker *s, struct request *r)
{
    struct asked a = {.opts = b->c->opts};
    json_t *o;
    struct err e = {0};
    int rc;

    rc = asked_parse(&a, r->text, r->len, &e);
    if (!rc)
        rc = asked_prepare(&a, s, &e);
    o = begin_answer(b, r, &a);
    if (!rc)
        rc = ask(b, s, &a, o, &e);
    if (rc == ERR_CANCELLED) {
        rc = EXIT_INTERRUPTED;
    } else {
        if (rc) {
            json_object_set_new(o, "error", json_text(e.text, strlen(e.text)));
            note(b->c, "line %zu: %s", r->line, e.text);
            b->n_failed++;
        }
        rc = append(b, o);
    }
    json_decref(o);
    asked_release(&a);
    return rc;
}

int batch_run(struct batch *b, struct speaker *s)
{
    int rc = batch_left(b) ? know_numeric(b, s) : 0;

    for (size_t i = 0; i < b->n && !rc; i++) {
        if (!b->requests[i].answered)
            rc = term_interrupted() ? EXIT_INTERRUPTED : answer(b, s, &b->requests[i]);
    }
    if (!rc && b->n_failed)
        rc = fail(b->c, EXIT_RUNTIME, NULL, b->out,
                  "%zu of %zu request%s failed; the answers say why", b->n_failed, b->n,
                  plural(b->n));
    return rc;
}
