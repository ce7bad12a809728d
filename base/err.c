#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    e->code = code;
    return code;
}

int err_sys(struct err *e, int errnum, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(e->text))
        snprintf(e->text + n, sizeof(e->text) - (size_t)n, ": %s", strerror(errnum));
    e->code = errnum == ENOMEM ? ERR_NOMEM : ERR_IO;
    return e->code;
}

bool no_such_entry(int dirfd, const char *name)
{
    struct stat st;

    return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
}

int err_open(struct err *e, int errnum, int dirfd, const char *name)
{
    if (errnum == ENOENT && !no_such_entry(dirfd, name))
        return err_set(e, ERR_IO, "%s: a link to what is not there (is its drive mounted?)", name);
    return err_sys(e, errnum, "%s", name);
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    char text[sizeof(e->text)];
    va_list ap;
    size_t n, room = sizeof(text) - 1;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    n = strlen(text);
    strncat(text, ": ", room - n);
    n = strlen(text);
    strncat(text, e->text, room - n);
    memcpy(e->text, text, sizeof(text));
    return e->code;
}

const char *err_name(int code)
{
    switch (code) {
    case 0:
        return "ok";
    case ERR_ARG:
        return "argument";
    case ERR_IO:
        return "io";
    case ERR_FORMAT:
        return "format";
    case ERR_CORRUPT:
        return "corrupt";
    case ERR_LIMIT:
        return "limit";
    case ERR_UNSUPPORTED:
        return "unsupported";
    case ERR_NOMEM:
        return "memory";
    case ERR_BUDGET:
        return "budget";
    case ERR_BUSY:
        return "busy";
    case ERR_CANCELLED:
        return "cancelled";
    }
    return "unknown";
}
