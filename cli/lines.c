#include "cli/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "cli/prompt.h"
#include "cli/term.h"

#ifdef HAVE_LIBEDIT
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <termios.h>
#include <wchar.h>
#else
typedef struct editline EditLine;
#endif

enum { HISTORY_LINES = 1000 }; /* that are offered */

struct lines {
    EditLine *el;                  /* NULL: lines are read plainly */
    char *history[HISTORY_LINES];  /* what was typed, the oldest first */
    unsigned n_history, looked_at; /* looked_at: an index, while lines are recalled */
    int history_fd;                /* -1: none */
    bool asks;                     /* a prompt is of use */
    bool typed;                    /* something, since the message began */
    const char *prompt;
    char *bytes; /* read and not yet given out */
    size_t at, len, room;
    bool ended;
};

/* ---- plain lines ---- */

static bool more_room(struct lines *l)
{
    char *more;

    if (l->at) {
        memmove(l->bytes, l->bytes + l->at, l->len - l->at);
        l->len -= l->at;
        l->at = 0;
    }
    if (l->room - l->len > 1)
        return true;
    more = realloc(l->bytes, 2 * l->room + 4096);
    if (!more)
        return false;
    l->bytes = more;
    l->room = 2 * l->room + 4096;
    return true;
}

/* A line, without its end; it stays in l->bytes until the next one is asked for. */
static enum lines_got plain_line(struct lines *l, const char **line, size_t *len)
{
    char *end;

    if (l->asks) {
        fputs(l->prompt, stderr);
        fflush(stderr);
    }
    for (;;) {
        ssize_t got;

        end = l->len > l->at ? memchr(l->bytes + l->at, '\n', l->len - l->at) : NULL;
        if (end || (l->ended && l->len > l->at))
            break;
        if (l->ended)
            return LINES_END;
        if (!more_room(l)) {
            errno = ENOMEM;
            return LINES_ERROR;
        }
        got = text_some(0, l->bytes + l->len, l->room - l->len);
        if (got < 0)
            return errno == EINTR ? LINES_INTERRUPT : LINES_ERROR;
        l->ended = got == 0;
        l->len += (size_t)got;
    }
    *line = l->bytes + l->at;
    *len = end ? (size_t)(end - *line) : l->len - l->at;
    l->at += *len + (end != NULL);
    return LINES_MESSAGE;
}

/* ---- edited lines ---- */

#ifdef HAVE_LIBEDIT

static char *prompt_of(EditLine *el)
{
    struct lines *l;

    el_get(el, EL_CLIENTDATA, &l);
    return (char *)(size_t)l->prompt; /* libedit's type is not const; it only prints it */
}

/* A character, waiting where an interrupt ends the wait. */
static int next_char(EditLine *el, wchar_t *out)
{
    mbstate_t state = {0};
    struct lines *l;
    char byte;

    el_get(el, EL_CLIENTDATA, &l);
    for (;;) {
        ssize_t got = text_some(0, &byte, 1);
        size_t n;

        if (got <= 0)
            return (int)got;
        l->typed = true;
        n = mbrtowc(out, &byte, 1, &state);
        if (n == 0)
            *out = L'\0';
        if (n != (size_t)-1 && n != (size_t)-2)
            return 1;
        if (n == (size_t)-1) { /* not UTF-8: begin again with the next byte */
            memset(&state, 0, sizeof(state));
            *out = 0xfffd;
            return 1;
        }
    }
}

/* Remember a line of len bytes, unless it is the one before once more. */
static void remember(struct lines *l, const char *line, size_t len)
{
    const char *last = l->n_history ? l->history[l->n_history - 1] : "";
    char *copy;

    while (len && strchr("\r\n", line[len - 1]))
        len--;
    if (!len || (strlen(last) == len && !memcmp(last, line, len)))
        return;
    copy = strndup(line, len);
    if (!copy)
        return;
    if (l->n_history == HISTORY_LINES) {
        free(l->history[0]);
        memmove(l->history, l->history + 1, --l->n_history * sizeof(*l->history));
    }
    l->history[l->n_history++] = copy;
}

static enum lines_got edited_line(struct lines *l, const char *prefill, const char **line,
                                  size_t *len)
{
    int n;

    el_resize(l->el);
    el_set(l->el, EL_PREP_TERM, 1); /* before there is a prompt to type at */
    if (prefill && *prefill)
        el_push(l->el, prefill);
    *line = el_gets(l->el, &n);
    if (!*line || n <= 0) {
        if (term_interrupted())
            tcflush(0, TCIFLUSH); /* typed ahead of it, too */
        fputs(term_interrupted() ? "^C\n" : "\n", stderr);
        return term_interrupted() ? LINES_INTERRUPT : LINES_END;
    }
    *len = (size_t)n;
    while (*len && ((*line)[*len - 1] == '\n' || (*line)[*len - 1] == '\r'))
        --*len;
    remember(l, *line, *len);
    if (l->history_fd >= 0 && *len && write(l->history_fd, *line, (size_t)n) != n) {
        close(l->history_fd);
        l->history_fd = -1;
    }
    return LINES_MESSAGE;
}

static void know_utf8(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* What libedit asks of a history. Its own would do; but in a program that is linked from static
 * libraries its history_init meets another function of this name. */
static int recall(void *of, HistEvent *ev, int op, ...)
{
    struct lines *l = of;
    unsigned at = l->looked_at;

    if (op == H_FIRST) /* the newest */
        at = l->n_history - 1;
    else if (op == H_LAST)
        at = 0;
    else if (op == H_NEXT)
        at--;
    else if (op == H_PREV)
        at++;
    else if (op != H_CURR)
        return -1;
    if (at >= l->n_history)
        return -1;
    l->looked_at = at;
    ev->num = (int)at;
    ev->str = l->history[at];
    return 0;
}

static void history_open(struct lines *l, const char *path, char why[256])
{
    struct stat st;
    char *line = NULL;
    size_t room = 0;
    ssize_t len;
    FILE *f;

    l->history_fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
    if (l->history_fd < 0 || fstat(l->history_fd, &st) || !S_ISREG(st.st_mode)) {
        snprintf(why, 256, "%s: %s", path, l->history_fd < 0 ? strerror(errno) : "not a file");
        if (l->history_fd >= 0)
            close(l->history_fd);
        l->history_fd = -1;
        return;
    }
    f = fopen(path, "re");
    while (f && (len = getline(&line, &room, f)) > 0)
        remember(l, line, (size_t)len);
    free(line);
    if (f)
        fclose(f);
}

static void edit_open(struct lines *l, const char *path, char why[256])
{
    const char *type = getenv("TERM");

    if (!isatty(0) || !isatty(2) || !type || !strcmp(type, "dumb"))
        return;
    know_utf8();
    term_restores();
    l->el = el_init("waste", stdin, stderr, stderr);
    if (!l->el)
        return;
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_PROMPT, prompt_of);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_SIGNAL, 0);
    /* A flush between the wait for a byte and its read would leave the read waiting. */
    el_set(l->el, EL_SETTY, "-d", "+noflsh", NULL);
    el_set(l->el, EL_GETCFN, next_char);
    el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->el, EL_HIST, recall, l);
    if (path)
        history_open(l, path, why);
    el_source(l->el, NULL);
}

static void edit_close(struct lines *l)
{
    if (l->el)
        el_end(l->el);
    while (l->n_history)
        free(l->history[--l->n_history]);
}

#else

static enum lines_got edited_line(struct lines *l, const char *prefill, const char **line,
                                  size_t *len)
{
    (void)prefill;
    return plain_line(l, line, len);
}

static void edit_open(struct lines *l, const char *path, char why[256])
{
    (void)l, (void)path, (void)why;
}

static void edit_close(struct lines *l)
{
    (void)l;
}

#endif

/* ---- messages ---- */

int lines_open(struct lines **out, const char *history, char why[256], struct err *e)
{
    struct lines *l = calloc(1, sizeof(*l));

    why[0] = '\0';
    if (!l)
        return err_set(e, ERR_NOMEM, "lines");
    l->history_fd = -1;
    l->asks = isatty(0);
    edit_open(l, history, why);
    *out = l;
    return 0;
}

void lines_close(struct lines *l)
{
    if (!l)
        return;
    edit_close(l);
    if (l->history_fd >= 0)
        close(l->history_fd);
    free(l->bytes);
    free(l);
}

bool lines_edits(const struct lines *l)
{
    return l->el != NULL;
}

static bool message_add(struct buf *m, const char *bytes, size_t n)
{
    buf_put(m, bytes, n);
    if (m->failed)
        errno = ENOMEM;
    return !m->failed;
}

static bool has_quotes(const char *line, size_t len)
{
    return len >= 3 && !memcmp(line, "\"\"\"", 3);
}

/* Take a line into the message; *quoted: inside of """. Returns whether more lines belong to it. */
static bool take_line(struct buf *m, const char *line, size_t len, bool *quoted, bool *ok)
{
    bool goes_on;

    if (!*quoted && !m->n && has_quotes(line, len)) {
        *quoted = true;
        line += 3;
        len -= 3;
        if (!len)
            return (*ok = message_add(m, "", 0));
    }
    if (*quoted && len >= 3 && has_quotes(line + len - 3, 3)) {
        *ok = message_add(m, line, len - 3);
        if (*ok && len == 3 && m->n && m->s[m->n - 1] == '\n')
            m->n--; /* """ on a line of its own */
        return false;
    }
    goes_on = *quoted || (len && line[len - 1] == '\\');
    *ok = message_add(m, line, goes_on && !*quoted ? len - 1 : len) &&
          (!goes_on || message_add(m, "\n", 1));
    return goes_on && *ok;
}

enum lines_got lines_read(struct lines *l, const char *prefill, char **text, size_t *len)
{
    struct buf m = {0};
    bool quoted = false, ok = true, more = true;
    enum lines_got got = LINES_MESSAGE;
    const char *line;
    size_t n;

    l->prompt = "> ";
    l->typed = prefill && *prefill;
    while (more && got == LINES_MESSAGE && ok) {
        got = l->el ? edited_line(l, prefill, &line, &n) : plain_line(l, &line, &n);
        if (got == LINES_MESSAGE)
            more = take_line(&m, line, n, &quoted, &ok);
        else if (got == LINES_INTERRUPT && (l->typed || m.s))
            got = LINES_CLEARED;
        l->prompt = ". ";
        prefill = NULL;
    }
    if (got == LINES_END && m.s) /* the end ends a message that wanted to go on, too */
        got = LINES_MESSAGE;
    if (!ok || (got == LINES_MESSAGE && !message_add(&m, "", 1)))
        got = LINES_ERROR;
    if (got != LINES_MESSAGE) {
        buf_release(&m);
        return got;
    }
    *text = m.s;
    *len = m.n - 1;
    return got;
}
