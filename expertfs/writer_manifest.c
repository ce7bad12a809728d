/* writer_manifest.c - manifest.json, which makes a container of a directory: last, and only if
 * nothing is missing and our own reader takes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expertfs/manifest.h"
#include "expertfs/writer_state.h"

static json_t *trunk_json(const struct writer *w)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensor[i];
        json_t *shape = json_array();
        json_t *entry =
            json_pack("{s:s, s:i, s:I, s:o, s:I}", "name", t->name, "fmt", t->fmt, "off",
                      (json_int_t)t->off, "shape", shape, "bytes", (json_int_t)t->bytes);

        for (unsigned d = 0; entry && d < t->rank; d++)
            json_array_append_new(shape, json_integer(t->dim[d]));
        if (entry && t->groups) {
            json_object_set_new(entry, "group", json_integer(FORMAT_GROUP));
            json_object_set_new(entry, "scale_off", json_integer((json_int_t)t->scale_off));
        }
        if (json_array_append_new(list, entry)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *layers_json(const struct writer *w)
{
    json_t *layers = json_object();

    for (unsigned l = w->first_dense; w->n_experts && l < w->n_layers; l++) {
        char key[16], file[NAME_BYTES];

        snprintf(key, sizeof(key), "%u", l);
        writer_bank_name(file, l);
        json_object_set_new(layers, key,
                            json_pack("{s:s, s:i, s:I, s:i}", "file", file, "experts",
                                      (int)w->n_experts, "bytes",
                                      (json_int_t)w->n_experts * w->record.bytes, "codebook_base",
                                      (int)writer_codebook_base(w, l)));
    }
    return layers;
}

static json_t *quant_json(const struct writer *w)
{
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f}", "fmt", record_format_name(&w->record),
                     "stages", (int)w->stages, "vec_dim", FORMAT_VEC_DIM, "entries",
                     (int)w->entries, "index_block", FORMAT_INDEX_BLOCK, "index_bits",
                     (int)w->index_bits, "bits_per_weight",
                     (double)(w->stages * w->index_bits) / FORMAT_VEC_DIM);
}

/* Numbers with as few digits as read back the same: 2.446, not 2.4460000000000002. */
static char *manifest_text(const json_t *root)
{
    size_t flags = JSON_INDENT(1) | JSON_ENSURE_ASCII;
    char *text = json_dumps(root, flags | JSON_REAL_PRECISION(15));
    json_t *back = text ? json_loads(text, 0, NULL) : NULL;

    if (text && !(back && json_equal(root, back))) {
        free(text);
        text = json_dumps(root, flags | JSON_REAL_PRECISION(17));
    }
    json_decref(back);
    return text;
}

static int everything_given(const struct writer *w, struct err *e)
{
    if (!w->trunk_done)
        return err_set(e, ERR_ARG, "%s: the trunk is not finished", w->dir);
    for (unsigned l = w->first_dense; w->n_experts && l < w->n_layers; l++) {
        if (!w->bank[l].done)
            return err_set(e, ERR_ARG, "%s: the bank of layer %u is not finished", w->dir, l);
        for (unsigned i = 0; i < MATRICES * w->stages; i++)
            if (!w->codebook_given[writer_codebook_base(w, l) + i])
                return err_set(e, ERR_ARG, "%s: layer %u lacks codebook %u", w->dir, l, i);
    }
    return 0;
}

/* The manifest's text, which the reader of manifests accepts; the caller frees. */
static int make_manifest(const struct writer *w, const json_t *extra, char **out, struct err *e)
{
    struct manifest m;
    char *text = NULL;
    json_t *root;

    root =
        json_pack("{s:i, s:s, s:s, s:O, s:o, s:o, s:o}", "format_version", FORMAT_VERSION, "arch",
                  w->arch, "tensor_prefix", w->prefix, "config", w->config, "expert_quant",
                  quant_json(w), "layers", layers_json(w), "trunk", trunk_json(w));
    if (root && !(extra && json_object_update_missing(root, (json_t *)(uintptr_t)extra)))
        text = manifest_text(root);
    json_decref(root);
    if (!text)
        return err_set(e, ERR_NOMEM, "manifest.json: cannot be built");
    if (manifest_parse(&m, text, strlen(text), w->trunk_bytes, e)) {
        free(text);
        return e->code;
    }
    manifest_release(&m);
    *out = text;
    return 0;
}

int writer_check_manifest(const struct writer *w, const json_t *extra, struct err *e)
{
    char *text;

    if (make_manifest(w, extra, &text, e))
        return err_wrap(e, "%s", w->dir);
    free(text);
    return 0;
}

int writer_finish(struct writer *w, const json_t *extra, struct err *e)
{
    char *text;
    int bad;

    if (everything_given(w, e))
        return e->code;
    if (out_file(&w->out, "codebooks.bin", w->codebooks, w->codebooks_bytes, e) ||
        make_manifest(w, extra, &text, e))
        return err_wrap(e, "%s", w->dir);
    bad = out_file(&w->out, "manifest.json", text, strlen(text), e);
    free(text);
    if (bad)
        return err_wrap(e, "%s", w->dir);
    w->finished = true;
    for (unsigned l = w->first_dense; w->n_experts && l < w->n_layers; l++) {
        char name[NAME_BYTES];

        writer_part_name(name, l);
        writer_remove(w, name);
    }
    return 0;
}
