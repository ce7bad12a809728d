#include "cli/term.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static atomic_int interrupts;
static waste_ctx *_Atomic cancelled_ctx;
static atomic_bool *_Atomic cancelled_flag;

static void on_interrupt(int signal)
{
    int saved = errno;
    waste_ctx *ctx = atomic_load(&cancelled_ctx);
    atomic_bool *flag = atomic_load(&cancelled_flag);

    if (atomic_fetch_add(&interrupts, 1))
        _exit(128 + signal);
    if (ctx)
        waste_cancel(ctx);
    if (flag)
        atomic_store(flag, true);
    errno = saved;
}

static void catch_interrupt(void)
{
    struct sigaction old, action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
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

void term_open(struct term *t)
{
    occupy_descriptors();
    signal(SIGPIPE, SIG_IGN);
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
