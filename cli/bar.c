#include "cli/bar.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/thread.h"
#include "cli/units.h"

#define DRAW_NS  100000000      /* between two drawings of a bar */
#define LINES_NS 10000000000ull /* between two lines */

uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Append, and stay inside; returns the new length. */
__attribute__((format(printf, 4, 5))) static size_t append(char *text, size_t size, size_t at,
                                                           const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text + at, size - at, fmt, ap);
    va_end(ap);
    return n < 0 ? at : at + (size_t)n < size ? at + (size_t)n : size - 1;
}

static size_t append_counts(char *text, size_t size, const struct bar_state *s)
{
    static const char *const names[] = {
        [BAR_TOKENS] = "tokens", [BAR_RECORDS] = "records", [BAR_BLOCKS] = "blocks"};
    char done[UNITS_TEXT], total[UNITS_TEXT];

    if (s->unit == BAR_BYTES && s->total)
        return append(text, size, 0, "%s of %s", size_text(done, s->done),
                      size_text(total, s->total));
    if (s->unit == BAR_BYTES)
        return append(text, size, 0, "%s", size_text(done, s->done));
    if (s->total)
        return append(text, size, 0, "%llu of %llu %s", (unsigned long long)s->done,
                      (unsigned long long)s->total, names[s->unit]);
    return append(text, size, 0, "%llu %s", (unsigned long long)s->done, names[s->unit]);
}

static size_t append_rate(char *text, size_t size, size_t at, const struct bar_state *s)
{
    double rate = s->seconds > 0 ? (double)s->done / s->seconds : 0;
    uint64_t bytes = s->unit == BAR_BYTES ? s->done : s->bytes;
    char amount[UNITS_TEXT];

    if (!s->done || s->seconds <= 0)
        return at;
    if (s->unit == BAR_TOKENS)
        at = append(text, size, at, ", %.*f tok/s", rate < 10 ? 2 : 0, rate);
    if (bytes)
        at = append(text, size, at, ", %s/s",
                    size_text_decimal(amount, (uint64_t)((double)bytes / s->seconds)));
    if (s->unit == BAR_TOKENS && s->bytes)
        at = append(text, size, at, ", %s read", size_text(amount, s->bytes));
    if (s->total > s->done)
        at = append(text, size, at, ", %s left",
                    time_text(amount, (double)(s->total - s->done) / rate));
    return at;
}

/* "label [#####.....]  47 %  counts, rate"; the bar takes what the rest leaves, up to 24. */
const char *bar_line(char *text, size_t text_bytes, const struct bar_state *s, unsigned columns)
{
    char right[160], bar[32];
    size_t n = append_counts(right, sizeof(right), s);
    double part = s->total ? fmin((double)s->done / (double)s->total, 1) : 0;
    size_t room, used, width = 24;

    append_rate(right, sizeof(right), n, s);
    used = strlen(s->label) + strlen(right) + sizeof(" [] 100 %  ");
    room = columns > used ? columns - used : 0;
    width = room < width ? room : width;
    if (!columns || !s->total || width < 5) {
        snprintf(text, text_bytes, "%s %s", s->label, right);
        if (columns && strlen(text) >= columns && columns <= text_bytes)
            text[columns - 1] = '\0';
        return text;
    }
    memset(bar, '.', width);
    memset(bar, '#', (size_t)(part * (double)width));
    snprintf(text, text_bytes, "%s [%.*s] %3d %%  %s", s->label, (int)width, bar, (int)(part * 100),
             right);
    return text;
}

void bar_open(struct bar *b, struct term *term, bool quiet, bool bar_only)
{
    *b = (struct bar){.term = term, .mode = BAR_LINES};
    if (quiet || (bar_only && !term->err_tty))
        b->mode = BAR_NONE;
    else if (term->err_tty)
        b->mode = BAR_DRAWN;
}

void bar_begin(struct bar *b, const char *label, enum bar_unit unit)
{
    bar_end(b);
    b->label = label;
    b->unit = unit;
    b->begun_ns = b->shown_ns = clock_ns();
}

void bar_update(struct bar *b, uint64_t done, uint64_t total, uint64_t bytes)
{
    struct bar_state s = {b->label, b->unit, done, total, bytes, 0};
    uint64_t now = clock_ns();
    char text[256];

    if (b->mode == BAR_NONE || !b->label ||
        now - b->shown_ns < (b->mode == BAR_DRAWN ? DRAW_NS : LINES_NS))
        return;
    b->shown_ns = now;
    s.seconds = (double)(now - b->begun_ns) * 1e-9;
    if (b->mode == BAR_DRAWN) {
        fprintf(stderr, "\r%s\033[K", bar_line(text, sizeof(text), &s, term_columns()));
        b->term->line_drawn = true;
    } else {
        fprintf(stderr, "%s\n", bar_line(text, sizeof(text), &s, 0));
    }
    fflush(stderr);
}

void bar_end(struct bar *b)
{
    term_clear_line(b->term);
    fflush(stderr);
    b->label = NULL;
}

/* Sleep until the next look; false once the work has ended. */
static bool watch_on(struct bar *b)
{
    struct timespec until;
    bool ends;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += DRAW_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&b->lock);
    if (!b->watch_ends)
        pthread_cond_timedwait(&b->ended, &b->lock, &until);
    ends = b->watch_ends;
    pthread_mutex_unlock(&b->lock);
    return !ends;
}

static void *watch(void *arg)
{
    struct bar *b = arg;
    const struct progress *p = b->watched;

    while (watch_on(b))
        bar_update(b, atomic_load(&p->done), atomic_load(&p->total), atomic_load(&p->bytes));
    return NULL;
}

void bar_watch(struct bar *b, const char *label, enum bar_unit unit, const struct progress *watched)
{
    bar_begin(b, label, unit);
    b->watched = watched;
    b->watch_ends = false;
    if (b->mode == BAR_NONE)
        return;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->ended, NULL);
    b->watching = !thread_start(&b->watcher, watch, b);
}

void bar_unwatch(struct bar *b)
{
    if (b->watching) {
        pthread_mutex_lock(&b->lock);
        b->watch_ends = true;
        pthread_cond_signal(&b->ended);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->watcher, NULL);
    }
    if (b->mode != BAR_NONE) {
        pthread_cond_destroy(&b->ended);
        pthread_mutex_destroy(&b->lock);
    }
    b->watching = false;
    bar_end(b);
}
