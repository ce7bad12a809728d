/* cli/places.h - where the files of a user belong: the XDG base directories. */
#ifndef CLI_PLACES_H
#define CLI_PLACES_H

#include <limits.h>
#include <stdbool.h>

enum place { PLACE_CACHE, PLACE_CONFIG, PLACE_STATE };

/* DIR/waste/NAME in out, nothing made; false, and "", if the user has no such directory. */
bool place_of(enum place place, const char *name, char out[PATH_MAX]);

/* The directories above a file, for the user alone, as far as they can be made. */
void make_parents(const char *path);

#endif
