/* plan.c - what a model needs of a machine, before anything is loaded.
 *
 *     ./plan MODEL [CONTEXT]        MODEL: a container, or a release's config.json
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <waste.h>

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* strtoull alone would take -3, for a very large number, and 12x for 12. */
static int number(uint64_t *out, const char *text, uint64_t least, uint64_t most)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *out >= least && *out <= most)
        return 0;
    fprintf(stderr, "%s: not a number from %" PRIu64 " to %" PRIu64 "\n", text, least, most);
    return 2;
}

int main(int argc, char **argv)
{
    waste_plan plan = {.size = sizeof(plan)};
    waste_cfg cfg;
    uint64_t context = 0; /* the default */

    if (argc < 2 || argc > 3)
        return fprintf(stderr, "usage: %s MODEL [CONTEXT]\n", argv[0]), 2;
    if (argc == 3 && number(&context, argv[2], 0, UINT32_MAX))
        return 2;
    waste_cfg_init(&cfg);
    cfg.ctx_tokens = (uint32_t)context;
    if (waste_plan_ex(argv[1], &cfg, NULL, &plan) != WASTE_OK)
        return fprintf(stderr, "%s\n", waste_error_detail(NULL)), 1;

    printf("%s: %u layers, %u of them with %u experts, %u for a token\n", plan.arch, plan.n_layers,
           plan.n_moe_layers, plan.n_experts, plan.top_k);
    printf("on disk      %10.1f MiB\n", mib(plan.disk_bytes));
    printf("trunk        %10.1f MiB\n", mib(plan.mem.trunk_bytes));
    printf("state        %10.1f MiB for %u positions\n", mib(plan.mem.state_bytes),
           plan.ctx_tokens);
    printf("scratch      %10.1f MiB\n", mib(plan.mem.scratch_bytes));
    printf("floor        %10.1f MiB: less, and the model is refused\n", mib(plan.mem.floor_bytes));
    printf("recommended  %10.1f MiB\n", mib(plan.mem.recommended_bytes));
    printf("a token reads at most %.1f MiB\n", mib(plan.mem.working_set_bytes));
    printf("this machine: %.1f MiB usable (%s): %s\n", mib(plan.usable_ram_bytes), plan.usable_why,
           plan.fits ? "it fits" : "it does not fit");
    return plan.fits ? 0 : 3;
}
