#include "cli/term.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#include "cli/safe.h"

static atomic_int interrupts;
static waste_ctx *_Atomic cancelled_ctx;
static atomic_bool *_Atomic cancelled_flag;

static struct termios modes; /* of standard input, to be restored */
static atomic_bool restores;

/* In signal handlers, too. From the background it would stop the process, were it not blocked. */
static void restore_modes(void)
{
    if (atomic_load(&restores))
        tcsetattr(0, TCSANOW, &modes);
}

static void on_interrupt(int signal)
{
    int saved = errno;
    waste_ctx *ctx = atomic_load(&cancelled_ctx);
    atomic_bool *flag = atomic_load(&cancelled_flag);

    if (atomic_fetch_add(&interrupts, 1)) {
        restore_modes();
        _exit(128 + signal);
    }
    if (ctx)
        waste_cancel(ctx);
    if (flag)
        atomic_store(flag, true);
    errno = saved;
}

static void on_end(int number)
{
    restore_modes();
    signal(number, SIG_DFL);
    raise(number); /* once the handler has returned */
}

void term_restores(void)
{
    static const int ends[] = {SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction old, action = {.sa_handler = on_end};

    if (tcgetattr(0, &modes))
        return;
    atomic_store(&restores, true);
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTTOU);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (!sigaction(ends[i], NULL, &old) && old.sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    }
}

static void catch_interrupt(void)
{
    struct sigaction old, action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTTOU);
    if (!sigaction(SIGINT, NULL, &old) && old.sa_handler == SIG_IGN)
        return; /* started in the background by a shell: stay deaf, as it asked */
    sigaction(SIGINT, &action, NULL);
}

/* A closed descriptor 1 would be the next file opened, and the answer would go into it. These are
 * open the wrong way round, so that using them fails. */
static void occupy_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            int got = open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);

            if (got >= 0 && got != fd)
                close(got);
        }
    }
}

/* A container of 128 banks takes two descriptors for each, and the usual soft limit is 1024. */
static void allow_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= files.rlim_max)
        return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

void term_open(struct term *t)
{
    occupy_descriptors();
    allow_files();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    catch_interrupt();
    *t = (struct term){.out_tty = isatty(1), .err_tty = isatty(2)};
    term_color(t, -1);
}

void term_color(struct term *t, int color)
{
    const char *no_color = getenv("NO_COLOR"), *type = getenv("TERM");

    if (color >= 0)
        t->color = color;
    else
        t->color = t->err_tty && !(no_color && *no_color) && !(type && !strcmp(type, "dumb"));
}

unsigned term_columns(void)
{
    struct winsize size;

    if (!ioctl(2, TIOCGWINSZ, &size) && size.ws_col >= 20)
        return size.ws_col;
    return 80;
}

static bool print_failed(struct term *t)
{
    if (!t->out_errno)
        t->out_errno = errno ? errno : EIO;
    return false;
}

bool term_print(struct term *t, const char *bytes, size_t n)
{
    if (t->out_errno)
        return false;
    errno = 0;
    if (fwrite(bytes, 1, n, stdout) != n || fflush(stdout))
        return print_failed(t);
    return true;
}

bool term_print_text(struct term *t, const char *bytes, size_t n)
{
    char safe[1024], *at = safe;
    size_t used;

    if (!t->out_tty)
        return term_print(t, bytes, n);
    for (size_t i = 0; i < n;) {
        i += safe_next(at, &used, bytes + i, n - i, "\n\t");
        at += used;
        if (at + SAFE_UNIT <= safe + sizeof(safe) && i < n)
            continue;
        if (!term_print(t, safe, (size_t)(at - safe)))
            return false;
        at = safe;
    }
    return term_flush(t);
}

bool term_flush(struct term *t)
{
    return term_print(t, "", 0);
}

const char *term_style(const struct term *t, enum style style)
{
    static const char *const escapes[STYLES] = {
        [STYLE_PLAIN] = "\033[0m",
        [STYLE_DIM] = "\033[2m",
        [STYLE_BOLD] = "\033[1m",
        [STYLE_RED] = "\033[1;31m",
    };

    return t->color ? escapes[style] : "";
}

void term_clear_line(struct term *t)
{
    if (t->line_drawn)
        fputs("\r\033[K", stderr);
    t->line_drawn = false;
}

void term_cancels(waste_ctx *ctx, atomic_bool *cancel)
{
    atomic_store(&cancelled_ctx, ctx);
    atomic_store(&cancelled_flag, cancel);
    if (!term_interrupted())
        return;
    if (ctx) /* the interrupt came before this call */
        waste_cancel(ctx);
    if (cancel)
        atomic_store(cancel, true);
}

bool term_interrupted(void)
{
    return atomic_load(&interrupts) > 0;
}

void term_go_on(void)
{
    atomic_store(&interrupts, 0);
}

/* SIGINT is let in by ppoll alone, so none slips in between the look at the flag and the wait. */
bool term_wait_input(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    sigset_t interrupt, before;
    int ready = 0;

    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    while (!ready && !term_interrupted()) {
        ready = ppoll(&p, 1, NULL, &before);
        if (ready < 0 && errno == EINTR)
            ready = 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !term_interrupted(); /* also when both came at once */
}
