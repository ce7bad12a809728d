#include "base/pressure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/machine.h"

#define PAUSE_NS 2000000000u

static const double STALLED_PERCENT = 1;

/* The first number in the file behind `before`, or where there is none, -1. */
static double number_after(const char *path, const char *line_begins, const char *before)
{
    FILE *f = *path ? fopen(path, "re") : NULL;
    double value = -1;
    char line[256];

    while (f && value < 0 && fgets(line, sizeof(line), f)) {
        const char *at =
            strncmp(line, line_begins, strlen(line_begins)) ? NULL : strstr(line, before);

        if (at)
            value = strtod(at + strlen(before), NULL);
    }
    if (f)
        fclose(f);
    return value;
}

static uint64_t high_events(const struct pressure *p)
{
    double n = number_after(p->events, "high ", "high ");

    return n > 0 ? (uint64_t)n : 0;
}

void pressure_open(struct pressure *p, const char *root)
{
    char dir[PRESSURE_PATH - 32];

    memset(p, 0, sizeof(*p));
    if (machine_cgroup(root, dir, sizeof(dir))) {
        snprintf(p->stall, sizeof(p->stall), "%s/memory.pressure", dir);
        snprintf(p->events, sizeof(p->events), "%s/memory.events", dir);
    }
    if (number_after(p->stall, "full ", "avg10=") < 0)
        snprintf(p->stall, sizeof(p->stall), "%s/proc/pressure/memory", root ? root : "");
    p->high = high_events(p);
}

bool pressure_look(struct pressure *p, uint64_t now_ns)
{
    uint64_t high;
    bool hit;

    if (now_ns < p->next_ns)
        return false;
    p->next_ns = now_ns + PAUSE_NS;
    high = high_events(p);
    hit = high > p->high;
    p->high = high;
    return hit || number_after(p->stall, "full ", "avg10=") > STALLED_PERCENT;
}
