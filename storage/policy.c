#include "storage/policy.h"

#include <string.h>

const struct policy_ops *const *policies(void)
{
    static const struct policy_ops *const all[] = {&policy_lfru, &policy_nextuse, &policy_lru,
                                                   &policy_s3fifo, NULL};

    return all;
}

const struct policy_ops *policy_named(const char *name)
{
    const struct policy_ops *const *p = policies();

    while (*p && strcmp((*p)->name, name))
        p++;
    return *p;
}
