/* cli/cmd_info.c - what a container holds, from its manifest and the sizes of its files. */
#include "cli/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/audit.h"
#include "cli/load.h"
#include "cli/safe.h"
#include "cli/units.h"
#include "expertfs/manifest.h"

static const char *const side_files[] = {"tokenizer.model", "tiktoken.model", "specials.json",
                                         "chat.json",       "vision.json",    "usage.waste"};

struct info {
    struct cli *c;
    const char *path;
    int dir;
    struct manifest m;
    waste_plan plan;
    struct audit audit;
    char quant[160];
};

static bool has_file(const struct info *v, const char *name)
{
    struct stat st;

    return !fstatat(v->dir, name, &st, 0);
}

/* "trunk 412 Q4G, 113 F32; experts VQ3R, 3 stages of 256, 3.00 bits a weight" */
static void describe_quant(struct info *v)
{
    static const struct {
        int fmt;
        const char *name;
    } formats[] = {{FMT_F32, "F32"}, {FMT_Q8G, "Q8G"}, {FMT_Q4G, "Q4G"}, {FMT_Q3G, "Q3G"}};
    const struct record_layout *l = &v->m.record;
    size_t at = (size_t)snprintf(v->quant, sizeof(v->quant), "trunk");
    const char *comma = " ";

    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        unsigned n = 0;

        for (unsigned i = 0; i < v->m.n_trunk; i++)
            n += v->m.trunk[i].fmt == formats[f].fmt;
        if (n)
            at += (size_t)snprintf(v->quant + at, sizeof(v->quant) - at, "%s%u %s", comma, n,
                                   formats[f].name);
        comma = n ? ", " : comma;
    }
    if (v->m.n_experts)
        snprintf(v->quant + at, sizeof(v->quant) - at, "; experts %s, %u stages of %u, %.2f bits",
                 record_format_name(l), l->stages, l->entries,
                 (double)(l->cell_bytes * 8) / FORMAT_VEC_DIM);
}

static json_t *audit_json(const struct audit *a)
{
    json_t *checks, *notes = json_array();

    for (unsigned i = 0; i < a->n_notes; i++)
        json_array_append_new(notes, json_string(a->note[i]));
    if (!a->model)
        return json_pack("{s:n, s:o}", "model", "notes", notes);
    checks = json_array();
    for (unsigned i = 0; i < a->n_checks; i++) {
        const struct audit_check *x = &a->check[i];

        json_array_append_new(checks,
                              json_pack("{s:s, s:I, s:I, s:b}", "what", x->what, "found",
                                        (json_int_t)x->found, "published", (json_int_t)x->published,
                                        "same", x->found == x->published));
    }
    return json_pack("{s:s, s:o, s:o}", "model", a->model, "checks", checks, "notes", notes);
}

static json_t *files_json(const struct info *v)
{
    json_t *files = json_array();

    for (size_t i = 0; i < sizeof(side_files) / sizeof(side_files[0]); i++) {
        if (has_file(v, side_files[i]))
            json_array_append_new(files, json_string(side_files[i]));
    }
    return files;
}

static int print_json(struct info *v)
{
    const struct manifest *m = &v->m;
    const waste_plan *p = &v->plan;
    json_t *o = json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:I, s:I, s:s, s:I}", "engine",
                          waste_version(), "arch", json_text(m->arch, strlen(m->arch)), "layers",
                          (int)m->n_layers, "experts", (int)m->n_experts, "top_k", (int)m->top_k,
                          "hidden", (int)m->hidden, "params_total", (json_int_t)p->params_total,
                          "params_active", (json_int_t)p->params_active, "quantization", v->quant,
                          "expert_cache_bytes", (json_int_t)p->pool_bytes);
    json_t *more = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "moe_layers",
        (int)p->n_moe_layers, "vocab", (int)m->vocab, "expert_width", (int)m->latent,
        "expert_intermediate", (int)m->inter, "stages", (int)m->record.stages, "entries",
        (int)m->record.entries, "index_bits", (int)m->record.index_bits, "trunk_tensors",
        (int)m->n_trunk, "record_bytes", (json_int_t)m->record.bytes, "expert_bytes",
        (json_int_t)p->expert_bytes, "trunk_file_bytes", (json_int_t)p->trunk_file_bytes,
        "disk_bytes", (json_int_t)p->disk_bytes, "floor_bytes", (json_int_t)p->mem.floor_bytes,
        "files", files_json(v), "audit", audit_json(&v->audit));

    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return say_json(v->c, o);
}

static void print_size(const char *name, uint64_t bytes)
{
    char binary[UNITS_TEXT], decimal[UNITS_TEXT];

    printf("%-14s %s (%s)\n", name, size_text(binary, bytes), size_text_decimal(decimal, bytes));
}

static void print_audit(const struct audit *a)
{
    char found[UNITS_TEXT], published[UNITS_TEXT], text[4 * AUDIT_NOTE_BYTES];

    if (a->model)
        printf("%-14s %s, %u of %u figures as published\n", "audit", a->model, audit_same(a),
               a->n_checks);
    for (unsigned i = 0; a->model && i < a->n_checks; i++) {
        const struct audit_check *x = &a->check[i];

        if (x->found != x->published && x->count)
            printf("%-14s %s: %llu, published %llu\n", "", x->what, (unsigned long long)x->found,
                   (unsigned long long)x->published);
        else if (x->found != x->published)
            printf("%-14s %s: %s, published %s\n", "", x->what, size_text_decimal(found, x->found),
                   size_text_decimal(published, x->published));
    }
    for (unsigned i = 0; i < a->n_notes; i++)
        printf("%-14s %s\n", "note",
               safe_text(text, sizeof(text), a->note[i], strlen(a->note[i]), ""));
}

static int print_text(struct info *v)
{
    const struct manifest *m = &v->m;
    const waste_plan *p = &v->plan;
    char total[UNITS_TEXT], active[UNITS_TEXT], arch[256];

    printf("%-14s %s\n", "arch", safe_text(arch, sizeof(arch), m->arch, strlen(m->arch), ""));
    printf("%-14s %u, %u of them with experts\n", "layers", m->n_layers, p->n_moe_layers);
    printf("%-14s %u a layer, %u a token\n", "experts", m->n_experts, m->top_k);
    printf("%-14s %u wide, experts %u x %u, vocabulary %u\n", "hidden", m->hidden, m->latent,
           m->inter, m->vocab);
    printf("%-14s %s, %s a token\n", "parameters", count_text(total, p->params_total),
           count_text(active, p->params_active));
    printf("%-14s %s\n", "quantization", v->quant);
    print_size("container", p->disk_bytes);
    print_size("  trunk", p->trunk_file_bytes);
    print_size("  experts", p->expert_bytes);
    print_size("one expert", m->record.bytes);
    print_size("needs", p->mem.floor_bytes);
    printf("%-14s", "files");
    for (size_t i = 0; i < sizeof(side_files) / sizeof(side_files[0]); i++) {
        if (has_file(v, side_files[i]))
            printf(" %s", side_files[i]);
    }
    putchar('\n');
    print_audit(&v->audit);
    return term_flush(&v->c->term) ? 0 : fail_output(v->c);
}

static int describe(struct info *v)
{
    waste_status st;

    v->plan.size = sizeof(v->plan);
    st = waste_plan_ex(v->path, NULL, NULL, &v->plan);
    if (st != WASTE_OK)
        return fail_status(v->c, st, NULL, v->path);
    describe_quant(v);
    audit_container(&v->audit, &v->m, v->dir);
    return v->c->opts.json ? print_json(v) : print_text(v);
}

int cmd_info(struct cli *c)
{
    struct info v = {.c = c};
    char path[PATH_MAX];
    struct err e;
    int rc = model_find(c, c->opts.arg[1], path);

    if (rc)
        return rc;
    v.path = path;
    v.dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (v.dir < 0)
        return fail(c, EXIT_RUNTIME, NULL, path, "%s", strerror(errno));
    if (manifest_read(&v.m, v.dir, path, &e)) {
        rc = fail_err(c, &e, "info");
    } else {
        rc = describe(&v);
        manifest_release(&v.m);
    }
    close(v.dir);
    return rc;
}
