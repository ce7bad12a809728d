#include "expertfs/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expertfs/ledger.h"
#include "expertfs/manifest.h"
#include "expertfs/shard.h"
#include "expertfs/widen.h"

#define INDEX_FILE       "model.safetensors.index.json"
#define SINGLE_FILE      "model.safetensors"
#define CONFIG_BYTES_MAX ((size_t)16 << 20)
#define INDEX_BYTES_MAX  ((size_t)512 << 20)

enum { BLOCK_MAX = 1 << 20 };

struct shard {
    const char *name;
    struct file file;
    struct stat then; /* when it was opened */
    bool present;
};

struct entry {
    struct source_tensor tensor; /* first: a pointer to it is one to the entry */
    uint64_t off, scale_off;     /* of payload and scales, in their files */
};

struct checkpoint {
    char *dir;
    bool indexed;
    json_t *config;
    char *names; /* of tensors and shards, one after another */
    struct shard *shard;
    unsigned n_shards;
    struct stored *stored; /* by name; only while opening */
    unsigned n_stored;
    struct entry *entry; /* by name */
    unsigned n_entries;
    uint32_t block[2]; /* rows and columns that share an fp8 scale */
};

static bool exists(int dirfd, const char *name)
{
    return !no_such_entry(dirfd, name);
}

static int stored_by_name(const void *a, const void *b)
{
    return strcmp(((const struct stored *)a)->name, ((const struct stored *)b)->name);
}

static int shard_by_name(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

static int entry_by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->tensor.name, ((const struct entry *)b)->tensor.name);
}

/* The stored tensor whose name is the first `length` bytes of `base` and then `suffix`. */
static struct stored *find_stored(const struct checkpoint *c, const char *base, size_t length,
                                  const char *suffix)
{
    char name[STORED_NAME_MAX + 1];
    struct stored key = {.name = name};

    if (snprintf(name, sizeof(name), "%.*s%s", (int)length, base, suffix) >= (int)sizeof(name))
        return NULL;
    return bsearch(&key, c->stored, c->n_stored, sizeof(key), stored_by_name);
}

/* What the index lists for a shard is taken from its header. */
static int shard_take(struct checkpoint *c, unsigned i, struct err *e)
{
    struct stored *list, *own;
    unsigned n;
    json_t *header;

    if (shard_read(&list, &n, &header, &c->shard[i].file, e))
        return e->code;
    for (struct stored *s = list; s < list + n; s++) {
        own = find_stored(c, s->name, strlen(s->name), "");
        if (!own || own->shard != i)
            continue;
        s->name = own->name;
        s->shard = i;
        s->found = true;
        *own = *s;
    }
    free(list);
    json_decref(header);
    return 0;
}

/* Open one shard, unless the ledger says that it is gone, and read its header. */
static int shard_open(struct checkpoint *c, unsigned i, int dirfd, const char *verified,
                      const char *reclaimed, struct err *e)
{
    struct shard *s = &c->shard[i];

    if (!exists(dirfd, s->name)) {
        if (ledger_lists(reclaimed, s->name))
            return 0;
        return err_set(e, ERR_IO, "%s: not found; finish the download first", s->name);
    }
    if (verified && !ledger_lists(verified, s->name))
        return err_set(e, ERR_IO,
                       "%s: not verified yet (not in .download-state); finish the download first",
                       s->name);
    if (file_open(&s->file, dirfd, s->name, true, e))
        return e->code;
    s->present = true;
    if (fstat(s->file.buffered, &s->then))
        return err_sys(e, errno, "%s", s->name);
    return shard_take(c, i, e);
}

static int shards_open(struct checkpoint *c, int dirfd, struct err *e)
{
    char *verified = NULL, *reclaimed = NULL;
    int code = ledger_read(&verified, dirfd, ".download-state", e) ||
                       ledger_read(&reclaimed, dirfd, ".reclaimed", e)
                   ? e->code
                   : 0;

    for (unsigned i = 0; i < c->n_shards && !code; i++)
        code = shard_open(c, i, dirfd, verified, reclaimed, e);
    free(verified);
    free(reclaimed);
    for (unsigned i = 0; i < c->n_stored && !code; i++)
        if (!c->stored[i].found && c->shard[c->stored[i].shard].present)
            code = err_set(e, ERR_FORMAT, "%s: listed for %.200s but not there", c->stored[i].name,
                           c->shard[c->stored[i].shard].name);
    return code;
}

/* The weight map that a single file stands for. */
static int single_map(json_t **out, int dirfd, struct err *e)
{
    json_t *map = json_object(), *header;
    struct stored *list;
    struct file f;
    unsigned n;
    int code;

    if (!map)
        return err_set(e, ERR_NOMEM, SINGLE_FILE);
    code = file_open(&f, dirfd, SINGLE_FILE, false, e);
    if (!code) {
        code = shard_read(&list, &n, &header, &f, e);
        file_close(&f);
    }
    if (code) {
        json_decref(map);
        return code;
    }
    for (unsigned i = 0; i < n && !code; i++)
        if (json_object_set_new(map, list[i].name, json_string(SINGLE_FILE)))
            code = err_set(e, ERR_NOMEM, SINGLE_FILE);
    free(list);
    json_decref(header);
    if (code)
        json_decref(map);
    else
        *out = map;
    return code;
}

/* Tensor name -> shard name; the caller's to json_decref. */
static int weight_map(json_t **out, int dirfd, const char *dir, struct err *e)
{
    struct json_at at, map;
    json_t *root;
    int code;

    if (!exists(dirfd, INDEX_FILE)) {
        if (exists(dirfd, SINGLE_FILE))
            return single_map(out, dirfd, e);
        return err_set(e, ERR_IO, "%s: neither " INDEX_FILE " nor " SINGLE_FILE " found", dir);
    }
    if (json_parse_file(&root, dirfd, INDEX_FILE, INDEX_BYTES_MAX, e))
        return e->code;
    at = json_root(root, INDEX_FILE);
    if (!json_is_object(root))
        code = err_set(e, ERR_FORMAT, INDEX_FILE ": must be an object");
    else
        code = json_enter(&map, &at, "weight_map", e);
    if (!code && !map.object)
        code = err_set(e, ERR_FORMAT, INDEX_FILE ": weight_map is absent");
    if (!code)
        *out = json_incref((json_t *)map.object);
    json_decref(root);
    return code;
}

/* Every name and shard name of the map is a usable one; the bytes that copies take, and the set of
 * shards. */
static int map_check(json_t *map, json_t *shards, size_t *bytes, struct err *e)
{
    const char *name, *shard;
    char clean[64];
    json_t *value;

    *bytes = 0;
    json_object_foreach(map, name, value)
    {
        if (!stored_name_fits(name))
            return stored_name_bad(INDEX_FILE, name, e);
        shard = json_string_value(value);
        if (!shard || !manifest_plain_name(shard))
            return err_set(
                e, ERR_FORMAT, "%s: \"%s\" is not a file name inside the checkpoint", name,
                shard ? json_printable(clean, sizeof(clean), shard, strlen(shard)) : "(no string)");
        *bytes += strlen(name) + 1;
        if (json_object_get(shards, shard))
            continue;
        *bytes += strlen(shard) + 1;
        if (json_object_set_new(shards, shard, json_true()))
            return err_set(e, ERR_NOMEM, "%s", shard);
    }
    return 0;
}

static char *keep(char **at, const char *name)
{
    char *kept = *at;

    *at = stpcpy(kept, name) + 1;
    return kept;
}

/* Shards and stored tensors, both by name, from a checked map. */
static int stored_list(struct checkpoint *c, json_t *map, json_t *shards, size_t bytes,
                       struct err *e)
{
    char *at = c->names = malloc(bytes + 1);
    const char *name;
    json_t *value;

    c->shard = calloc(json_object_size(shards) + 1, sizeof(*c->shard));
    c->stored = calloc(json_object_size(map) + 1, sizeof(*c->stored));
    if (!c->names || !c->shard || !c->stored)
        return err_set(e, ERR_NOMEM, "%zu tensors", json_object_size(map));
    json_object_foreach(shards, name, value) c->shard[c->n_shards++].name = keep(&at, name);
    qsort(c->shard, c->n_shards, sizeof(*c->shard), shard_by_name);
    json_object_foreach(map, name, value)
    {
        struct shard key = {.name = json_string_value(value)}, *s;

        s = bsearch(&key, c->shard, c->n_shards, sizeof(key), shard_by_name);
        c->stored[c->n_stored].shard = (unsigned)(s - c->shard);
        c->stored[c->n_stored++].name = keep(&at, name);
    }
    qsort(c->stored, c->n_stored, sizeof(*c->stored), stored_by_name);
    if (!c->n_stored)
        return err_set(e, ERR_FORMAT, "%s: no tensor is listed", c->dir);
    return 0;
}

static int index_read(struct checkpoint *c, int dirfd, struct err *e)
{
    json_t *map, *shards;
    size_t bytes;
    int code;

    if (weight_map(&map, dirfd, c->dir, e))
        return e->code;
    c->indexed = exists(dirfd, INDEX_FILE);
    shards = json_object();
    if (!shards)
        code = err_set(e, ERR_NOMEM, INDEX_FILE);
    else
        code = map_check(map, shards, &bytes, e) || stored_list(c, map, shards, bytes, e) ? e->code
                                                                                          : 0;
    json_decref(shards);
    json_decref(map);
    return code;
}

/* quantization_config.weight_block_size of one object, if it is there. */
static int block_read(struct checkpoint *c, const struct json_at *at, bool *found, struct err *e)
{
    struct json_at quant;
    const json_t *block;

    if (json_enter(&quant, at, "quantization_config", e) ||
        json_get_array(&block, &quant, "weight_block_size", e))
        return e->code;
    *found = block != NULL;
    for (unsigned i = 0; block && i < 2; i++) {
        int64_t v;

        if (json_array_size(block) != 2 || !json_exact_int(json_array_get(block, i), &v) || v < 1 ||
            v > BLOCK_MAX)
            return err_set(e, ERR_FORMAT, "%s.weight_block_size must be two integers in 1...%d",
                           quant.path, BLOCK_MAX);
        c->block[i] = (uint32_t)v;
    }
    return 0;
}

static int config_read(struct checkpoint *c, int dirfd, struct err *e)
{
    struct json_at at, text;
    bool found;

    if (!exists(dirfd, "config.json"))
        return err_set(e, ERR_IO, "%s: config.json not found", c->dir);
    if (json_parse_file(&c->config, dirfd, "config.json", CONFIG_BYTES_MAX, e))
        return e->code;
    if (!json_is_object(c->config))
        return err_set(e, ERR_FORMAT, "config.json: must be an object");
    at = json_root(c->config, "config.json");
    c->block[0] = c->block[1] = 128;
    if (block_read(c, &at, &found, e))
        return e->code;
    if (!found && (json_enter(&text, &at, "text_config", e) || block_read(c, &text, &found, e)))
        return e->code;
    return 0;
}

static bool is_fp8(const struct stored *p)
{
    return p->found && (p->dtype == SOURCE_F8_E4M3 || p->dtype == SOURCE_F8_E5M2);
}

static bool is_byte(const struct stored *p)
{
    return p->found && (p->dtype == STORED_U8 || p->dtype == STORED_I8);
}

static uint32_t tiles(uint32_t n, uint32_t block)
{
    return (n - 1) / block + 1;
}

static int fp8_check(const struct checkpoint *c, const struct stored *p, const struct stored *scale,
                     struct err *e)
{
    char is[64];

    if (p->rank != 2)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s of %u dimensions is not supported", p->name,
                       stored_dtype_name(p->dtype), p->rank);
    if (!scale)
        return err_set(e, ERR_FORMAT, "%s: %.200s_scale_inv is missing", p->name, p->name);
    if (!scale->found)
        return 0;
    if (scale->dtype != SOURCE_F32)
        return err_set(e, ERR_UNSUPPORTED, "%s: dtype %s of %.200s_scale_inv is not supported",
                       p->name, stored_dtype_name(scale->dtype), p->name);
    if (scale->rank != 2 || scale->dim[0] != tiles(p->dim[0], c->block[0]) ||
        scale->dim[1] != tiles(p->dim[1], c->block[1]))
        return err_set(e, ERR_FORMAT,
                       "%s: %.120s_scale_inv is %s, expected [%" PRIu32 ",%" PRIu32
                       "] for blocks [%" PRIu32 ",%" PRIu32 "]",
                       p->name, p->name, stored_shape_text(is, sizeof(is), scale),
                       tiles(p->dim[0], c->block[0]), tiles(p->dim[1], c->block[1]), c->block[0],
                       c->block[1]);
    return 0;
}

/* name: of the logical tensor, `length` bytes. Either half may be NULL, or not found. */
static int mxfp4_check(const char *name, size_t length, const struct stored *packed,
                       const struct stored *scale, struct err *e)
{
    char a[64], b[64];

    if (packed && packed->found && !is_byte(packed))
        return err_set(e, ERR_UNSUPPORTED, "%s: dtype %s is not supported for a packed payload",
                       packed->name, stored_dtype_name(packed->dtype));
    if (scale && scale->found && scale->dtype != STORED_U8)
        return err_set(e, ERR_UNSUPPORTED, "%s: dtype %s is not supported for packed scales",
                       scale->name, stored_dtype_name(scale->dtype));
    if (packed && scale && !(packed->found && scale->found))
        return 0; /* a reclaimed half has no shape to compare */
    if (packed && scale && packed->rank == 2 && scale->rank == 2 &&
        packed->dim[0] == scale->dim[0] && packed->dim[1] <= INT32_MAX / 2 &&
        2 * (uint64_t)packed->dim[1] == FP4_BLOCK * (uint64_t)scale->dim[1])
        return 0;
    return err_set(e, ERR_FORMAT, "%.*s: _packed %s and _scale %s do not describe one matrix",
                   (int)length, name, stored_shape_text(a, sizeof(a), packed),
                   stored_shape_text(b, sizeof(b), scale));
}

static void entry_add(struct checkpoint *c, const struct stored *p, unsigned dtype,
                      const struct stored *scale)
{
    struct entry *x = &c->entry[c->n_entries++];
    struct source_tensor *t = &x->tensor;

    *x = (struct entry){.off = p->off, .scale_off = scale ? scale->off : 0};
    t->name = p->name;
    t->dtype = (enum source_dtype)dtype;
    t->rank = p->rank;
    memcpy(t->dim, p->dim, sizeof(t->dim));
    t->shard = p->shard;
    t->scale_shard = scale ? scale->shard : p->shard;
    if (!t->rank)
        return;
    if (dtype == SOURCE_MXFP4)
        t->dim[1] *= 2;
    t->rows = 1;
    for (unsigned i = 0; i + 1 < t->rank; i++)
        t->rows *= t->dim[i];
    t->cols = t->dim[t->rank - 1];
}

/* The length of the name without the suffix, or 0 where it does not end so. */
static size_t stem(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);

    return n > m && !strcmp(name + n - m, suffix) ? n - m : 0;
}

/* What one stored tensor is: companion of another (not listed), packed half or itself. */
static int stored_resolve(struct checkpoint *c, struct stored *p, struct err *e)
{
    struct stored *other;
    size_t n = stem(p->name, "_scale_inv");

    if (n) {
        other = find_stored(c, p->name, n, "");
        if (!other)
            return err_set(e, ERR_FORMAT, "%.*s: is missing, %.200s is there", (int)n, p->name,
                           p->name);
        if (other->found && !is_fp8(other))
            return err_set(e, ERR_FORMAT, "%s: is %s, yet %.200s is there", other->name,
                           stored_dtype_name(other->dtype), p->name);
        return 0;
    }
    n = stem(p->name, "_scale");
    if (n && find_stored(c, p->name, n, "_packed"))
        return 0;
    if (n && is_byte(p))
        return mxfp4_check(p->name, n, NULL, p, e);
    n = stem(p->name, "_packed");
    other = n ? find_stored(c, p->name, n, "_scale") : NULL;
    if (other || (n && is_byte(p))) {
        if (mxfp4_check(p->name, n, p, other, e))
            return e->code;
        entry_add(c, p, SOURCE_MXFP4, other);
        return 0;
    }
    if (is_byte(p))
        return err_set(e, ERR_UNSUPPORTED, "%s: dtype %s is not supported", p->name,
                       stored_dtype_name(p->dtype));
    other = find_stored(c, p->name, strlen(p->name), "_scale_inv");
    if (is_fp8(p) && fp8_check(c, p, other, e))
        return e->code;
    entry_add(c, p, p->dtype, other);
    return 0;
}

/* Stored tensors to logical ones. */
static int entries_list(struct checkpoint *c, struct err *e)
{
    c->entry = calloc(c->n_stored, sizeof(*c->entry));
    if (!c->entry)
        return err_set(e, ERR_NOMEM, "%u tensors", c->n_stored);
    for (unsigned i = 0; i < c->n_stored; i++)
        if (stored_resolve(c, &c->stored[i], e))
            return e->code;
    for (unsigned i = 0; i < c->n_entries; i++) /* only now: the names were the pieces' keys */
        if (c->entry[i].tensor.dtype == SOURCE_MXFP4)
            ((char *)c->entry[i].tensor.name)[stem(c->entry[i].tensor.name, "_packed")] = '\0';
    qsort(c->entry, c->n_entries, sizeof(*c->entry), entry_by_name);
    for (unsigned i = 1; i < c->n_entries; i++)
        if (!strcmp(c->entry[i].tensor.name, c->entry[i - 1].tensor.name))
            return err_set(e, ERR_FORMAT, "%s: is there twice, once packed",
                           c->entry[i].tensor.name);
    free(c->stored);
    c->stored = NULL;
    return 0;
}

int checkpoint_open(struct checkpoint **out, const char *dir, struct err *e)
{
    struct checkpoint *c = calloc(1, sizeof(*c));
    int dirfd, code;

    if (c)
        c->dir = strdup(dir);
    if (!c || !c->dir) {
        checkpoint_close(c);
        return err_set(e, ERR_NOMEM, "%s", dir);
    }
    dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        code = err_sys(e, errno, "%s", dir);
    else
        code = config_read(c, dirfd, e) || index_read(c, dirfd, e) || shards_open(c, dirfd, e) ||
                       entries_list(c, e)
                   ? e->code
                   : 0;
    if (dirfd >= 0)
        close(dirfd);
    if (code) {
        checkpoint_close(c);
        return code;
    }
    *out = c;
    return 0;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < c->n_shards; i++)
        file_close(&c->shard[i].file);
    json_decref(c->config);
    free(c->entry);
    free(c->stored);
    free(c->shard);
    free(c->names);
    free(c->dir);
    free(c);
}

const json_t *checkpoint_config(const struct checkpoint *c)
{
    return c->config;
}

const char *checkpoint_dir(const struct checkpoint *c)
{
    return c->dir;
}

unsigned checkpoint_n_tensors(const struct checkpoint *c)
{
    return c->n_entries;
}

const struct source_tensor *checkpoint_tensor(const struct checkpoint *c, unsigned i)
{
    assert(i < c->n_entries);
    return &c->entry[i].tensor;
}

const struct source_tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    struct entry key = {.tensor.name = name};
    struct entry *x = bsearch(&key, c->entry, c->n_entries, sizeof(key), entry_by_name);

    return x ? &x->tensor : NULL;
}

unsigned checkpoint_n_shards(const struct checkpoint *c)
{
    return c->n_shards;
}

bool checkpoint_indexed(const struct checkpoint *c)
{
    return c->indexed;
}

const char *checkpoint_shard(const struct checkpoint *c, unsigned shard)
{
    assert(shard < c->n_shards);
    return c->shard[shard].name;
}

bool checkpoint_shard_present(const struct checkpoint *c, unsigned shard)
{
    assert(shard < c->n_shards);
    return c->shard[shard].present;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

bool checkpoint_shard_untouched(const struct checkpoint *c, unsigned shard, int dirfd)
{
    const struct shard *s = &c->shard[shard];
    struct stat now;

    assert(shard < c->n_shards && s->present);
    return !fstatat(dirfd, s->name, &now, 0) && same_file(&now, &s->then);
}

void checkpoint_shard_close(struct checkpoint *c, unsigned shard)
{
    assert(shard < c->n_shards);
    file_close(&c->shard[shard].file);
    c->shard[shard].present = false;
}

static int not_finite(const struct source_tensor *t, const char *suffix, uint64_t i, uint64_t j,
                      struct err *e)
{
    if (t->rank == 1)
        return err_set(e, ERR_CORRUPT, "%s: non-finite value at [%" PRIu64 "]", t->name, j);
    return err_set(e, ERR_CORRUPT, "%s%s: non-finite value at [%" PRIu64 "][%" PRIu64 "]", t->name,
                   suffix, i, j);
}

int checkpoint_check_present(const struct checkpoint *c, const struct source_tensor *t,
                             struct err *e)
{
    for (unsigned i = 0, shard = t->shard; i < 2; i++, shard = t->scale_shard)
        if (!c->shard[shard].present)
            return err_set(e, ERR_IO, "%s: its shard %.200s was reclaimed", t->name,
                           c->shard[shard].name);
    return 0;
}

static unsigned bits_of(enum source_dtype dtype)
{
    static const unsigned bits[] = {32, 16, 16, 8, 8, 4};

    return bits[dtype];
}

/* The companion's rows that rows [row, row + n) need. */
struct scale_rows {
    uint64_t row, n, cols; /* n = 0: there is no companion */
    unsigned width;        /* bytes of a scale: E8M0 (MXFP4) or little-endian f32 (fp8) */
    const char *suffix;
};

static struct scale_rows scale_rows(const struct checkpoint *c, const struct source_tensor *t,
                                    uint64_t row, uint64_t n)
{
    uint64_t first;

    switch (t->dtype) {
    case SOURCE_MXFP4:
        return (struct scale_rows){row, n, t->cols / FP4_BLOCK, 1, "_scale"};
    case SOURCE_F8_E4M3:
    case SOURCE_F8_E5M2:
        first = row / c->block[0];
        return (struct scale_rows){first, (row + n - 1) / c->block[0] - first + 1,
                                   (t->cols - 1) / c->block[1] + 1, 4, "_scale_inv"};
    default:
        return (struct scale_rows){.width = 1};
    }
}

void checkpoint_parts(const struct checkpoint *c, const struct source_tensor *t, uint64_t row,
                      uint64_t n, struct source_part part[2])
{
    const struct entry *x = (const struct entry *)t;
    struct scale_rows s = scale_rows(c, t, row, n);
    uint64_t row_bytes = t->cols * bits_of(t->dtype) / 8, scale_bytes = s.cols * s.width;

    part[0] = (struct source_part){.shard = t->shard,
                                   .file = &c->shard[t->shard].file,
                                   .off = x->off + row * row_bytes,
                                   .bytes = n * row_bytes};
    part[1] = (struct source_part){.shard = t->scale_shard,
                                   .file = &c->shard[t->scale_shard].file,
                                   .off = x->scale_off + s.row * scale_bytes,
                                   .bytes = s.n * scale_bytes};
}

static int scales_check(const uint8_t *scales, const struct source_tensor *t,
                        const struct scale_rows *s, struct err *e)
{
    for (size_t i = 0; i < s->n * s->cols; i++) {
        float f32 = 0;

        if (s->width == 4)
            widen_f32(&f32, scales + 4 * i, 1);
        if (s->width == 4 ? !widen_first_bad(&f32, 1) : scales[i] == 255)
            return not_finite(t, s->suffix, s->row + i / s->cols, i % s->cols, e);
    }
    return 0;
}

static void widen_row(float *out, const uint8_t *raw, const struct source_tensor *t,
                      const uint8_t *scale, uint32_t block, const float table[256])
{
    switch (t->dtype) {
    case SOURCE_F32:
        widen_f32(out, raw, t->cols);
        break;
    case SOURCE_F16:
        widen_f16(out, raw, t->cols);
        break;
    case SOURCE_BF16:
        widen_bf16(out, raw, t->cols);
        break;
    case SOURCE_F8_E4M3:
    case SOURCE_F8_E5M2:
        widen_fp8(out, raw, t->cols, table, scale, block);
        break;
    case SOURCE_MXFP4:
        widen_mxfp4(out, raw, t->cols, scale);
        break;
    }
}

int checkpoint_widen(const struct checkpoint *c, const struct source_tensor *t, uint64_t row,
                     uint64_t n, const uint8_t *payload, const uint8_t *scales, float *out,
                     struct err *e)
{
    struct scale_rows s = scale_rows(c, t, row, n);
    uint64_t row_bytes = t->cols * bits_of(t->dtype) / 8;
    float table[256];

    if (scales_check(scales, t, &s, e))
        return e->code;
    if (t->dtype == SOURCE_F8_E4M3)
        widen_e4m3_table(table);
    else if (t->dtype == SOURCE_F8_E5M2)
        widen_e5m2_table(table);
    for (uint64_t i = 0; i < n; i++, out += t->cols, payload += row_bytes) {
        uint64_t down = t->dtype == SOURCE_MXFP4 ? i : (row + i) / c->block[0] - s.row;
        size_t bad;

        widen_row(out, payload, t, s.n ? scales + down * s.cols * s.width : NULL, c->block[1],
                  table);
        bad = widen_first_bad(out, t->cols);
        if (bad < t->cols)
            return not_finite(t, "", row + i, bad, e);
    }
    return 0;
}

static int part_read(void *dst, const struct source_part *part, const struct source_tensor *t,
                     struct err *e)
{
    if (part->bytes && file_read(part->file, dst, part->bytes, part->off, e))
        return err_wrap(e, "%s", t->name);
    return 0;
}

/* The payload is read into the end of `out` and widened in place, one row after the other. */
int checkpoint_read(const struct checkpoint *c, const struct source_tensor *t, uint64_t row,
                    uint64_t n, float *out, struct err *e)
{
    struct source_part part[2];
    uint8_t *payload, *scales;
    int code;

    if (checkpoint_check_present(c, t, e))
        return e->code;
    assert(row <= t->rows && n <= t->rows - row);
    if (!n)
        return 0;
    checkpoint_parts(c, t, row, n, part);
    scales = malloc(part[1].bytes + 1);
    if (!scales)
        return err_set(e, ERR_NOMEM, "%s: %zu bytes of scales", t->name, part[1].bytes);
    payload = (uint8_t *)(out + n * t->cols) - part[0].bytes;
    code = part_read(scales, &part[1], t, e) || part_read(payload, &part[0], t, e)
               ? e->code
               : checkpoint_widen(c, t, row, n, payload, scales, out, e);
    free(scales);
    return code;
}
