/* model/json_tree.h - JSON as conversations need it: nothing that was said is lost.
 *
 * A general reader loses what a prompt must repeat: NUL in strings, integers beyond 64 bits. This
 * one keeps strings counted, numbers as they were written and members in order, and it reads what
 * clients send: a lone surrogate (\ud800 without its other half) is U+FFFD, of members with the
 * same key the last value stands where the first stood. Anything else that is not RFC 8259 is
 * refused. What a container has in its own files is read with base/json.
 */
#ifndef MODEL_JSON_TREE_H
#define MODEL_JSON_TREE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdint.h>

enum {
    TREE_DEPTH_MAX = 64,       /* containers below the root */
    TREE_VALUES_MAX = 1 << 20, /* values in one text */
};

enum node_type {
    NODE_NULL,
    NODE_FALSE,
    NODE_TRUE,
    NODE_INTEGER, /* text: as written */
    NODE_REAL,    /* text: as written */
    NODE_STRING,  /* text: valid UTF-8, escapes undone */
    NODE_ARRAY,
    NODE_OBJECT,
};

struct node {
    enum node_type type;
    uint32_t n; /* elements or members */
    struct str text;
    struct str key;     /* of a member */
    struct node *child; /* the first element or member */
    struct node *next;  /* of the same parent */
};

struct tree { /* all zero is an empty one */
    struct node *root;
    struct tree_chunk *chunks;
    size_t chunk_bytes;
};

/* Read the whole of text, white space around it allowed. tree must be empty; release it also after
 * a failure. Nothing in it points into text. ERR_ARG names the byte; ERR_LIMIT: too deep, too many
 * values. */
int tree_parse(struct tree *tree, const char *text, size_t len, struct err *e);
void tree_release(struct tree *tree);

/* from's values live on as long as tree, and from is empty. */
void tree_adopt(struct tree *tree, struct tree *from);

/* Memory that lives as long as the tree; NULL when there is none. */
void *tree_alloc(struct tree *tree, size_t bytes);

/* The member of an object, or NULL: there is none, or it is null, or node is no object. */
const struct node *node_get(const struct node *node, const char *key);

/* The same, of one type; absent: empty, or *out as it was. path is the object's ("" for the root).
 * ERR_ARG names the member. */
int node_get_text(struct str *out, const struct node *object, const char *key, const char *path,
                  struct err *e);
int node_get_flag(bool *out, const struct node *object, const char *key, const char *path,
                  struct err *e);
bool node_is_text(const struct node *node, const char *text);

/* For messages: "an array", NULL is "nothing"; and untrusted text, one at a time in a thread. */
const char *node_type_name(const struct node *node);
const char *str_shown(struct str s);

#endif
