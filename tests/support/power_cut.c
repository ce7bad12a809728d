/* tests/support/power_cut.c - preload it: what a file system is asked, in which order, and an end
 * at any point of it.
 *
 * ORDER_LOG=FILE: each call that decides what a loss of power leaves is a line there before it is
 * made: "mkdir PATH", "sync PATH", "rename FROM TO", "unlink PATH".
 * ORDER_KILL=N: the process is killed before the Nth of them, which is no line then: whoever goes
 * on may write to the same FILE. ORDER_STOP=flock: it is stopped (SIGSTOP) before its first flock.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static void say(const char *line)
{
    static atomic_int calls;
    const char *log = getenv("ORDER_LOG"), *kill_at = getenv("ORDER_KILL");
    int call = atomic_fetch_add(&calls, 1) + 1;

    if (kill_at && atoi(kill_at) == call)
        raise(SIGKILL);
    if (log) {
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

        if (fd < 0 || write(fd, line, strlen(line)) != (ssize_t)strlen(line))
            abort();
        close(fd);
    }
}

/* The path of `name` below the directory that is open as fd; "": fd itself. */
static const char *path_of(char out[PATH_MAX], int fd, const char *name)
{
    char link[64];
    ssize_t n = 0;

    if (fd == AT_FDCWD || name[0] == '/') {
        snprintf(out, PATH_MAX, "%s", name);
        return out;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, out, PATH_MAX - 1);
    if (n < 0)
        abort();
    snprintf(out + n, PATH_MAX - (size_t)n, "%s%s", *name ? "/" : "", name);
    return out;
}

static void tell(const char *what, int fd, const char *name, int to_fd, const char *to)
{
    char a[PATH_MAX], b[PATH_MAX], line[2 * PATH_MAX + 16];

    snprintf(line, sizeof(line), "%s %s%s%s\n", what, path_of(a, fd, name), to ? " " : "",
             to ? path_of(b, to_fd, to) : "");
    say(line);
}

EXPORT int mkdir(const char *path, mode_t mode)
{
    int (*real)(const char *, mode_t) = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "mkdir");
    tell("mkdir", AT_FDCWD, path, 0, NULL);
    return real(path, mode);
}

EXPORT int fsync(int fd)
{
    int (*real)(int) = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    tell("sync", fd, "", 0, NULL);
    return real(fd);
}

EXPORT int renameat(int from, const char *a, int to, const char *b)
{
    int (*real)(int, const char *, int, const char *) = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "renameat");
    tell("rename", from, a, to, b);
    return real(from, a, to, b);
}

EXPORT int unlinkat(int fd, const char *name, int flags)
{
    int (*real)(int, const char *, int) = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "unlinkat");
    if (!faccessat(fd, name, F_OK, AT_SYMLINK_NOFOLLOW))
        tell("unlink", fd, name, 0, NULL);
    return real(fd, name, flags);
}

EXPORT int flock(int fd, int operation)
{
    static atomic_flag stopped = ATOMIC_FLAG_INIT;
    const char *stop = getenv("ORDER_STOP");
    int (*real)(int, int) = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "flock");
    if (stop && !strcmp(stop, "flock") && !atomic_flag_test_and_set(&stopped))
        raise(SIGSTOP);
    return real(fd, operation);
}
