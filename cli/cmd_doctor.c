/* cli/cmd_doctor.c - is this machine good for streaming experts, and for this model? Looks, reads
 * a second's worth of records, and changes nothing. */
#include "cli/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu_place.h"
#include "cli/estimate.h"
#include "cli/findings.h"
#include "cli/load.h"
#include "cli/safe.h"
#include "cli/units.h"
#include "expertfs/container.h"

extern char **environ;

static const char DRIVE[] = "drive", MODEL[] = "model", SETTINGS[] = "settings";

struct verdict {
    bool model, fits; /* was a container given; does it fit in memory */
    int broken;       /* exit code of a container that cannot be opened; else 0 */
    waste_plan plan;
    double drive, ram; /* bytes per second; 0: not measured */
    struct estimate estimate;
};

/* Variables of ours that are set. A key is nobody's business. */
static void find_settings(struct findings *f)
{
    for (char **v = environ; *v; v++) {
        const char *value = strchr(*v, '=');
        char name[32], shown[128];

        if (strncmp(*v, "WASTE_", 6) || !value)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(value - *v), *v);
        found(f, SETTINGS, name, FOUND_FACT, NULL, "%s",
              strstr(name, "KEY")
                  ? "(set)"
                  : safe_text(shown, sizeof(shown), value + 1, strlen(value + 1), ""));
    }
}

/* What the kernel asks of direct reads of this file. */
static void find_alignment(struct findings *f, const struct file *file)
{
    struct statx sx;

    if (statx(file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) ||
        !(sx.stx_mask & STATX_DIOALIGN)) {
        found(f, DRIVE, "alignment", FOUND_UNKNOWN, NULL,
              "this kernel or file system does not tell");
        return;
    }
    if (!sx.stx_dio_offset_align)
        found(f, DRIVE, "alignment", FOUND_BETTER, "ext4 and xfs on NVMe can",
              "this file system cannot read past the page cache");
    else if (sx.stx_dio_offset_align > IO_ALIGN)
        found(f, DRIVE, "alignment", FOUND_BETTER,
              "records are aligned to 4 KiB: a file system with blocks of 4 KiB reads them direct",
              "direct reads need multiples of %u bytes", sx.stx_dio_offset_align);
    else
        found(f, DRIVE, "alignment", FOUND_GOOD, NULL,
              "direct reads need multiples of %u bytes in the file, %u in memory",
              sx.stx_dio_offset_align, sx.stx_dio_mem_align);
}

/* Which banks are read past the page cache, as one read of each proved. */
/* Returns the exit code of a container that cannot be opened, else 0. */
static int find_banks(struct cli *c, struct findings *f, const char *path)
{
    struct container_options o = {.direct = c->opts.direct};
    const struct file *const *files;
    struct container *box;
    unsigned n, direct = 0;
    const char *why = "";
    struct err e;

    if (container_open(&box, path, &o, &e)) {
        found(f, MODEL, "container", FOUND_BAD,
              exit_of_err(e.code) == EXIT_DAMAGED ? "waste verify names everything that is wrong"
                                                  : NULL,
              "%s", e.text);
        return exit_of_err(e.code);
    }
    files = container_files(box, &n);
    for (unsigned i = 0; i < n; i++) {
        direct += files[i]->direct;
        if (!files[i]->direct)
            why = files[i]->why;
    }
    if (n && direct == n)
        found(f, DRIVE, "direct reads", FOUND_GOOD, NULL, "work, tried on all %u banks", n);
    else if (n)
        found(f, DRIVE, "direct reads", FOUND_BETTER,
              "reads through the page cache cost tens of times the CPU time, and keep bytes twice",
              "of %u banks, %u cannot be read past the page cache (%s)", n, n - direct, why);
    if (n)
        find_alignment(f, files[0]);
    container_close(box);
    return 0;
}

static int find_plan(struct cli *c, struct findings *f, const char *path, struct verdict *v)
{
    char a[UNITS_TEXT], b[UNITS_TEXT], source[SAY_OPTION];
    waste_opts opts;
    waste_cfg cfg;
    waste_status st;

    model_settings(c, &cfg, &opts);
    v->plan.size = sizeof(v->plan);
    st = waste_plan_ex(path, &cfg, &opts, &v->plan);
    if (st != WASTE_OK)
        return fail_settings(c, st, path);
    v->fits = v->plan.fits;
    if (!v->plan.fits)
        found(f, MODEL, "memory", FOUND_BAD,
              "a smaller --ctx, more memory, or a limit that is raised (see waste plan)",
              "needs %s, the budget is %s (%s)", size_text(a, v->plan.mem.floor_bytes),
              size_text(b, v->plan.budget_bytes),
              v->plan.budget_chosen ? "chosen" : say_option(c, "budget", source));
    else
        found(f, MODEL, "memory",
              v->plan.budget_bytes < v->plan.mem.recommended_bytes ? FOUND_BETTER : FOUND_GOOD,
              v->plan.budget_bytes < v->plan.mem.recommended_bytes
                  ? "more memory holds more experts, and each of them need not be read"
                  : NULL,
              "a budget of %s; at least %s is needed", size_text(a, v->plan.budget_bytes),
              size_text(b, v->plan.mem.floor_bytes));
    return 0;
}

static void find_speed(struct cli *c, struct findings *f, const char *path, struct verdict *v)
{
    char a[UNITS_TEXT], b[UNITS_TEXT];
    bool direct;
    struct err e;

    if (!v->plan.record_bytes)
        return;
    if (measure_drive(&v->drive, &direct, path, c->opts.direct, &e)) {
        v->drive = 0;
        found(f, DRIVE, "rate", FOUND_BAD, NULL, "%s", e.text);
        return;
    }
    found(f, DRIVE, "rate", direct ? FOUND_FACT : FOUND_UNKNOWN,
          direct ? NULL : "this is the page cache, not the drive",
          "%s/s in records of %s at random", size_text_decimal(a, (uint64_t)v->drive),
          size_text_decimal(b, v->plan.record_bytes));
    if (measure_ram(&v->ram, &e)) {
        v->ram = 0;
        return;
    }
    found(f, "memory", "rate", FOUND_FACT, NULL, "%s/s", size_text_decimal(a, (uint64_t)v->ram));
    v->estimate = estimate_decode(v->plan.pool_bytes, v->plan.mem.working_set_bytes,
                                  v->plan.expert_bytes, v->plan.mem.trunk_bytes, v->drive, v->ram);
}

/* As a command that runs a model with these options would place its threads. */
static void find_threads(struct cli *c, struct findings *f)
{
    struct cpu_list listed;
    struct cpu_place p;
    struct err e;

    if (c->opts.cpus && cpu_list_parse(&listed, c->opts.cpus, &e)) {
        found(f, "system", "placement", FOUND_BAD, "--cpus 0-3,8", "%s", e.text);
        return;
    }
    cpu_place_here(&p, (unsigned)c->opts.threads, c->opts.cpus ? &listed : NULL);
    found(f, "system", "placement", FOUND_FACT, NULL, "%s", p.text);
}

static void print_topic(const struct findings *f, const char *topic)
{
    static const char *const mark[] = {[FOUND_GOOD] = "ok ",
                                       [FOUND_FACT] = "   ",
                                       [FOUND_BETTER] = "!  ",
                                       [FOUND_BAD] = "BAD",
                                       [FOUND_UNKNOWN] = "?  "};
    enum { COLUMN = 20 };
    bool title = false;
    char value[512];

    for (unsigned i = 0; i < f->n; i++) {
        const struct finding *x = &f->of[i];

        if (strcmp(x->topic, topic))
            continue;
        if (!title)
            printf("%c%s\n", topic[0] - 'a' + 'A', topic + 1);
        title = true;
        printf("  %s %-13s", mark[x->judged], x->name);
        print_wrapped(stdout, safe_text(value, sizeof(value), x->value, strlen(x->value), ""),
                      COLUMN - 1, COLUMN);
        if (x->cure[0]) {
            printf("%*s", COLUMN - 1, "");
            print_wrapped(stdout, strcat(strcpy(value, "-> "), x->cure), COLUMN - 1, COLUMN);
        }
    }
}

static void print_verdict(const struct findings *f, const struct verdict *v, const char *path)
{
    double rate = v->estimate.tokens_per_second;
    double disk_ms = 1e3 * v->estimate.disk_seconds, ram_ms = 1e3 * v->estimate.ram_seconds;
    unsigned better = 0, bad = 0;

    for (unsigned i = 0; i < f->n; i++) {
        better += f->of[i].judged == FOUND_BETTER;
        bad += f->of[i].judged == FOUND_BAD;
    }
    if (v->broken)
        printf("\n%s cannot run: %s.\n", path,
               v->broken == EXIT_DAMAGED ? "the container is not whole"
                                         : "the container cannot be opened");
    else if (v->model && !v->fits)
        printf("\n%s cannot run here: it does not fit in memory.\n", path);
    else if (v->model && rate > 0)
        printf("\n%s can run here: at most %.*f tokens a second.\n"
               "(drive %.*f ms, memory %.*f ms a token; hits as published for\n"
               "Kimi-Linear and K3; reading and computing overlap)\n",
               path, estimate_decimals(rate), rate, estimate_decimals(disk_ms), disk_ms,
               estimate_decimals(ram_ms), ram_ms);
    else if (v->model)
        printf("\n%s: how fast it would run was not measured.\n", path);
    else
        printf("\n");
    printf("%u bad, %u could be better.\n", bad, better);
    if (!v->model)
        printf("`waste doctor MODEL` also reads a model's records, and says how fast it can be.\n");
}

static json_t *findings_json(const struct findings *f)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < f->n; i++) {
        const struct finding *x = &f->of[i];

        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:o, s:s}", "topic", x->topic, "name",
                                        x->name, "judged", judged_name(x->judged), "value",
                                        json_text(x->value, strlen(x->value)), "cure", x->cure));
    }
    return list;
}

static int report_json(struct cli *c, const struct findings *f, const struct verdict *v,
                       const char *path)
{
    json_t *o = json_pack("{s:o, s:o}", "path", json_text(path, strlen(path)), "findings",
                          findings_json(f));

    if (o && v->model) {
        json_object_set_new(o, "fits", json_boolean(v->fits));
        json_object_set_new(o, "opens", json_boolean(!v->broken));
        json_object_set_new(o, "drive_bytes_per_s",
                            v->drive > 0 ? json_f64(v->drive) : json_null());
        json_object_set_new(o, "ram_bytes_per_s", v->ram > 0 ? json_f64(v->ram) : json_null());
        json_object_set_new(o, "tok_per_s",
                            v->estimate.tokens_per_second > 0
                                ? json_f64(v->estimate.tokens_per_second)
                                : json_null());
    }
    return say_json(c, o);
}

static int report_text(struct cli *c, const struct findings *f, const struct verdict *v,
                       const char *path)
{
    static const char *const topics[] = {"system", "memory", "drive", "model", "settings"};

    for (size_t i = 0; i < sizeof(topics) / sizeof(topics[0]); i++)
        print_topic(f, topics[i]);
    print_verdict(f, v, path);
    return term_flush(&c->term) ? 0 : fail_output(c);
}

static bool is_container(const char *path)
{
    char manifest[PATH_MAX + 16];
    struct stat st;

    snprintf(manifest, sizeof(manifest), "%s/manifest.json", path);
    return !stat(manifest, &st);
}

int cmd_doctor(struct cli *c)
{
    const char *name = c->opts.n_args > 1 ? c->opts.arg[1] : ".";
    struct findings f = {.n = 0};
    struct verdict v = {.broken = 0};
    char path[PATH_MAX], real[PATH_MAX];
    int rc = model_find(c, name, path);

    if (rc)
        return rc;
    if (!realpath(path, real))
        return fail(c, EXIT_RUNTIME, NULL, path, "%s", strerror(errno));
    v.model = is_container(real);
    find_system(&f, "");
    find_threads(c, &f);
    find_drive(&f, "", real);
    find_settings(&f);
    if (v.model) {
        rc = find_plan(c, &f, path, &v);
        if (rc)
            return rc;
        v.broken = find_banks(c, &f, path);
        if (v.fits && !v.broken)
            find_speed(c, &f, path, &v);
        if (term_interrupted())
            return EXIT_INTERRUPTED;
    }
    rc = c->opts.json ? report_json(c, &f, &v, path) : report_text(c, &f, &v, path);
    return rc ? rc : v.broken ? v.broken : v.model && !v.fits ? EXIT_MEMORY : 0;
}
