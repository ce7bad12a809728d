#include "model/stop.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct node {
    uint32_t next[256]; /* a goto for every byte once built; 0 is the root */
    uint32_t fail;      /* longest proper end of this state that is a state */
    uint32_t depth;     /* bytes of text this state stands for */
    int string;         /* the longest string that ends here, or -1 */
};

struct stop {
    struct node *node;
    uint32_t n_nodes, state;
    uint32_t *length; /* of string i */
    char *held;       /* the node's text: depth bytes */
    size_t held_max;
};

static void insert(struct stop *s, const waste_text *text, int string)
{
    uint32_t at = 0;

    for (size_t i = 0; i < text->len; i++) {
        uint8_t b = (uint8_t)text->text[i];

        if (!s->node[at].next[b]) {
            s->node[s->n_nodes] = (struct node){.depth = s->node[at].depth + 1, .string = -1};
            s->node[at].next[b] = s->n_nodes++;
        }
        at = s->node[at].next[b];
    }
    if (s->node[at].string < 0)
        s->node[at].string = string;
}

/* Breadth first, so that a node's fail state, which is shorter, is finished before the node. */
static void link_nodes(struct stop *s, uint32_t *queue)
{
    uint32_t n = 0;

    for (unsigned b = 0; b < 256; b++) {
        if (s->node[0].next[b])
            queue[n++] = s->node[0].next[b];
    }
    for (uint32_t i = 0; i < n; i++) {
        struct node *x = &s->node[queue[i]];
        const struct node *fail = &s->node[x->fail];

        if (x->string < 0)
            x->string = fail->string;
        for (unsigned b = 0; b < 256; b++) {
            uint32_t child = x->next[b];

            if (child) {
                s->node[child].fail = fail->next[b];
                queue[n++] = child;
            } else {
                x->next[b] = fail->next[b];
            }
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
        const struct node *x = &s->node[s->state = s->node[s->state].next[(uint8_t)bytes[i]]];
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
