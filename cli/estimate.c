#include "cli/estimate.h"

#include <stddef.h>

static const struct point {
    double working_sets, hit_rate;
} published[] = {
    {0, 0},        {0.195, 0.291}, /* K3, 287 records */
    {1, 0.385},                    /* K3, 36 to 41 % */
    {1.92, 0.403},                 /* Kimi-Linear, 6 % of all records */
    {3.84, 0.619},                 /* 12 % */
    {7.68, 0.848},                 /* 24 % */
    {15.4, 0.939},                 /* 48 % */
};

static double between(struct point a, struct point b, double x)
{
    return a.hit_rate +
           (b.hit_rate - a.hit_rate) * (x - a.working_sets) / (b.working_sets - a.working_sets);
}

double estimate_hit_rate(uint64_t pool_bytes, uint64_t working_set_bytes, uint64_t expert_bytes)
{
    size_t n = sizeof(published) / sizeof(published[0]);
    struct point all;
    double x;

    if (!working_set_bytes || pool_bytes >= expert_bytes)
        return 1;
    x = (double)pool_bytes / (double)working_set_bytes;
    all = (struct point){(double)expert_bytes / (double)working_set_bytes, 1};
    for (size_t i = 1; i < n && published[i].working_sets < all.working_sets; i++) {
        if (x < published[i].working_sets)
            return between(published[i - 1], published[i], x);
    }
    while (published[n - 1].working_sets >= all.working_sets)
        n--;
    return between(published[n - 1], all, x);
}

struct estimate estimate_decode(uint64_t pool_bytes, uint64_t working_set_bytes,
                                uint64_t expert_bytes, uint64_t trunk_bytes, double drive_rate,
                                double ram_rate)
{
    struct estimate s = {
        .hit_rate = estimate_hit_rate(pool_bytes, working_set_bytes, expert_bytes),
        .ram_seconds = ((double)trunk_bytes + (double)working_set_bytes) / ram_rate,
    };
    double longer;

    s.disk_seconds = (1 - s.hit_rate) * (double)working_set_bytes / drive_rate;
    longer = s.disk_seconds > s.ram_seconds ? s.disk_seconds : s.ram_seconds;
    s.tokens_per_second = longer > 0 ? 1 / longer : 0;
    return s;
}
