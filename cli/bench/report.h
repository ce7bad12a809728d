/* cli/bench/report.h - what was measured, where, and how it is shown: tables as trials end, or one
 * JSON object at the end.
 *
 *   {"schema": "waste-bench/1", "command", "arguments": [...], "provenance": {...}, "notes": [...],
 *    "trials": [{"name", "rounds", "metrics": [{"name", "unit"}...], "ceiling",
 *      "arms": [{"name", "ceiling", "state", "why", "note", "digest", "of_ceiling", "of_first",
 *        METRIC: {"median", "min", "max", "iqr", "samples": [...]}...}]}], "interrupted": bool,
 *    "valid": bool}
 */
#ifndef CLI_BENCH_REPORT_H
#define CLI_BENCH_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "cli/bench/trial.h"

#define REPORT_SCHEMA "waste-bench/1"

struct report {
    json_t *root, *trials, *notes;
    FILE *table; /* where tables go as trials end; NULL: nowhere */
    bool invalid, interrupted;
};

/* Gathers the provenance and prints it. argv: the command's name first, until NULL. ERR_NOMEM. */
int report_open(struct report *r, FILE *table, char *const *argv, struct err *e);

/* Tables go here from now on, beginning with the provenance. */
void report_table_to(struct report *r, FILE *table);

/* A line that belongs to the figures: an assumption, something that was not measured. */
void report_note(struct report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Facts of this command in the provenance, under `key`; takes the reference. */
void report_fact(struct report *r, const char *key, json_t *value);

/* Print and keep a trial that has run. A JSON object of facts of this trial may be added (takes the
 * reference; NULL: none). */
void report_trial(struct report *r, const struct trial *t, json_t *facts);

/* Not everything was measured, and what was is not valid as a whole: says so, once. */
void report_interrupt(struct report *r);

/* The whole object; borrowed. After the last trial. */
json_t *report_end(struct report *r);

void report_release(struct report *r);

#endif
