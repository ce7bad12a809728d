/* cli/against.h - `waste verify --against`: a container beside what it was made from. */
#ifndef CLI_AGAINST_H
#define CLI_AGAINST_H

#include "cli/say.h"

struct container;

/* Compare and say how far off it is. Returns an exit code: EXIT_DAMAGED when a matrix is further
 * off than its format explains, or a tensor of the trunk is not what its recipe gives. */
int against_source(struct cli *c, const struct container *container);

#endif
