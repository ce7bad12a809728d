#include "cli/answer.h"

#include <stdlib.h>
#include <string.h>

int answer_open(struct answer *a, const char *const *stops, unsigned n, bool keep, struct err *e)
{
    waste_text *text = calloc(n ? n : 1, sizeof(*text));
    waste_status st;

    *a = (struct answer){.matched = -1, .keep = keep};
    if (!text)
        return err_set(e, ERR_NOMEM, "%u stop strings", n);
    for (unsigned i = 0; i < n; i++)
        text[i] = (waste_text){stops[i], strlen(stops[i])};
    st = waste_stops_open(text, n, &a->stops);
    free(text);
    if (st == WASTE_OK)
        return 0;
    return err_set(e, st == WASTE_E_ARG ? ERR_ARG : ERR_NOMEM, "%s", waste_error_detail(NULL));
}

void answer_close(struct answer *a)
{
    waste_stops_close(a->stops);
    free(a->bytes);
    free(a->text);
    buf_release(&a->whole);
    *a = (struct answer){0};
}

/* Room for a token of len bytes after whatever the automaton holds. */
static bool reserve(struct answer *a, size_t len)
{
    size_t bytes = waste_stops_room(a->stops, len) + 1;
    char *p;

    if (a->text && len <= a->room)
        return true;
    p = realloc(a->bytes, bytes);
    if (!p)
        return false;
    a->bytes = p;
    p = realloc(a->text, 3 * (bytes + 3));
    if (!p)
        return false;
    a->text = p;
    a->room = len;
    return true;
}

int answer_feed(struct answer *a, const char *bytes, size_t len, bool last, struct err *e)
{
    size_t n;

    a->len = 0;
    if (!reserve(a, len))
        return err_set(e, ERR_NOMEM, "a token of %zu bytes", len);
    n = waste_stops_feed(a->stops, bytes, len, last, a->bytes, &a->matched);
    a->len = waste_utf8_feed(&a->utf8, a->bytes, n, last || a->matched >= 0, a->text);
    if (a->keep)
        buf_put(&a->whole, a->text, a->len);
    return a->whole.failed ? err_set(e, ERR_NOMEM, "an answer of %zu bytes", a->whole.n) : 0;
}
