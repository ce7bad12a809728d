#include <string.h>

#include "model/json_text.h"
#include "model/rules.h"

/* A chain of byte classes, written "0-7" or "89abAB", separated by blanks. */
static void chain(struct nfa *a, uint32_t from, uint32_t to, const char *const *set, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint32_t next = i + 1 == n ? to : nfa_state(a);

        for (const char *p = set[i]; *p; p += p[1] == '-' ? 3 : 1)
            nfa_edge(a, from, next, (uint8_t)p[0], (uint8_t)(p[1] == '-' ? p[2] : p[0]));
        from = next;
    }
}

#define HEX "0-9a-fA-F"
#define CHAIN(a, from, to, ...)                                                                    \
    chain(a, from, to, (const char *const[]){__VA_ARGS__},                                         \
          sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* \u0001 ... \uffff; surrogates in pairs only. */
static void escapes_u(struct nfa *a, uint32_t from, uint32_t body)
{
    CHAIN(a, from, body, "1-9a-cA-Ce-fE-F", HEX, HEX, HEX);
    CHAIN(a, from, body, "0", "1-9a-fA-F", HEX, HEX);
    CHAIN(a, from, body, "0", "0", "1-9a-fA-F", HEX);
    CHAIN(a, from, body, "0", "0", "0", "1-9a-fA-F");
    CHAIN(a, from, body, "dD", "0-7", HEX, HEX);
    CHAIN(a, from, body, "dD", "89abAB", HEX, HEX, "\\", "u", "dD", "c-fC-F", HEX, HEX);
}

struct dfa *json_text_string(enum spelling spelling, struct err *e)
{
    struct nfa a = {0};
    uint32_t start = nfa_state(&a), body = nfa_state(&a), end = nfa_state(&a);
    uint32_t escape = nfa_state(&a), u = nfa_state(&a);
    uint64_t work = 1 << 20;
    struct dfa *d = NULL;

    nfa_edge(&a, start, body, '"', '"');
    nfa_edge(&a, body, end, '"', '"');
    nfa_chars(&a, body, body, 0x20, '"' - 1);
    nfa_chars(&a, body, body, '"' + 1, '&' - 1);
    nfa_chars(&a, body, body, '&' + 1, '\\' - 1);
    nfa_chars(&a, body, body, '\\' + 1, 0x10ffff);
    if (spelling != NO_ESCAPES) {
        nfa_edge(&a, body, body, '&', '&');
        nfa_edge(&a, body, escape, '\\', '\\');
        CHAIN(&a, escape, body, "\"\\bfnrt");
    }
    if (spelling == ANY_SPELLING) {
        CHAIN(&a, escape, body, "/");
        CHAIN(&a, escape, u, "u");
        escapes_u(&a, u, body);
    }
    if (dfa_of_nfa(&d, &a, start, end, 256, &work, e))
        d = NULL;
    nfa_release(&a);
    return d;
}

struct dfa *json_text_counted(uint32_t min, uint32_t max, struct err *e)
{
    uint32_t most = max == REPEAT_ANY ? min : max;
    struct dfa *one = json_text_string(ANY_SPELLING, e), *d;
    unsigned n;

    if (!one)
        return NULL;
    n = one->n;
    d = (uint64_t)n * (most + 1) > DFA_STATES_MAX ? NULL : dfa_new(n * (most + 1), one->n_classes);
    if (!d) {
        dfa_close(one);
        return NULL;
    }
    memcpy(d->class_of, one->class_of, sizeof(d->class_of));
    for (uint32_t k = 0; k <= most; k++)
        for (unsigned s = 0; s < n; s++) {
            d->final[k * n + s] = one->final[s];
            for (unsigned c = 0; c < 256; c++) {
                uint16_t to = dfa_next(one, s, (uint8_t)c);
                uint32_t then = k + (s == STRING_BODY && c != '"');

                if (to == DFA_DEAD || (s == STRING_BODY && c == '"' && k < min))
                    continue;
                if (then > most && max != REPEAT_ANY)
                    continue;
                then = then > most ? most : then;
                d->next[(size_t)(k * n + s) * d->n_classes + d->class_of[c]] =
                    (uint16_t)(then * n + to);
            }
        }
    dfa_close(one);
    if (!dfa_trim(d, e))
        return d;
    dfa_close(d);
    return NULL;
}
