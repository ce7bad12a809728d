#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/json_text.h"
#include "model/rules.h"

enum {
    DIGITS = 15, /* any two decimals of so many digits are different doubles */
    DIGITS_INTEGER = 18,
    DECIMALS = 4, /* behind the point, of numbers in a range; more if a bound has more */
    MULTIPLE_MAX = 8192,
    STATES_MAX = 1 << 14,
};

struct decimal { /* mantissa / 10^places */
    int64_t mantissa;
    unsigned places;
    int beyond; /* 1, -1: above, below everything we write */
};

static int64_t pow10_of(unsigned n)
{
    int64_t p = 1;

    while (n--)
        p *= 10;
    return p;
}

static int real_of(struct decimal *out, double x, const char *key, struct err *e)
{
    char text[40], *point, *exponent;
    int shift;

    snprintf(text, sizeof(text), "%.14e", x);
    if (strtod(text, NULL) != x)
        return err_set(e, ERR_UNSUPPORTED, "%s = %.17g has more than %d digits", key, x, DIGITS);
    exponent = strchr(text, 'e');
    shift = atoi(exponent + 1);
    *exponent = '\0';
    point = strchr(text, '.');
    memmove(point, point + 1, strlen(point));
    out->mantissa = strtoll(text, NULL, 10);
    for (shift -= DIGITS - 1; shift < 0 && out->mantissa % 10 == 0; shift++)
        out->mantissa /= 10;
    if (out->mantissa == 0)
        shift = 0;
    if (shift > 0) { /* 10^15 and more */
        out->beyond = x > 0 ? 1 : -1;
        return 0;
    }
    if (-shift > DIGITS - 1)
        return err_set(e, ERR_UNSUPPORTED, "%s = %.17g is nearer to 0 than 1e-%d", key, x,
                       DIGITS - 1);
    out->places = (unsigned)-shift;
    return 0;
}

static int decimal_of(struct decimal *out, const json_t *x, const char *key, bool integer,
                      struct err *e)
{
    int64_t most = pow10_of(integer ? DIGITS_INTEGER : DIGITS) - 1;

    *out = (struct decimal){0};
    if (!json_is_number(x))
        return err_set(e, ERR_FORMAT, "%s must be a number", key);
    if (json_is_real(x))
        return real_of(out, json_real_value(x), key, e);
    out->mantissa = json_integer_value(x);
    out->beyond = out->mantissa > most ? 1 : out->mantissa < -most ? -1 : 0;
    return 0;
}

/* x * 10^places as an integer, rounded down; *exact: nothing was lost. */
static int64_t scaled(const struct decimal *x, unsigned places, int64_t most, bool *exact)
{
    int64_t v = x->mantissa, q;

    *exact = true;
    if (x->beyond)
        return x->beyond > 0 ? most + 1 : -most - 1;
    if (x->places <= places) {
        int64_t p = pow10_of(places - x->places);

        if (v > most / p)
            return most + 1;
        if (v < -(most / p))
            return -most - 1;
        return v * p;
    }
    q = v / pow10_of(x->places - places);
    *exact = v % pow10_of(x->places - places) == 0;
    return !*exact && v < 0 ? q - 1 : q;
}

/* Digit strings of one length. n digits, most significant first; point before the last `places`. */
struct digits {
    struct rules *r;
    uint8_t lo[20], hi[20];
    unsigned n, places;
};

static uint32_t digit(const struct digits *d, unsigned at, unsigned lo, unsigned hi)
{
    uint32_t x = expr_chars(d->r, &(struct char_range){'0' + lo, '0' + hi}, 1);

    return d->places && d->n - at == d->places ? EXPR_SEQ(d->r, expr_text(d->r, "."), x) : x;
}

/* Digits from `at` on. low, high: all before are those of the bound, which still binds. */
static uint32_t digits_from(const struct digits *d, unsigned at, bool low, bool high)
{
    uint32_t kid[3], n = 0;
    unsigned lo = low ? d->lo[at] : 0, hi = high ? d->hi[at] : 9;

    if (at == d->n)
        return expr_text(d->r, "");
    if (lo > hi)
        return expr_never(d->r);
    if (low && high && lo == hi)
        return EXPR_SEQ(d->r, digit(d, at, lo, lo), digits_from(d, at + 1, true, true));
    if (low) {
        kid[n++] = EXPR_SEQ(d->r, digit(d, at, lo, lo), digits_from(d, at + 1, true, false));
        lo++;
    }
    if (high) {
        kid[n++] = EXPR_SEQ(d->r, digit(d, at, hi, hi), digits_from(d, at + 1, false, true));
        hi--;
    }
    if (lo <= hi && hi <= 9)
        kid[n++] = EXPR_SEQ(d->r, digit(d, at, lo, hi), digits_from(d, at + 1, false, false));
    return expr_alt(d->r, kid, n);
}

static void digits_set(uint8_t *out, unsigned n, int64_t v)
{
    for (; n-- > 0; v /= 10)
        out[n] = (uint8_t)(v % 10);
}

/* Texts of lo...hi, 0 <= lo <= hi, with `places` behind the point. */
static uint32_t positive(struct rules *r, int64_t lo, int64_t hi, unsigned places)
{
    uint32_t kid[20], k = 0;

    for (unsigned n = places + 1; n < 20; n++) {
        int64_t least = n == places + 1 ? 0 : pow10_of(n - 1);
        int64_t most = n > 18 ? INT64_MAX : pow10_of(n) - 1;
        int64_t a = lo > least ? lo : least, b = hi < most ? hi : most;
        struct digits d = {.r = r, .n = n, .places = places};

        if (a > b)
            continue;
        digits_set(d.lo, n, a);
        digits_set(d.hi, n, b);
        kid[k++] = digits_from(&d, 0, true, true);
    }
    return expr_alt(r, kid, k);
}

struct bounds {
    struct decimal lo, hi;
    bool has_lo, has_hi, above, below; /* above: not lo itself */
};

/* Numbers with exactly `places` digits behind the point. */
static uint32_t with_places(struct rules *r, const struct bounds *b, unsigned places, int64_t most)
{
    int64_t lo = -most, hi = most;
    uint32_t kid[2], n = 0;
    bool exact;

    if (b->has_lo) {
        int64_t v = scaled(&b->lo, places, most, &exact);

        lo = v + (!exact || b->above);
        lo = lo < -most ? -most : lo;
    }
    if (b->has_hi) {
        int64_t v = scaled(&b->hi, places, most, &exact);

        hi = v - (exact && b->below);
        hi = hi > most ? most : hi;
    }
    if (lo > hi)
        return expr_never(r);
    if (lo < 0)
        kid[n++] = EXPR_SEQ(r, expr_text(r, "-"), positive(r, hi < 0 ? -hi : 1, -lo, places));
    if (hi >= 0)
        kid[n++] = positive(r, lo > 0 ? lo : 0, hi, places);
    return expr_alt(r, kid, n);
}

/* The tighter of two bounds of the same side. */
static int bounds_read(struct bounds *b, const struct number_range *q, struct err *e)
{
    const json_t *lo = q->minimum, *hi = q->maximum;

    if (json_is_boolean(q->above) || json_is_boolean(q->below))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s must be a number (true and false are of an older draft)",
                       json_is_boolean(q->above) ? "exclusiveMinimum" : "exclusiveMaximum");
    if (q->above && (!lo || json_number_value(q->above) >= json_number_value(lo))) {
        lo = q->above;
        b->above = true;
    }
    if (q->below && (!hi || json_number_value(q->below) <= json_number_value(hi))) {
        hi = q->below;
        b->below = true;
    }
    b->has_lo = lo;
    b->has_hi = hi;
    if (lo && decimal_of(&b->lo, lo, b->above ? "exclusiveMinimum" : "minimum", q->integer, e))
        return e->code;
    if (hi && decimal_of(&b->hi, hi, b->below ? "exclusiveMaximum" : "maximum", q->integer, e))
        return e->code;
    return 0;
}

/* Any number: no sign of plus, no leading zeros, and a double can hold it. */
static uint32_t unbounded(struct rules *r, bool integer)
{
    uint32_t d = expr_chars(r, &(struct char_range){'0', '9'}, 1);
    uint32_t first = expr_chars(r, &(struct char_range){'1', '9'}, 1);
    uint32_t sign = expr_repeat(r, expr_text(r, "-"), 0, 1);
    uint32_t whole =
        EXPR_ALT(r, expr_text(r, "0"),
                 EXPR_SEQ(r, first, expr_repeat(r, d, 0, (integer ? DIGITS_INTEGER : DIGITS) - 1)));
    uint32_t fraction, exponent;

    if (integer)
        return EXPR_SEQ(r, sign, whole);
    fraction = EXPR_SEQ(r, expr_text(r, "."), expr_repeat(r, d, 1, DIGITS + 1));
    exponent = EXPR_SEQ(r, EXPR_ALT(r, expr_text(r, "e"), expr_text(r, "E")),
                        expr_repeat(r, EXPR_ALT(r, expr_text(r, "+"), expr_text(r, "-")), 0, 1),
                        expr_repeat(r, d, 1, 2));
    return EXPR_SEQ(r, sign, whole, expr_repeat(r, fraction, 0, 1), expr_repeat(r, exponent, 0, 1));
}

/* Integers that n divides: a state per remainder. */
static struct dfa *multiples(unsigned n)
{
    enum { MINUS = 10, OTHER, CLASSES };
    struct dfa *d = dfa_new(n + 2, CLASSES); /* start, after the sign, remainder 0... */

    if (!d)
        return NULL;
    for (unsigned c = 0; c < 256; c++)
        d->class_of[c] = (uint8_t)(c >= '0' && c <= '9' ? c - '0' : c == '-' ? MINUS : OTHER);
    d->next[MINUS] = 1;
    for (unsigned s = 0; s < n + 2; s++)
        for (unsigned c = 0; c < 10; c++)
            d->next[s * CLASSES + c] =
                (uint16_t)(2 + ((s < 2 ? 0 : (uint64_t)(s - 2) * 10) + c) % n);
    d->final[2] = 1;
    return d;
}

static int keep_multiples(struct dfa **d, const json_t *multiple, uint64_t *work, struct err *e)
{
    struct dfa *m, *both = NULL;
    int64_t n;
    int rc;

    if (!json_exact_int(multiple, &n) || n < 1)
        return err_set(e, ERR_UNSUPPORTED, "multipleOf must be a positive integer here");
    if (n > MULTIPLE_MAX)
        return err_set(e, ERR_LIMIT, "multipleOf = %lld, at most %d", (long long)n, MULTIPLE_MAX);
    m = multiples((unsigned)n);
    if (!m)
        return err_set(e, ERR_NOMEM, "multipleOf");
    rc = dfa_both(&both, *d, m, DFA_STATES_MAX, work, e);
    dfa_close(m);
    if (rc)
        return rc;
    if (!both)
        return err_set(e, ERR_LIMIT, "multipleOf = %lld: its automaton has more than %d states",
                       (long long)n, DFA_STATES_MAX);
    dfa_close(*d);
    *d = both;
    return 0;
}

int json_text_number(struct dfa **out, const struct number_range *q, uint64_t *work, struct err *e)
{
    bool integer = q->integer || q->multiple;
    struct number_range range = *q;
    struct bounds b = {0};
    struct rules r = {0};
    struct dfa *d = NULL;
    uint32_t x;
    int rc;

    range.integer = integer;
    if (bounds_read(&b, &range, e))
        return e->code;
    if (b.has_lo || b.has_hi) {
        unsigned digits = integer ? DIGITS_INTEGER : DIGITS, places = integer ? 0 : DECIMALS;
        uint32_t kid[DIGITS + 1];

        if (!integer) {
            places = b.lo.places > places ? b.lo.places : places;
            places = b.hi.places > places ? b.hi.places : places;
        }
        for (unsigned p = 0; p <= places; p++)
            kid[p] = with_places(&r, &b, p, pow10_of(digits) - 1);
        x = expr_alt(&r, kid, places + 1);
    } else {
        x = unbounded(&r, integer);
    }
    rc = r.failed.code ? (*e = r.failed).code : rules_dfa(&d, &r, &r.expr[x], STATES_MAX, work, e);
    rules_release(&r);
    if (!rc && !d)
        rc = err_set(e, ERR_LIMIT, "a range of numbers: its automaton has more than %d states",
                     STATES_MAX);
    if (!rc && q->multiple && d->n)
        rc = keep_multiples(&d, q->multiple, work, e);
    if (rc) {
        dfa_close(d);
        return rc;
    }
    *out = d;
    return 0;
}
