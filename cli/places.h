/* cli/places.h - where the files of a user belong, the XDG base directories, and where those are
 * that were installed with the program. */
#ifndef CLI_PLACES_H
#define CLI_PLACES_H

#include <limits.h>
#include <stdbool.h>

enum place { PLACE_CACHE, PLACE_CONFIG, PLACE_STATE };

/* DIR/waste/NAME in out, nothing made; false, and "", if the user has no such directory. */
bool place_of(enum place place, const char *name, char out[PATH_MAX]);

/* What was installed at PREFIX/below. A program in PREFIX/bin takes PREFIX from its own path, so
 * that an installed tree may be moved, or be unpacked anywhere; from elsewhere it is the one
 * configured. "" in out if it is too long for a path. */
void place_installed(const char *below, char out[PATH_MAX]);

/* Whether the program that runs is the one in the build directory: it uses what it was built with.
 */
bool place_is_build(void);

/* The directories above a file, for the user alone, as far as they can be made. */
void make_parents(const char *path);

/* A directory as it is typed, without the slashes that shells put behind it: what layers say begins
 * with "NAME: ". */
const char *dir_name(const char *typed, char out[PATH_MAX]);

#endif
