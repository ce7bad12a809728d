#include "cli/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void found(struct findings *f, const char *topic, const char *name, enum judged judged,
           const char *cure, const char *fmt, ...)
{
    struct finding *x = &f->of[f->n];
    va_list ap;

    if (f->n == FINDINGS_MAX)
        return;
    x->topic = topic;
    x->judged = judged;
    snprintf(x->name, sizeof(x->name), "%s", name);
    snprintf(x->cure, sizeof(x->cure), "%s", cure ? cure : "");
    va_start(ap, fmt);
    vsnprintf(x->value, sizeof(x->value), fmt, ap);
    va_end(ap);
    f->n++;
}

const char *judged_name(enum judged judged)
{
    static const char *const names[] = {[FOUND_GOOD] = "good",
                                        [FOUND_FACT] = "fact",
                                        [FOUND_BETTER] = "better",
                                        [FOUND_BAD] = "bad",
                                        [FOUND_UNKNOWN] = "unknown"};

    return names[judged];
}

bool first_line(char *out, size_t room, const char *root, const char *path)
{
    char full[512];
    FILE *file;
    bool there;

    snprintf(full, sizeof(full), "%s%s", root, path);
    file = fopen(full, "re");
    if (!file)
        return false;
    there = fgets(out, (int)room, file) != NULL;
    fclose(file);
    if (there)
        out[strcspn(out, "\n")] = 0;
    return there;
}
