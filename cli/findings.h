/* cli/findings.h - what `waste doctor` found: a list of facts, each judged, each with a cure. */
#ifndef CLI_FINDINGS_H
#define CLI_FINDINGS_H

#include <stdbool.h>
#include <stddef.h>

enum { FINDINGS_MAX = 96 };

enum judged {
    FOUND_GOOD,
    FOUND_FACT,    /* neither good nor bad */
    FOUND_BETTER,  /* works; could be better */
    FOUND_BAD,     /* does not work, or much slower than it need be */
    FOUND_UNKNOWN, /* could not be found out */
};

struct finding {
    const char *topic; /* "system", "drive", ...: findings of one topic stand together */
    char name[32], value[224], cure[256]; /* cure: what to do; "" where there is nothing to do */
    enum judged judged;
};

struct findings {
    unsigned n; /* beyond FINDINGS_MAX they are dropped */
    struct finding of[FINDINGS_MAX];
};

/* cure is copied, NULL for none. */
void found(struct findings *f, const char *topic, const char *name, enum judged judged,
           const char *cure, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

const char *judged_name(enum judged judged); /* "good", "fact", "better", "bad", "unknown" */

/* Look at the machine: topic "system" and "memory". root stands in front of /proc and /sys, so
 * that tests can make a machine up; "" otherwise. Nothing is changed; never fails. */
void find_system(struct findings *f, const char *root);

/* Look at where an absolute path without links lies: mount, file system, the stack of devices
 * below, their queues and links: topic "drive". Nothing is read but /proc and /sys. */
void find_drive(struct findings *f, const char *root, const char *path);

/* First line of the file root/path without its newline; false if there is none. */
bool first_line(char *out, size_t room, const char *root, const char *path);

#endif
