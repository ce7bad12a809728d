/* model/weights.h - checkpoint names -> members of struct model; the only list of them. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/err.h"
#include "base/mem.h"
#include "expertfs/container.h"
#include "model/model.h"

enum weight_class {
    WEIGHT_MATRIX,   /* [rows][cols] in any format */
    WEIGHT_VECTOR,   /* F32, exactly rows * cols elements, any rank */
    WEIGHT_AT_LEAST, /* F32, at least that many */
};

struct weight {       /* one tensor a model needs */
    const char *name; /* without the prefix; valid during the visit */
    enum weight_class kind;
    uint32_t rows, cols;
    bool optional;
    bool resident;
    struct tensor *tensor; /* where a matrix goes, or */
    const float **vector;  /* where a vector's pointer goes; all NULL when m was */
};

/* Visit every tensor that hp needs; stops at the first non-zero return and gives it back. With m,
 * the weights point at its members. */
typedef int weight_fn(const struct weight *w, void *arg, struct err *e);
int weights_each(const struct hparams *hp, struct model *m, weight_fn *fn, void *arg,
                 struct err *e);

/* Find every tensor in the manifest, check shape and class (rules T10-T12), mark it in the trunk.
 * m->hp must be set. */
int weights_bind(struct model *m, const struct container *c, struct trunk *trunk, struct err *e);

/* Point a weight's member at entry t of the loaded trunk, which must outlive it. */
void weight_point(const struct weight *w, const struct trunk *trunk, const struct trunk_entry *t);

/* Bytes weights_load takes beside the trunk and the codebooks, for the plan. */
uint64_t weights_extra_bytes(const struct hparams *hp);

/* Point the members into the loaded trunk and codebooks, and derive what is computed once. extra:
 * weights_extra_bytes of zeroed memory, borrowed for the model's life. */
void weights_load(struct model *m, const struct container *c, struct trunk *trunk,
                  struct codebooks *books, void *extra);

#endif
