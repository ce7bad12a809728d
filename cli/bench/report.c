#include "cli/bench/report.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/bench/provenance.h"
#include "cli/say.h"

static json_t *arguments(char *const *argv)
{
    json_t *list = json_array();

    for (; list && *argv; argv++)
        json_array_append_new(list, json_text(*argv, strlen(*argv)));
    return list;
}

static const char *text_at(const json_t *o, const char *group, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(o, group), key));

    return text ? text : "unknown";
}

static void print_provenance(FILE *to, const json_t *p)
{
    const json_t *machine = json_object_get(p, "machine"), *load = json_object_get(p, "load");

    fprintf(to, "# %s, %d of %d cores, kernels %s, governor %s, huge pages %s, Linux %s\n",
            text_at(p, "machine", "cpu"),
            (int)json_integer_value(json_object_get(machine, "cores")),
            (int)json_integer_value(json_object_get(machine, "cores_online")),
            text_at(p, "machine", "kernels"), text_at(p, "machine", "governor"),
            text_at(p, "machine", "huge_pages"), text_at(p, "machine", "kernel"));
    fprintf(to, "# waste %s (%s), %s %s, %s; %s; load %.2f\n", text_at(p, "build", "version"),
            text_at(p, "build", "revision"), text_at(p, "build", "compiler"),
            text_at(p, "build", "compiler_version"), text_at(p, "build", "type"),
            json_string_value(json_object_get(p, "date")),
            json_real_value(json_array_get(load, 0)));
}

int report_open(struct report *r, FILE *table, char *const *argv, struct err *e)
{
    json_t *p = provenance();

    *r = (struct report){.table = table};
    r->root =
        json_pack("{s:s, s:s, s:o*, s:o*, s:[], s:[]}", "schema", REPORT_SCHEMA, "command", argv[0],
                  "arguments", arguments(argv + 1), "provenance", p, "notes", "trials");
    if (!r->root || !p)
        return err_set(e, ERR_NOMEM, "report of %s", argv[0]);
    r->notes = json_object_get(r->root, "notes");
    r->trials = json_object_get(r->root, "trials");
    if (table)
        print_provenance(table, p);
    return 0;
}

void report_table_to(struct report *r, FILE *table)
{
    r->table = table;
    print_provenance(table, json_object_get(r->root, "provenance"));
}

void report_note(struct report *r, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    json_array_append_new(r->notes, json_text(text, strlen(text)));
    if (r->table)
        fprintf(r->table, "# %s\n", text);
}

void report_fact(struct report *r, const char *key, json_t *value)
{
    json_object_set_new(json_object_get(r->root, "provenance"), key, value);
}

/* Of the first metric, against another figure of it; NaN where there is nothing to compare. */
static double share(const struct arm *a, double of)
{
    return a->state == ARM_VALID && of > 0 ? arm_median(a, 0) / of : NAN;
}

static double base_median(const struct trial *t)
{
    const struct arm *base = trial_base(t);

    return base ? arm_median(base, 0) : NAN;
}

static json_t *spread_json(const double *value, unsigned n)
{
    struct spread s = spread_of(value, n);
    json_t *samples = json_array();

    for (unsigned i = 0; i < n; i++)
        json_array_append_new(samples, json_f64(value[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "median", json_f64(s.median), "min",
                     json_f64(s.min), "max", json_f64(s.max), "iqr", json_f64(s.iqr), "samples",
                     samples);
}

/* One digest of all rounds. */
static json_t *digest_json(const struct arm *a)
{
    char text[20];

    if (!a->has_digest)
        return json_null();
    snprintf(text, sizeof(text), "%016llx",
             (unsigned long long)digest_bytes(0, a->digest, a->n * sizeof(a->digest[0])));
    return json_string(text);
}

static json_t *arm_json(const struct trial *t, const struct arm *a)
{
    static const char *const state[] = {"valid", "invalid", "absent"};
    json_t *o = json_pack("{s:s, s:b, s:s, s:o, s:o, s:o, s:o, s:o}", "name", a->name, "ceiling",
                          a->ceiling, "state", state[a->state], "why",
                          a->why[0] ? json_text(a->why, strlen(a->why)) : json_null(), "note",
                          a->note[0] ? json_text(a->note, strlen(a->note)) : json_null(), "digest",
                          digest_json(a), "of_ceiling", json_f64(share(a, trial_ceiling(t))),
                          "of_first", json_f64(share(a, base_median(t))));

    for (unsigned m = 0; m < t->n_metrics; m++)
        json_object_set_new(o, t->metrics[m].name, spread_json(a->value[m], a->n));
    return o;
}

static json_t *trial_json(const struct trial *t, json_t *facts)
{
    json_t *metrics = json_array(), *arms = json_array();

    for (unsigned m = 0; m < t->n_metrics; m++)
        json_array_append_new(metrics, json_pack("{s:s, s:s}", "name", t->metrics[m].name, "unit",
                                                 t->metrics[m].head));
    for (unsigned i = 0; i < t->n_arms; i++)
        json_array_append_new(arms, arm_json(t, &t->arm[i]));
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o}", "name", t->name, "rounds", (int)t->rounds,
                     "metrics", metrics, "ceiling", json_f64(trial_ceiling(t)), "facts",
                     facts ? facts : json_null(), "arms", arms);
}

/* Four significant digits, without an exponent where people read one badly. */
static const char *figure(char text[16], double v)
{
    double a = fabs(v);

    if (isnan(v))
        snprintf(text, 16, "-");
    else
        snprintf(text, 16, a >= 1000 ? "%.0f" : a >= 100 ? "%.1f" : a >= 1 ? "%.2f" : "%.4f", v);
    return text;
}

static void print_spread(FILE *to, const struct arm *a, double first, double ceiling)
{
    struct spread s = spread_of(a->value[0], a->n);
    double v[] = {s.median, s.min, s.max, s.iqr};
    char text[16];

    for (unsigned i = 0; i < sizeof(v) / sizeof(v[0]); i++)
        fprintf(to, " %9s", figure(text, v[i]));
    fprintf(to, " %7s", figure(text, a->ceiling ? NAN : share(a, first)));
    fprintf(to, " %7s", figure(text, share(a, ceiling)));
}

static void print_arm(FILE *to, const struct trial *t, const struct arm *a)
{
    char text[16];

    fprintf(to, "  %-34s", a->name);
    if (!a->n) {
        fprintf(to, " %s: %s\n", a->state == ARM_ABSENT ? "absent" : "INVALID", a->why);
        return;
    }
    print_spread(to, a, base_median(t), trial_ceiling(t));
    for (unsigned m = 1; m < t->n_metrics; m++)
        fprintf(to, " %9s", figure(text, arm_median(a, m)));
    fprintf(to, "%s%s\n", a->note[0] ? "  " : "", a->note);
    if (a->state == ARM_INVALID)
        fprintf(to, "  %-34s INVALID: %s\n", "", a->why);
}

static void print_trial(FILE *to, const struct trial *t)
{
    fprintf(to, "\n%s: %s\n  %-34s %9s %9s %9s %9s %7s %7s", t->name, t->metrics[0].head, "",
            "median", "min", "max", "IQR", "x first", "of ceil");
    for (unsigned m = 1; m < t->n_metrics; m++)
        fprintf(to, " %9s", t->metrics[m].head);
    fputc('\n', to);
    for (unsigned i = 0; i < t->n_arms; i++)
        print_arm(to, t, &t->arm[i]);
    fflush(to); /* the next one may take a while */
}

void report_trial(struct report *r, const struct trial *t, json_t *facts)
{
    for (unsigned i = 0; i < t->n_arms; i++)
        r->invalid |= t->arm[i].state == ARM_INVALID;
    json_array_append_new(r->trials, trial_json(t, facts));
    if (r->table)
        print_trial(r->table, t);
}

void report_interrupt(struct report *r)
{
    if (!r->interrupted)
        report_note(r, "INTERRUPTED: this is what was measured until then");
    r->interrupted = true;
}

json_t *report_end(struct report *r)
{
    json_object_set_new(r->root, "load_at_end", load_average());
    json_object_set_new(r->root, "interrupted", json_boolean(r->interrupted));
    json_object_set_new(r->root, "valid", json_boolean(!r->invalid && !r->interrupted));
    return r->root;
}

void report_release(struct report *r)
{
    json_decref(r->root);
    *r = (struct report){.root = NULL};
}
