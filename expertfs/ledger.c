#include "expertfs/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/slurp.h"
#include "expertfs/out_dir.h"

enum { LEDGER_BYTES_MAX = 1 << 20 };

int ledger_read(char **out, int dirfd, const char *ledger, struct err *e)
{
    char *text;
    size_t n;

    if (slurp(&text, &n, dirfd, ledger, LEDGER_BYTES_MAX, e))
        return e->code;
    for (size_t i = 0; text && i < n; i++)
        if (!text[i])
            text[i] = '\n';
    *out = text;
    return 0;
}

bool ledger_lists(const char *text, const char *name)
{
    size_t n = strlen(name);

    while (text && *text) {
        size_t line = strcspn(text, "\r\n");

        if (line == n && !memcmp(text, name, n))
            return true;
        text += line;
        text += strspn(text, "\r\n");
    }
    return false;
}

/* The line, behind the end of one that was cut short. */
static size_t compose(char line[NAME_MAX + 3], int fd, const char *name)
{
    off_t end = lseek(fd, 0, SEEK_END);
    size_t n = 0, length = strnlen(name, NAME_MAX); /* it is a file's */
    char last;

    if (end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n')
        line[n++] = '\n';
    memcpy(line + n, name, length);
    n += length;
    line[n++] = '\n';
    return n;
}

int ledger_add(int dirfd, const char *ledger, const char *name, struct err *e)
{
    int fd = openat(dirfd, ledger, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644), bad = 0;
    const struct out_dir dir = {.path = ledger, .fd = dirfd};
    char line[NAME_MAX + 3];
    ssize_t done;
    size_t n;

    if (fd < 0)
        return err_sys(e, errno, "%s", ledger);
    n = compose(line, fd, name);
    done = write(fd, line, n);
    if (done != (ssize_t)n)
        bad = done < 0 ? errno : ENOSPC;
    if (!bad && fsync(fd))
        bad = errno;
    if (close(fd) && !bad)
        bad = errno;
    return bad ? err_sys(e, bad, "%s", ledger) : out_sync(&dir, e);
}
