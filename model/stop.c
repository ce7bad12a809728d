#include "model/stop.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct node {
    uint32_t child,
        next;       /* the first, and the next of its parent's; 0: none, the root is nobody's */
    uint32_t fail;  /* longest proper end of this state that is a state */
    uint32_t depth; /* bytes of text this state stands for */
    int string;     /* the longest string that ends here, or -1 */
    uint8_t byte;   /* that leads here */
};

struct stop {
    struct node *node;
    uint32_t n_nodes, state;
    uint32_t first[256]; /* the root's children by byte: what most of a text is looked up in */
    uint32_t *length;    /* of string i */
    char *held;          /* the node's text: depth bytes */
    size_t held_max;
};

/* 0: none. */
static uint32_t child_of(const struct stop *s, uint32_t node, uint8_t byte)
{
    uint32_t child = node ? s->node[node].child : s->first[byte];

    while (child && s->node[child].byte != byte)
        child = s->node[child].next;
    return child;
}

/* The state behind one more byte. Each step back by `fail` undoes one byte that led here before. */
static uint32_t step(const struct stop *s, uint32_t state, uint8_t byte)
{
    uint32_t child;

    while (!(child = child_of(s, state, byte)) && state)
        state = s->node[state].fail;
    return child;
}

static uint32_t child_add(struct stop *s, uint32_t parent, uint8_t byte)
{
    uint32_t child = s->n_nodes++;

    s->node[child] = (struct node){.depth = s->node[parent].depth + 1,
                                   .string = -1,
                                   .byte = byte,
                                   .next = s->node[parent].child};
    s->node[parent].child = child;
    if (!parent)
        s->first[byte] = child;
    return child;
}

static void insert(struct stop *s, const waste_text *text, int string)
{
    uint32_t at = 0;

    for (size_t i = 0; i < text->len; i++) {
        uint8_t byte = (uint8_t)text->text[i];
        uint32_t child = child_of(s, at, byte);

        at = child ? child : child_add(s, at, byte);
    }
    if (s->node[at].string < 0)
        s->node[at].string = string;
}

/* Breadth first, so that a node's fail state, which is shorter, is finished before the node. */
static void link_nodes(struct stop *s, uint32_t *queue)
{
    uint32_t n = 1;

    queue[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = queue[i];

        for (uint32_t child = s->node[at].child; child; child = s->node[child].next) {
            struct node *x = &s->node[child];

            x->fail = at ? step(s, s->node[at].fail, x->byte) : 0;
            if (x->string < 0)
                x->string = s->node[x->fail].string;
            queue[n++] = child;
        }
    }
}

static int build(struct stop *s, const waste_text *texts, unsigned n, struct err *e)
{
    size_t total = 1, longest = 1;
    uint32_t *queue;

    for (unsigned i = 0; i < n; i++) {
        size_t len = texts[i].len;

        if (!len)
            return err_set(e, ERR_ARG, "a stop string is empty");
        total += len;
        longest = len > longest ? len : longest;
    }
    if (total > UINT32_MAX / sizeof(struct node))
        return err_set(e, ERR_ARG, "stop strings of %zu bytes in all are too long", total - 1);
    s->held_max = longest - 1;
    s->node = calloc(total, sizeof(*s->node));
    s->length = calloc(n ? n : 1, sizeof(*s->length));
    s->held = malloc(longest);
    queue = calloc(total, sizeof(*queue));
    if (!s->node || !s->length || !s->held || !queue) {
        free(queue);
        return err_set(e, ERR_NOMEM, "stop strings");
    }
    s->node[0].string = -1;
    s->n_nodes = 1;
    for (unsigned i = 0; i < n; i++) {
        s->length[i] = (uint32_t)texts[i].len;
        insert(s, &texts[i], (int)i);
    }
    link_nodes(s, queue);
    free(queue);
    return 0;
}

int stop_open(struct stop **out, const waste_text *texts, unsigned n, struct err *e)
{
    struct stop *s = calloc(1, sizeof(*s));

    if (!s)
        return err_set(e, ERR_NOMEM, "stop strings");
    if (build(s, texts, n, e)) {
        stop_close(s);
        return e->code;
    }
    *out = s;
    return 0;
}

void stop_close(struct stop *s)
{
    if (!s)
        return;
    free(s->node);
    free(s->length);
    free(s->held);
    free(s);
}

size_t stop_held_max(const struct stop *s)
{
    return s->held_max;
}

size_t stop_feed(struct stop *s, const char *bytes, size_t len, char *out, int *matched)
{
    size_t held = s->node[s->state].depth, n = 0;

    *matched = -1;
    for (size_t i = 0; i < len; i++) {
        const struct node *x = &s->node[s->state = step(s, s->state, (uint8_t)bytes[i])];
        size_t total = held + i + 1; /* of the text in held and bytes; `end` of it may go out */
        size_t end = total - (x->string < 0 ? x->depth : s->length[x->string]);

        for (; n < end; n++)
            out[n] = n < held ? s->held[n] : bytes[n - held];
        if (x->string >= 0) {
            *matched = x->string;
            s->state = 0;
            return n;
        }
    }
    for (size_t i = n; i < held + len; i++) /* i - n <= i: held is read before it is overwritten */
        s->held[i - n] = i < held ? s->held[i] : bytes[i - held];
    return n;
}

size_t stop_flush(struct stop *s, char *out)
{
    size_t n = s->node[s->state].depth;

    memcpy(out, s->held, n);
    s->state = 0;
    return n;
}
