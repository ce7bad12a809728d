/* cli/config.h - options that a person always wants: a file of them.
 *
 *     # everywhere
 *     budget = 46G
 *     temp = 0.7
 *
 *     [model k3]
 *     think = high
 *     system = "Answer briefly.\nIn French."
 *
 * A line is an option by its name and its value; "n" is -n; flags are yes or no. A section is for
 * one model: its name, or its path as it is given. In quotes, \n \t \" and \\ are what they are in
 * C. # begins a comment line. What a command does not understand does not concern it.
 */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "cli/opts.h"

struct config {
    char *text; /* the file, cut into strings that options borrow */
    const char *path;
    struct config_line {
        unsigned line;
        const char *model; /* NULL: before all sections */
        const char *name, *value;
    } * lines;
    unsigned n;
};

/* Read a file, and check all of it, whatever is used. path is borrowed. ERR_IO, ERR_ARG: named with
 * its line. */
int config_read(struct config *c, const char *path, struct err *e);
void config_release(struct config *c); /* fine on a zeroed one */

/* What is for everything, then what is for this model (NULL: none), into o. command: one bit. */
int config_apply(const struct config *c, struct opts *o, const char *model, unsigned command,
                 struct err *e);

#endif
