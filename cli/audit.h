/* cli/audit.h - a container's sizes beside those that follow from the published models' shapes. */
#ifndef CLI_AUDIT_H
#define CLI_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "expertfs/manifest.h"

enum { AUDIT_CHECKS_MAX = 8, AUDIT_NOTES_MAX = 12, AUDIT_NOTE_BYTES = 160 };

struct audit_check {
    const char *what;
    bool count; /* a number; otherwise bytes */
    uint64_t found, published;
};

struct audit {
    const char *model; /* whose shape this is; NULL: none that was published */
    struct audit_check check[AUDIT_CHECKS_MAX];
    unsigned n_checks;
    char note[AUDIT_NOTES_MAX][AUDIT_NOTE_BYTES]; /* what is old, missing or incomplete */
    unsigned n_notes;
};

/* Sizes of the files below dirfd are asked of the system; no file is opened. */
void audit_container(struct audit *a, const struct manifest *m, int dirfd);
unsigned audit_same(const struct audit *a); /* checks that agree */

#endif
