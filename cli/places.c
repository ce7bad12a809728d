#include "cli/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *variable, *below_home;
} places[] = {
    [PLACE_CACHE] = {"XDG_CACHE_HOME", "/.cache"},
    [PLACE_CONFIG] = {"XDG_CONFIG_HOME", "/.config"},
    [PLACE_STATE] = {"XDG_STATE_HOME", "/.local/state"},
};

bool place_of(enum place place, const char *name, char out[PATH_MAX])
{
    const char *dir = getenv(places[place].variable), *sub = "";

    if (!dir || *dir != '/') { /* the standard ignores relative ones */
        dir = getenv("HOME");
        sub = places[place].below_home;
    }
    if (dir && *dir == '/' && snprintf(out, PATH_MAX, "%s%s/waste/%s", dir, sub, name) < PATH_MAX)
        return true;
    out[0] = '\0';
    return false;
}

void make_parents(const char *path)
{
    char dir[PATH_MAX];

    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
        mkdir(dir, 0700);
    }
}
