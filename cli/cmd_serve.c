/* cli/cmd_serve.c - start the server, which is Python: find it, the library and an interpreter, and
 * become that program. Its options are its own (serve/__main__.py); only MODEL is looked up here.
 */
#include "cli/cmd.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/load.h"
#include "cli/places.h"

enum { ARGS_MAX = 256 };

struct home { /* of the package serve/, and of the library it loads */
    char package[PATH_MAX], library[PATH_MAX];
};

static int find_home(struct cli *c, struct home *h)
{
    char main_file[PATH_MAX + 32];

    if (place_is_build()) {
        *h = (struct home){WASTE_SOURCE_ROOT, WASTE_BUILD_ROOT "/include/libwaste.so"};
    } else {
        place_installed(WASTE_DATADIR "/waste", h->package);
        place_installed(WASTE_LIBDIR "/libwaste.so.0", h->library);
    }
    snprintf(main_file, sizeof(main_file), "%s/serve/__main__.py", h->package);
    if (access(main_file, R_OK))
        return fail(c, EXIT_RUNTIME, "It comes with the program: install that again.", main_file,
                    "%s", strerror(errno));
    return 0;
}

/* The one whose packages the system manages, unless PYTHON names another. */
static const char *interpreter(void)
{
    const char *python = getenv("PYTHON");

    if (python && *python)
        return python;
    return access("/usr/bin/python3", X_OK) ? "python3" : "/usr/bin/python3";
}

static int set_home(struct cli *c, const struct home *h)
{
    const char *path = getenv("PYTHONPATH");
    char joined[2 * PATH_MAX];

    snprintf(joined, sizeof(joined), "%s%s%s", h->package, path && *path ? ":" : "",
             path && *path ? path : "");
    if (setenv("PYTHONPATH", joined, 1) || setenv("PYTHONSAFEPATH", "1", 1) ||
        setenv("WASTE_LIB", h->library, 0))
        return fail(c, EXIT_MEMORY, NULL, "serve", "%s", strerror(errno));
    return 0;
}

int cmd_serve(struct cli *c)
{
    return fail(c, EXIT_USAGE, "`waste serve --help` lists its options.", "serve",
                "the command comes first: waste serve MODEL [OPTIONS]");
}

int serve_exec(struct cli *c, int argc, char **argv)
{
    const char *python = interpreter();
    /* -B: what is installed stays as it was installed, also for root. */
    const char *args[ARGS_MAX] = {python, "-B", "-m", "serve"};
    char model[PATH_MAX];
    struct home home;
    int rc = 0, n = 4;

    if (argc > ARGS_MAX - 5)
        return fail(c, EXIT_USAGE, NULL, "serve", "%d arguments, at most %d", argc, ARGS_MAX - 5);
    for (int i = 0; i < argc; i++)
        args[n++] = argv[i];
    if (argc && argv[0][0] != '-') {
        rc = model_find(c, argv[0], model);
        args[4] = model;
    }
    if (!rc)
        rc = find_home(c, &home);
    if (!rc)
        rc = set_home(c, &home);
    if (rc)
        return rc;
    execvp(python, (char *const *)(void *)args);
    return fail(c, EXIT_RUNTIME, "The server needs Python 3 with aiohttp and prometheus_client.",
                python, "%s", strerror(errno));
}
