#include "expertfs/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST_BYTES_MAX ((size_t)64 << 20)
#define EXACT_INT_MAX      (INT64_C(1) << 53) /* what the JSON layer reads as an integer */

enum { TRUNK_ENTRIES_MAX = 1 << 16, DIM_MAX = 1 << 26, NAME_MAX_BYTES = 255 };

static bool has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

/* A value as JSON has it, for a message. */
static const char *value_text(char *out, size_t out_bytes, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));

    json_printable(out, out_bytes, text ? text : "?", text ? strlen(text) : 1);
    free(text);
    return out;
}

/* There is room for one; what was odd first stays. */
__attribute__((format(printf, 2, 3))) static void warn(struct manifest *m, const char *fmt, ...)
{
    va_list ap;

    if (*m->warning)
        return;
    va_start(ap, fmt);
    vsnprintf(m->warning, sizeof(m->warning), fmt, ap);
    va_end(ap);
}

/* Rule J7. Before any other key: what another version means by them is not ours to guess. */
static int version_check(const json_t *root, struct err *e)
{
    const json_t *version = json_object_get(root, "format_version");
    char clean[64];
    int64_t v;

    if (!version)
        return err_set(e, ERR_FORMAT, "manifest.json: format_version is absent");
    if (json_exact_int(version, &v) && v == FORMAT_VERSION)
        return 0;
    return err_set(e, ERR_FORMAT,
                   "manifest.json: unsupported container format version %s; only %d is known",
                   value_text(clean, sizeof(clean), version), FORMAT_VERSION);
}

/* Rule F1: a dimension, under its name or the one that older containers use. Absent is 0. */
static int dimension(unsigned *out, const struct json_at *config, const char *key,
                     const char *alias, int64_t lo, int64_t hi, struct err *e)
{
    const char *name;
    int64_t v;

    if (json_get_int_named(&v, &name, config, key, alias, 0, lo, hi, e))
        return e->code;
    if (v < lo)
        return err_set(e, ERR_FORMAT,
                       "%s.%s = 0 is out of range %" PRId64 "...%" PRId64 " (it is absent)",
                       config->path, name, lo, hi);
    *out = (unsigned)v;
    return 0;
}

static int dimensions_read(struct manifest *m, const struct json_at *config, struct err *e)
{
    if (dimension(&m->n_layers, config, "num_hidden_layers", NULL, 1, FORMAT_LAYERS_MAX, e) ||
        dimension(&m->hidden, config, "hidden_size", NULL, 1, 1 << 20, e) ||
        dimension(&m->vocab, config, "vocab_size", NULL, 1, 1 << 24, e) ||
        dimension(&m->first_dense, config, "first_k_dense_replace", NULL, 0, m->n_layers, e) ||
        dimension(&m->n_experts, config, "num_experts", "n_routed_experts", 0, FORMAT_EXPERTS_MAX,
                  e))
        return e->code;
    m->latent = m->hidden;
    if (m->n_experts == 0)
        return 0;
    if (dimension(&m->top_k, config, "num_experts_per_token", "num_experts_per_tok", 1,
                  m->n_experts < FORMAT_TOP_K_MAX ? m->n_experts : FORMAT_TOP_K_MAX, e) ||
        dimension(&m->inter, config, "moe_intermediate_size", NULL, 1, 1 << 20, e) ||
        dimension(&m->latent, config, "routed_expert_hidden_size", NULL, 0, 1 << 20, e))
        return e->code;
    if (m->latent == 0)
        m->latent = m->hidden;
    return 0;
}

/* The first string of config's "architectures", or NULL. */
static int architecture(const char **out, const json_t *config, struct err *e)
{
    struct json_at at = json_root(config, "manifest.json: config");
    const json_t *list, *first;

    if (json_get_array(&list, &at, "architectures", e))
        return e->code;
    first = json_array_get(list, 0);
    if (first && !json_is_string(first))
        return err_set(e, ERR_FORMAT, "manifest.json: config.architectures must hold strings");
    *out = json_string_value(first);
    return 0;
}

/* The "arch" key of the file is unreliable; what the release says of itself is not. */
static int arch_read(struct manifest *m, const struct json_at *top, struct err *e)
{
    const char *name = NULL;

    if (m->outer && architecture(&name, m->outer, e))
        return e->code;
    if (!name && architecture(&name, m->config, e))
        return e->code;
    if (!name && json_get_text(&name, top, "arch", e))
        return e->code;
    if (!name)
        name = "";
    if (strstr(name, "KimiK3"))
        name = "kimi-k3";
    else if (strstr(name, "KimiLinear"))
        name = "kimi-linear";
    json_printable(m->arch, sizeof(m->arch), name, strlen(name));
    return 0;
}

static int config_read(struct manifest *m, const struct json_at *top, struct err *e)
{
    struct json_at config, nested, outer;
    const char *prefix;

    if (json_get_text(&prefix, top, "tensor_prefix", e) || json_enter(&config, top, "config", e))
        return e->code;
    if (!config.object)
        return err_set(e, ERR_FORMAT, "manifest.json: config is absent");
    if (json_enter(&nested, &config, "text_config", e) || json_enter(&outer, &config, "_outer", e))
        return e->code;
    if (nested.object) { /* a release's file as it is: the text model is one level down */
        outer = config;
        config = nested;
        if (!prefix || !*prefix)
            prefix = "language_model.";
    }
    if (prefix && (strlen(prefix) >= sizeof(m->prefix) || has_control(prefix)))
        return err_set(e, ERR_FORMAT,
                       "manifest.json: tensor_prefix is longer than %zu bytes or not text",
                       sizeof(m->prefix) - 1);
    strcpy(m->prefix, prefix ? prefix : "");
    m->config = config.object;
    m->outer = outer.object;
    return arch_read(m, top, e) || dimensions_read(m, &config, e) ? e->code : 0;
}

/* What people read of the experts' format, and nothing is computed from. Byte indices of other than
 * two or three stages have gone by both names. */
static void quant_described(struct manifest *m, const json_t *quant)
{
    const struct record_layout *l = &m->record;
    const json_t *fmt = json_object_get(quant, "fmt");
    const json_t *weight = json_object_get(quant, "bits_per_weight");
    double bits = (double)(l->stages * l->index_bits) / FORMAT_VEC_DIM;
    const char *name = json_string_value(fmt), *ours = record_format_name(l);
    bool either = name && !strcmp(name, "VQ2R") && l->index_bits == 8 && l->stages != 3;
    char clean[48];

    if (fmt && !json_is_null(fmt) && !(name && !strcmp(name, ours)) && !either)
        warn(m,
             "manifest.json: expert_quant.fmt %s is not used: %" PRIu32 " stages of %" PRIu32
             " bits are read, which is %s",
             value_text(clean, sizeof(clean), fmt), l->stages, l->index_bits, ours);
    if (weight && !json_is_null(weight) &&
        !(json_is_number(weight) && fabs(json_number_value(weight) - bits) < 1e-6))
        warn(m,
             "manifest.json: expert_quant.bits_per_weight %s is not used: %" PRIu32
             " stages of %" PRIu32 " bits are read, which is %g",
             value_text(clean, sizeof(clean), weight), l->stages, l->index_bits, bits);
}

/* Rule F8, and with it the layout of every record. */
static int quant_read(struct manifest *m, const struct json_at *top, struct err *e)
{
    struct json_at at;
    int64_t stages, vec_dim, entries, block, bits;

    if (json_enter(&at, top, "expert_quant", e) ||
        json_get_int(&stages, &at, "stages", 3, 1, FORMAT_STAGES_MAX, e) ||
        json_get_int(&vec_dim, &at, "vec_dim", FORMAT_VEC_DIM, 1, 64, e) ||
        json_get_int(&entries, &at, "entries", 256, 1, FORMAT_ENTRIES_MAX, e) ||
        json_get_int(&block, &at, "index_block", 0, 0, INT32_MAX, e) ||
        json_get_int(&bits, &at, "index_bits", 8, 0, INT32_MAX, e))
        return e->code;
    if (vec_dim != FORMAT_VEC_DIM)
        return err_set(e, ERR_UNSUPPORTED, "%s.vec_dim = %d is not supported (%d expected)",
                       at.path, (int)vec_dim, FORMAT_VEC_DIM);
    if (block != FORMAT_INDEX_BLOCK)
        return err_set(e, ERR_UNSUPPORTED, "%s.index_block = %d is not supported (%d expected)",
                       at.path, (int)block, FORMAT_INDEX_BLOCK);
    if (record_layout_init(&m->record, m->latent, m->inter, (uint32_t)stages, (uint32_t)entries,
                           (uint32_t)bits, e))
        return err_wrap(e, "manifest.json");
    quant_described(m, at.object);
    return 0;
}

/* An integer that has no default. */
static int number(int64_t *out, const struct json_at *at, const char *key, struct err *e)
{
    const json_t *value = json_object_get(at->object, key);

    if (!value || json_is_null(value))
        return err_set(e, ERR_FORMAT, "%s.%s is absent", at->path, key);
    return json_get_int(out, at, key, 0, -EXACT_INT_MAX, EXACT_INT_MAX, e);
}

/* Rule T4. No product here can overflow: each is compared with the file's size first. */
static int shape_read(struct trunk_entry *t, const struct json_at *at, uint64_t trunk_bytes,
                      struct err *e)
{
    uint64_t most = trunk_bytes > UINT64_MAX / 8 ? UINT64_MAX : trunk_bytes * 8, elements = 1;
    const json_t *shape;
    size_t rank;
    char text[80];

    if (json_get_array(&shape, at, "shape", e))
        return e->code;
    if (!shape)
        return err_set(e, ERR_FORMAT, "%s.shape is absent", at->path);
    rank = json_array_size(shape);
    if (rank < 1 || rank > 4)
        goto impossible;
    for (size_t i = 0; i < rank; i++) {
        const json_t *value = json_array_get(shape, i);
        int64_t dim;

        if (!json_is_number(value))
            return err_set(e, ERR_FORMAT, "%s.shape must be an array of integers", at->path);
        if (!json_exact_int(value, &dim) || dim < 1 || dim > DIM_MAX ||
            (uint64_t)dim > most / elements)
            goto impossible;
        elements *= (uint64_t)dim;
        t->dim[i] = (uint32_t)dim;
    }
    t->rank = (unsigned)rank;
    t->cols = t->dim[rank - 1];
    t->rows = elements / t->cols;
    return 0;
impossible:
    return err_set(e, ERR_FORMAT,
                   "trunk: \"%s\" shape %s is impossible for a %" PRIu64 "-byte file", t->name,
                   value_text(text, sizeof(text), shape), trunk_bytes);
}

/* Bytes of a row of codes and of both tables, from format and shape. */
static int sizes_derive(struct trunk_entry *t, uint64_t trunk_bytes, struct err *e)
{
    if (t->fmt != FMT_F32)
        t->groups = (uint32_t)((t->cols + FORMAT_GROUP - 1) / FORMAT_GROUP);
    switch (t->fmt) {
    case FMT_F32:
        t->row_bytes = 4 * t->cols;
        break;
    case FMT_Q8G:
        t->row_bytes = (uint64_t)t->groups * FORMAT_GROUP;
        break;
    case FMT_Q4G:
        t->row_bytes = (uint64_t)t->groups * FORMAT_GROUP / 2;
        break;
    case FMT_Q3G:
        t->row_bytes = (uint64_t)t->groups * FORMAT_GROUP * 3 / 8 + 1; /* and a guard byte */
        break;
    }
    if (__builtin_mul_overflow(t->rows, t->row_bytes, &t->payload_bytes) ||
        __builtin_mul_overflow(t->rows, 2 * (uint64_t)t->groups, &t->scale_bytes) ||
        t->payload_bytes > INT64_MAX / 2 || t->scale_bytes > INT64_MAX / 2)
        return err_set(e, ERR_FORMAT,
                       "trunk: \"%s\" of %" PRIu64 " rows is impossible for a %" PRIu64
                       "-byte file",
                       t->name, t->rows, trunk_bytes);
    return 0;
}

/* Rule T6. */
static int place(uint64_t *out, int64_t off, uint64_t bytes, const char *name, uint64_t trunk_bytes,
                 struct err *e)
{
    if (off < 0 || bytes > trunk_bytes || (uint64_t)off > trunk_bytes - bytes)
        return err_set(e, ERR_FORMAT,
                       "trunk.bin: \"%s\" needs bytes %" PRId64 "...%" PRId64 ", file has %" PRIu64,
                       name, off, off + (int64_t)bytes, trunk_bytes);
    *out = (uint64_t)off;
    return 0;
}

/* Rules T1, T3 and T5 to T8, of one entry. */
static int entry_read(struct trunk_entry *t, const json_t *value, size_t i, uint64_t trunk_bytes,
                      struct err *e)
{
    char path[48];
    struct json_at at;
    int64_t fmt, off, scale_off = 0, bytes, group = FORMAT_GROUP;

    snprintf(path, sizeof(path), "manifest.json: trunk[%zu]", i);
    if (!json_is_object(value))
        return err_set(e, ERR_FORMAT, "%s must be an object", path);
    at = json_root(value, path);
    if (json_get_text(&t->name, &at, "name", e))
        return e->code;
    if (!t->name || !*t->name || strlen(t->name) > NAME_MAX_BYTES || has_control(t->name))
        return err_set(e, ERR_FORMAT, "trunk[%zu]: bad name", i);
    if (number(&fmt, &at, "fmt", e))
        return e->code;
    if (fmt != FMT_F32 && fmt != FMT_Q8G && fmt != FMT_Q4G && fmt != FMT_Q3G)
        return err_set(e, ERR_UNSUPPORTED, "trunk: \"%s\" has storage format %" PRId64 "%s",
                       t->name, fmt, fmt == 1 ? " (16-bit floats, never defined)" : "");
    t->fmt = (int)fmt;
    if (shape_read(t, &at, trunk_bytes, e) || sizes_derive(t, trunk_bytes, e))
        return e->code;
    if (t->fmt != FMT_F32 &&
        (json_get_int(&group, &at, "group", 0, -EXACT_INT_MAX, EXACT_INT_MAX, e) ||
         number(&scale_off, &at, "scale_off", e)))
        return e->code;
    if (group != FORMAT_GROUP)
        return err_set(e, ERR_FORMAT, "trunk: \"%s\" group %" PRId64 ", only %d is known", t->name,
                       group, FORMAT_GROUP);
    if (number(&off, &at, "off", e) || number(&bytes, &at, "bytes", e))
        return e->code;
    if (bytes < 0 || (uint64_t)bytes != t->payload_bytes + t->scale_bytes)
        return err_set(e, ERR_FORMAT,
                       "trunk: \"%s\" says %" PRId64 " bytes, its shape needs %" PRIu64, t->name,
                       bytes, t->payload_bytes + t->scale_bytes);
    if (place(&t->off, off, t->payload_bytes, t->name, trunk_bytes, e) ||
        place(&t->scale_off, scale_off, t->scale_bytes, t->name, trunk_bytes, e))
        return e->code;
    if (t->scale_bytes && t->scale_off < t->off + t->payload_bytes &&
        t->off < t->scale_off + t->scale_bytes)
        return err_set(e, ERR_FORMAT, "trunk: \"%s\" has its scales inside its payload", t->name);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct trunk_entry *)a)->name, ((const struct trunk_entry *)b)->name);
}

struct span { /* of trunk.bin, and whose it is */
    uint64_t begin, end;
    const char *name;
};

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Rule T9. */
static int overlap_check(const struct manifest *m, struct err *e)
{
    struct span *span = calloc(2 * (size_t)m->n_trunk, sizeof(*span));
    size_t n = 0;
    int code = 0;

    if (!span)
        return err_set(e, ERR_NOMEM, "manifest.json: %u tensors", m->n_trunk);
    for (unsigned i = 0; i < m->n_trunk; i++) {
        const struct trunk_entry *t = &m->trunk[i];

        span[n++] = (struct span){t->off, t->off + t->payload_bytes, t->name};
        if (t->scale_bytes)
            span[n++] = (struct span){t->scale_off, t->scale_off + t->scale_bytes, t->name};
    }
    qsort(span, n, sizeof(*span), by_begin);
    for (size_t i = 1; i < n && !code; i++)
        if (span[i].begin < span[i - 1].end)
            code = err_set(e, ERR_FORMAT, "trunk: \"%.180s\" and \"%.180s\" overlap in trunk.bin",
                           span[i - 1].name, span[i].name);
    free(span);
    return code;
}

static int trunk_read(struct manifest *m, const struct json_at *top, uint64_t trunk_bytes,
                      struct err *e)
{
    const json_t *list;
    size_t n;

    if (json_get_array(&list, top, "trunk", e))
        return e->code;
    n = json_array_size(list);
    if (n == 0)
        return err_set(e, ERR_FORMAT, "manifest.json: trunk lists no tensor");
    if (n > TRUNK_ENTRIES_MAX)
        return err_set(e, ERR_LIMIT, "manifest.json: trunk lists %zu tensors, more than %d", n,
                       TRUNK_ENTRIES_MAX);
    m->trunk = calloc(n, sizeof(*m->trunk));
    if (!m->trunk)
        return err_set(e, ERR_NOMEM, "manifest.json: %zu tensors", n);
    m->n_trunk = (unsigned)n;
    for (size_t i = 0; i < n; i++)
        if (entry_read(&m->trunk[i], json_array_get(list, i), i, trunk_bytes, e))
            return e->code;
    qsort(m->trunk, n, sizeof(*m->trunk), by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(m->trunk[i].name, m->trunk[i - 1].name))
            return err_set(e, ERR_FORMAT, "trunk: tensor \"%s\" listed twice", m->trunk[i].name);
    return overlap_check(m, e);
}

bool manifest_plain_name(const char *name)
{
    size_t n = strlen(name);

    return n >= 1 && n <= NAME_MAX_BYTES && name[0] != '.' && !strpbrk(name, "/\\:") &&
           !has_control(name);
}

int manifest_check_bank_bytes(const char *file, uint64_t bytes, uint64_t wanted, struct err *e)
{
    if (bytes == wanted)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: %" PRIu64 " bytes on disk, manifest says %" PRIu64 " (%s)",
                   file, bytes, wanted,
                   bytes < wanted ? "incomplete copy?"
                                  : "of another conversion, or something was appended?");
}

/* Rules B2, B4, B6 and the manifest's half of C6, of one bank. */
static int bank_read(struct bank *b, const struct manifest *m, const struct json_at *at,
                     struct err *e)
{
    const char *file;
    int64_t experts, bytes, base;
    char clean[128];

    if (json_get_text(&file, at, "file", e))
        return e->code;
    if (!file)
        return err_set(e, ERR_FORMAT, "%s.file is absent", at->path);
    if (!manifest_plain_name(file))
        return err_set(e, ERR_FORMAT, "%s.file \"%s\" is not a file name inside the container",
                       at->path, json_printable(clean, sizeof(clean), file, strlen(file)));
    if (number(&experts, at, "experts", e) || number(&bytes, at, "bytes", e) ||
        number(&base, at, "codebook_base", e))
        return e->code;
    if (experts != m->n_experts)
        return err_set(e, ERR_FORMAT, "%s.experts = %" PRId64 ", config.num_experts is %u",
                       at->path, experts, m->n_experts);
    if (bytes <= 0 || bytes % m->n_experts)
        return err_set(e, ERR_FORMAT, "%s.bytes = %" PRId64 " is not a whole number of %u records",
                       at->path, bytes, m->n_experts);
    if (bytes / m->n_experts != m->record.bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: record of %" PRId64 " bytes, configuration needs %" PRIu32, file,
                       bytes / m->n_experts, m->record.bytes);
    if (base < 0 || base + MATRICES * m->record.stages > 65536)
        return err_set(e, ERR_FORMAT, "%s.codebook_base = %" PRId64 " is out of range 0...%u",
                       at->path, base, 65536 - MATRICES * m->record.stages);
    strcpy(b->file, file);
    b->bytes = (uint64_t)bytes;
    b->codebook_base = (uint32_t)base;
    b->present = true;
    return 0;
}

/* "0", "1", ...: decimal without leading zeros. */
static bool layer_number(const char *key, unsigned *out)
{
    size_t n = strlen(key);

    if (n < 1 || n > 9 || strspn(key, "0123456789") != n || (key[0] == '0' && n > 1))
        return false;
    *out = (unsigned)strtoul(key, NULL, 10);
    return true;
}

static int banks_read(struct manifest *m, const struct json_at *top, struct err *e)
{
    struct json_at layers, at;
    const char *key;
    json_t *value;
    char clean[48];
    unsigned layer;

    if (json_enter(&layers, top, "layers", e))
        return e->code;
    json_object_foreach((json_t *)layers.object, key, value)
    {
        if (!layer_number(key, &layer))
            return err_set(e, ERR_FORMAT, "manifest.json: layers: \"%s\" is not a layer number",
                           json_printable(clean, sizeof(clean), key, strlen(key)));
        if (layer >= m->n_layers) {
            warn(m, "manifest.json: layers.%u ignored: the model has %u layers", layer,
                 m->n_layers);
            continue;
        }
        if (!manifest_is_moe(m, layer))
            return err_set(e, ERR_FORMAT,
                           "layer %u is dense, but has an expert bank in the manifest", layer);
        if (json_enter(&at, &layers, key, e))
            return e->code;
        if (at.object && bank_read(&m->bank[layer], m, &at, e))
            return e->code;
    }
    for (layer = 0; layer < m->n_layers; layer++)
        if (manifest_is_moe(m, layer) && !m->bank[layer].present)
            return err_set(e, ERR_FORMAT,
                           "layer %u has no expert bank in the manifest (partial conversion?)",
                           layer);
    return 0;
}

/* Rule B7, as far as names tell; container_open asks the file system too. */
static int banks_distinct(const struct manifest *m, struct err *e)
{
    for (unsigned a = 0; a < m->n_layers; a++)
        for (unsigned b = a + 1; b < m->n_layers; b++)
            if (m->bank[a].present && m->bank[b].present &&
                !strcmp(m->bank[a].file, m->bank[b].file))
                return err_set(e, ERR_FORMAT, "%s: the same file is the bank of layers %u and %u",
                               m->bank[a].file, a, b);
    return 0;
}

/* Takes over root. */
static int manifest_from(struct manifest *out, json_t *root, uint64_t trunk_bytes, struct err *e)
{
    struct manifest m = {.root = root};
    struct json_at top = json_root(root, "manifest.json");

    if (!json_is_object(root))
        err_set(e, ERR_FORMAT, "manifest.json: the root must be an object");
    else if (!version_check(root, e) && !config_read(&m, &top, e) &&
             !(m.n_experts && quant_read(&m, &top, e)) && !banks_read(&m, &top, e) &&
             !banks_distinct(&m, e) && !trunk_read(&m, &top, trunk_bytes, e)) {
        *out = m;
        return 0;
    }
    manifest_release(&m);
    return e->code;
}

int manifest_parse(struct manifest *out, const char *text, size_t len, uint64_t trunk_bytes,
                   struct err *e)
{
    json_t *root;

    if (json_parse(&root, text, len, "manifest.json", e))
        return e->code;
    return manifest_from(out, root, trunk_bytes, e);
}

/* Does the directory hold what a conversion leaves behind until it is finished? */
static bool unfinished(int dirfd)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    bool found = false;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while (!found && (entry = readdir(d))) {
        size_t n = strlen(entry->d_name);

        found = !strcmp(entry->d_name, "waste-convert.json") ||
                !strcmp(entry->d_name, "waste-synth.json") ||
                (n > 4 && !strcmp(entry->d_name + n - 4, ".tmp")) ||
                (n > 4 && !strncmp(entry->d_name, "codebooks-L", 11) &&
                 !strcmp(entry->d_name + n - 4, ".bin"));
    }
    closedir(d);
    return found;
}

int manifest_read(struct manifest *out, int dirfd, const char *dir, struct err *e)
{
    json_t *root;
    struct stat st;

    if (no_such_entry(dirfd, "manifest.json")) {
        if (unfinished(dirfd))
            return err_set(e, ERR_IO,
                           "%.200s: no manifest.json (an unfinished conversion? run the "
                           "conversion again, it resumes)",
                           dir);
        return err_set(e, ERR_IO, "%.200s: no manifest.json (not a .waste container?)", dir);
    }
    if (json_parse_file(&root, dirfd, "manifest.json", MANIFEST_BYTES_MAX, e))
        return e->code;
    if (fstatat(dirfd, "trunk.bin", &st, 0)) {
        int errnum = errno;

        json_decref(root);
        return err_sys(e, errnum, "trunk.bin");
    }
    if (!S_ISREG(st.st_mode)) {
        json_decref(root);
        return err_set(e, ERR_IO, "trunk.bin: not a regular file");
    }
    return manifest_from(out, root, (uint64_t)st.st_size, e);
}

void manifest_release(struct manifest *m)
{
    json_decref(m->root);
    free(m->trunk);
    memset(m, 0, sizeof(*m));
}

static int to_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct trunk_entry *)entry)->name);
}

const struct trunk_entry *manifest_entry(const struct manifest *m, const char *name)
{
    return m->n_trunk ? bsearch(name, m->trunk, m->n_trunk, sizeof(*m->trunk), to_name) : NULL;
}

const struct trunk_entry *manifest_tensor(const struct manifest *m, const char *name)
{
    char full[sizeof(m->prefix) + NAME_MAX_BYTES + 1];
    int n = snprintf(full, sizeof(full), "%s%s", m->prefix, name);

    return n < 0 || (size_t)n >= sizeof(full) ? NULL : manifest_entry(m, full);
}
