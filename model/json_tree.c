#include "model/json_tree.h"

#include "base/json.h"
#include "model/utf8.h"

#include <stdalign.h>

#define CHUNK_MIN ((size_t)4096)
#define CHUNK_MAX ((size_t)1 << 20)

struct tree_chunk {
    struct tree_chunk *next;
    size_t used, cap;
    alignas(max_align_t) char bytes[];
};

struct reader {
    const char *text;
    size_t len, at;
    struct tree *tree;
    unsigned depth, n_values;
    struct err *e;
};

void *tree_alloc(struct tree *tree, size_t bytes)
{
    struct tree_chunk *c = tree->chunks;
    size_t need = (bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1), cap;

    if (need < bytes)
        return NULL;
    if (!c || need > c->cap - c->used) {
        cap = tree->chunk_bytes < CHUNK_MIN ? CHUNK_MIN : tree->chunk_bytes;
        tree->chunk_bytes = cap < CHUNK_MAX ? 2 * cap : cap;
        if (cap < need)
            cap = need;
        c = malloc(sizeof(*c) + cap);
        if (!c)
            return NULL;
        *c = (struct tree_chunk){.next = tree->chunks, .cap = cap};
        tree->chunks = c;
    }
    c->used += need;
    return c->bytes + c->used - need;
}

void tree_release(struct tree *tree)
{
    while (tree->chunks) {
        struct tree_chunk *c = tree->chunks;

        tree->chunks = c->next;
        free(c);
    }
    *tree = (struct tree){0};
}

void tree_adopt(struct tree *tree, struct tree *from)
{
    struct tree_chunk **end = &tree->chunks;

    while (*end)
        end = &(*end)->next;
    *end = from->chunks;
    *from = (struct tree){0};
}

const struct node *node_get(const struct node *node, const char *key)
{
    size_t len = strlen(key);

    if (!node || node->type != NODE_OBJECT)
        return NULL;
    for (const struct node *m = node->child; m; m = m->next)
        if (m->key.len == len && !memcmp(m->key.s, key, len))
            return m->type == NODE_NULL ? NULL : m;
    return NULL;
}

int node_get_text(struct str *out, const struct node *object, const char *key, const char *path,
                  struct err *e)
{
    const struct node *v = node_get(object, key);

    *out = (struct str){0};
    if (v && v->type != NODE_STRING)
        return err_set(e, ERR_ARG, "%s%s%s must be a text, not %s", path, *path ? "." : "", key,
                       node_type_name(v));
    if (v)
        *out = v->text;
    return 0;
}

int node_get_flag(bool *out, const struct node *object, const char *key, const char *path,
                  struct err *e)
{
    const struct node *v = node_get(object, key);

    if (v && v->type != NODE_TRUE && v->type != NODE_FALSE)
        return err_set(e, ERR_ARG, "%s%s%s must be true or false, not %s", path, *path ? "." : "",
                       key, node_type_name(v));
    if (v)
        *out = v->type == NODE_TRUE;
    return 0;
}

bool node_is_text(const struct node *node, const char *text)
{
    return node && node->type == NODE_STRING && str_is(node->text, str_of(text));
}

const char *node_type_name(const struct node *node)
{
    static const char *const names[] = {"null",     "false",  "true",     "an integer",
                                        "a number", "a text", "an array", "an object"};

    return node ? names[node->type] : "nothing";
}

const char *str_shown(struct str s)
{
    static _Thread_local char text[64];

    return json_printable(text, sizeof(text), s.len ? s.s : "", s.len);
}

static int wrong(struct reader *r, const char *what)
{
    return err_set(r->e, ERR_ARG, "JSON error at byte %zu: %s", r->at, what);
}

static int no_memory(struct reader *r)
{
    return err_set(r->e, ERR_NOMEM, "%zu bytes of JSON", r->len);
}

static void skip_space(struct reader *r)
{
    while (r->at < r->len && memchr(" \t\r\n", r->text[r->at], 4))
        r->at++;
}

static bool take(struct reader *r, char c)
{
    if (r->at == r->len || r->text[r->at] != c)
        return false;
    r->at++;
    return true;
}

/* Four hexadecimal digits at `at`; -1: there are none. */
static int hex4(const struct reader *r, size_t at)
{
    int v = 0;

    if (r->len - at < 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = r->text[i];

        if (c >= '0' && c <= '9')
            v = v << 4 | (c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v << 4 | ((c | 32) - 'a' + 10);
        else
            return -1;
    }
    return v;
}

/* What follows \u; a pair of surrogates is one character, half of one is U+FFFD. */
static int read_unicode(struct reader *r, char **to)
{
    int high = hex4(r, r->at), low;
    uint32_t c = (uint32_t)high;

    if (high < 0)
        return wrong(r, "\\u needs four hexadecimal digits");
    r->at += 4;
    if (c >= 0xd800 && c < 0xe000) {
        low = -1;
        if (c < 0xdc00 && r->len - r->at >= 2 && r->text[r->at] == '\\' &&
            r->text[r->at + 1] == 'u')
            low = hex4(r, r->at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            c = 0x10000 + ((c & 0x3ff) << 10) + ((uint32_t)low & 0x3ff);
            r->at += 6;
        } else {
            c = 0xfffd;
        }
    }
    *to += utf8_put(*to, c);
    return 0;
}

static int read_escape(struct reader *r, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    const char *at;

    if (take(r, 'u'))
        return read_unicode(r, to);
    at = r->at < r->len && r->text[r->at] ? strchr(from, r->text[r->at]) : NULL;
    if (!at)
        return wrong(r, "unknown escape");
    r->at++;
    *(*to)++ = into[at - from];
    return 0;
}

/* Behind the opening quote. What is read is never longer than how it was written. */
static int read_string(struct reader *r, struct str *out)
{
    size_t end = r->at;
    char *s, *to;

    while (end < r->len && r->text[end] != '"')
        end += r->text[end] == '\\' ? 2 : 1;
    if (end >= r->len)
        return wrong(r, "a string does not end");
    s = to = tree_alloc(r->tree, end - r->at + 1);
    if (!s)
        return no_memory(r);
    while (r->at < end) {
        char c = r->text[r->at];

        if ((unsigned char)c < 0x20)
            return wrong(r, "a control character in a string must be escaped");
        r->at++;
        if (c != '\\')
            *to++ = c;
        else if (read_escape(r, &to))
            return r->e->code;
    }
    r->at = end + 1;
    *out = (struct str){s, (size_t)(to - s)};
    return 0;
}

static size_t skip_digits(struct reader *r)
{
    size_t from = r->at;

    while (r->at < r->len && r->text[r->at] >= '0' && r->text[r->at] <= '9')
        r->at++;
    return r->at - from;
}

static int read_number(struct reader *r, struct node *node)
{
    size_t from = r->at;
    bool zero;
    char *s;

    node->type = NODE_INTEGER;
    take(r, '-');
    zero = r->at < r->len && r->text[r->at] == '0';
    if (zero)
        r->at++;
    else if (!skip_digits(r))
        return wrong(r, "not a value");
    if (take(r, '.')) {
        node->type = NODE_REAL;
        if (!skip_digits(r))
            return wrong(r, "digits are missing behind the point");
    }
    if (take(r, 'e') || take(r, 'E')) {
        node->type = NODE_REAL;
        if (!take(r, '-'))
            take(r, '+');
        if (!skip_digits(r))
            return wrong(r, "digits are missing in the exponent");
    }
    s = tree_alloc(r->tree, r->at - from + 1);
    if (!s)
        return no_memory(r);
    memcpy(s, r->text + from, r->at - from);
    s[r->at - from] = '\0';
    node->text = (struct str){s, r->at - from};
    return 0;
}

static int read_value(struct reader *r, struct node **out);

static int read_array(struct reader *r, struct node *node)
{
    struct node **last = &node->child;

    node->type = NODE_ARRAY;
    skip_space(r);
    if (take(r, ']'))
        return 0;
    for (;; last = &(*last)->next) {
        if (read_value(r, last))
            return r->e->code;
        node->n++;
        skip_space(r);
        if (take(r, ']'))
            return 0;
        if (!take(r, ','))
            return wrong(r, "',' or ']' is missing");
    }
}

struct member {
    struct node *node;
    uint32_t nth;
};

static int key_order(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    struct str k = x->node->key, l = y->node->key;
    size_t n = k.len < l.len ? k.len : l.len;
    int c = n ? memcmp(k.s, l.s, n) : 0;

    if (!c)
        c = (k.len > l.len) - (k.len < l.len);
    return c ? c : (x->nth > y->nth) - (x->nth < y->nth);
}

/* The last of several values takes the place of the first; the others go. */
static int drop_repeated(struct reader *r, struct node *object)
{
    struct member *m = malloc((object->n + 1) * sizeof(*m));
    struct node **at = &object->child;
    uint32_t i = 0, first = 0;

    if (!m)
        return no_memory(r);
    for (struct node *c = object->child; c; c = c->next, i++)
        m[i] = (struct member){c, i};
    qsort(m, object->n, sizeof(*m), key_order);
    for (i = 1; i < object->n; i++) {
        struct node *keep = m[first].node, *later = m[i].node;

        if (!str_is(keep->key, later->key)) {
            first = i;
            continue;
        }
        keep->type = later->type;
        keep->n = later->n;
        keep->text = later->text;
        keep->child = later->child;
        later->key.s = NULL;
    }
    free(m);
    while (*at) {
        if ((*at)->key.s) {
            at = &(*at)->next;
        } else {
            *at = (*at)->next;
            object->n--;
        }
    }
    return 0;
}

static int read_object(struct reader *r, struct node *node)
{
    struct node **last = &node->child;
    struct str key;

    node->type = NODE_OBJECT;
    skip_space(r);
    if (take(r, '}'))
        return 0;
    for (;; last = &(*last)->next) {
        skip_space(r);
        if (!take(r, '"'))
            return wrong(r, "a member's name is missing");
        if (read_string(r, &key))
            return r->e->code;
        skip_space(r);
        if (!take(r, ':'))
            return wrong(r, "':' is missing");
        if (read_value(r, last))
            return r->e->code;
        (*last)->key = key;
        node->n++;
        skip_space(r);
        if (take(r, '}'))
            return node->n > 1 ? drop_repeated(r, node) : 0;
        if (!take(r, ','))
            return wrong(r, "',' or '}' is missing");
    }
}

static int read_word(struct reader *r, struct node *node)
{
    static const struct {
        struct str word;
        enum node_type type;
    } words[] = {{STR("null"), NODE_NULL}, {STR("false"), NODE_FALSE}, {STR("true"), NODE_TRUE}};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct str w = words[i].word;

        if (r->len - r->at >= w.len && !memcmp(r->text + r->at, w.s, w.len)) {
            r->at += w.len;
            node->type = words[i].type;
            return 0;
        }
    }
    return read_number(r, node);
}

static int read_value(struct reader *r, struct node **out)
{
    struct node *node = tree_alloc(r->tree, sizeof(*node));
    int rc;

    if (!node)
        return no_memory(r);
    *node = (struct node){0};
    *out = node;
    if (++r->n_values > TREE_VALUES_MAX)
        return err_set(r->e, ERR_LIMIT, "more than %d JSON values at byte %zu", TREE_VALUES_MAX,
                       r->at);
    skip_space(r);
    if (r->at == r->len)
        return wrong(r, "a value is missing");
    if (take(r, '"')) {
        node->type = NODE_STRING;
        return read_string(r, &node->text);
    }
    if (r->text[r->at] != '[' && r->text[r->at] != '{')
        return read_word(r, node);
    if (r->depth > TREE_DEPTH_MAX)
        return err_set(r->e, ERR_LIMIT, "JSON nested deeper than %d at byte %zu", TREE_DEPTH_MAX,
                       r->at);
    r->depth++;
    rc = r->text[r->at++] == '[' ? read_array(r, node) : read_object(r, node);
    r->depth--;
    return rc;
}

int tree_parse(struct tree *tree, const char *text, size_t len, struct err *e)
{
    struct reader r = {.text = text, .len = len, .tree = tree, .e = e};

    r.at = utf8_valid_prefix(text, len);
    if (r.at != len)
        return wrong(&r, "not UTF-8");
    r.at = 0;
    if (read_value(&r, &tree->root))
        return e->code;
    skip_space(&r);
    return r.at == len ? 0 : wrong(&r, "something follows the value");
}
