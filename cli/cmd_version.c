/* cli/cmd_version.c - which version this is, and what is built into it. */
#include "cli/cmd.h"

#include <stdio.h>

int cmd_version(struct cli *c)
{
    if (c->opts.json)
        return say_json(c, json_pack("{s:s, s:i, s:i, s:s}", "version", waste_version(), "number",
                                     waste_version_number(), "api", WASTE_API_VERSION, "build",
                                     waste_build_info()));
    printf("%s\n", waste_build_info());
    return term_flush(&c->term) ? 0 : fail_output(c);
}
