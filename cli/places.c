#include "cli/places.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* The prefix, if the program that runs is in its WASTE_BINDIR. */
static bool prefix_of_program(char prefix[PATH_MAX])
{
    static const char bin[] = "/" WASTE_BINDIR;
    ssize_t n = readlink("/proc/self/exe", prefix, PATH_MAX - 1);
    char *end;

    if (n <= 0)
        return false;
    prefix[n] = '\0';
    end = strrchr(prefix, '/');
    if (!end || end - prefix < (ptrdiff_t)strlen(bin))
        return false;
    *end = '\0';
    end -= strlen(bin);
    if (strcmp(end, bin) != 0)
        return false;
    *end = '\0';
    return true;
}

void place_installed(const char *below, char out[PATH_MAX])
{
    char prefix[PATH_MAX];
    int n;

    if (*below == '/') /* configured outside of the prefix */
        n = snprintf(out, PATH_MAX, "%s", below);
    else
        n = snprintf(out, PATH_MAX, "%s/%s", prefix_of_program(prefix) ? prefix : WASTE_PREFIX,
                     below);
    if (n >= PATH_MAX)
        out[0] = '\0';
}

void make_parents(const char *path)
{
    char dir[PATH_MAX];

    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
        mkdir(dir, 0700);
    }
}
