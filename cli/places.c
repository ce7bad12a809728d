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

/* Of the program that runs; "" if the system does not say. */
static void own_path(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

    path[n < 0 ? 0 : n] = '\0';
}

bool place_is_build(void)
{
    size_t len = strlen(WASTE_BUILD_ROOT);
    char self[PATH_MAX];

    own_path(self);
    return !strncmp(self, WASTE_BUILD_ROOT, len) && self[len] == '/';
}

/* The prefix, if the program that runs is in its WASTE_BINDIR. */
static bool prefix_of_program(char prefix[PATH_MAX])
{
    static const char bin[] = "/" WASTE_BINDIR;
    char *end;

    own_path(prefix);
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

const char *dir_name(const char *typed, char out[PATH_MAX])
{
    size_t n = strlen(typed);

    while (n > 1 && typed[n - 1] == '/')
        n--;
    if (n >= PATH_MAX)
        return typed; /* the system will say so */
    memcpy(out, typed, n);
    out[n] = '\0';
    return out;
}
