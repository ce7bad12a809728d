#include "cli/units.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_spaces(const char *s)
{
    return s + strspn(s, " \t");
}

/* Digits with at most one point among them: strtod would also take signs, "inf" and "0x1p3". */
static const char *number_end(const char *s, bool *fraction)
{
    const char *p = s + strspn(s, "0123456789");
    size_t digits = (size_t)(p - s);

    *fraction = *p == '.';
    if (*fraction) {
        size_t more = strspn(p + 1, "0123456789");

        p += 1 + more;
        digits += more;
    }
    return digits ? p : s;
}

/* K, M, G, T as a power of base (1024 if an i follows); an optional B ends it. */
static const char *unit_end(const char *s, uint64_t base, uint64_t *unit)
{
    const char letters[] = "KMGT";
    const char *at = *s ? strchr(letters, toupper((unsigned char)*s)) : NULL;

    *unit = 1;
    if (at) {
        s++;
        if (*s == 'i') {
            base = 1024;
            s++;
        }
        for (const char *p = letters; p <= at; p++)
            *unit *= base;
    }
    return *s == 'B' ? s + 1 : s;
}

/* Digits only, so nothing else can be in the way; false when it exceeds 64 bits. */
static bool whole_scaled(uint64_t *out, const char *s, const char *end, uint64_t unit)
{
    uint64_t v = 0;

    for (; s < end; s++) {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *s - '0', &v))
            return false;
    }
    return !__builtin_mul_overflow(v, unit, out);
}

static bool fraction_scaled(uint64_t *out, const char *s, const char *end, uint64_t unit)
{
    long double v = 0, place = 1;
    bool after = false;

    for (; s < end; s++) {
        if (*s == '.') {
            after = true;
            continue;
        }
        v = v * 10 + (*s - '0');
        if (after)
            place *= 10;
    }
    v = v / place * unit;
    if (!(v < 0x1p64L))
        return false;
    *out = (uint64_t)v;
    return true;
}

/* Returns what follows the unit, or NULL with *e set. */
static const char *scaled_parse(uint64_t *out, const char *text, uint64_t base, const char *what,
                                const char *example, struct err *e)
{
    const char *start = skip_spaces(text), *end, *rest;
    uint64_t unit;
    bool fraction, fits;

    end = number_end(start, &fraction);
    if (end == start) {
        err_set(e, ERR_ARG, "\"%s\" is not a %s (try %s)", text, what, example);
        return NULL;
    }
    rest = unit_end(skip_spaces(end), base, &unit);
    fits = fraction ? fraction_scaled(out, start, end, unit) : whole_scaled(out, start, end, unit);
    if (!fits) {
        err_set(e, ERR_ARG, "\"%s\" is too large", text);
        return NULL;
    }
    return rest;
}

int size_parse(uint64_t *out, const char *text, struct err *e)
{
    uint64_t v;
    const char *rest = scaled_parse(&v, text, 1024, "size", "46G or 1.5GiB", e);

    if (!rest)
        return e->code;
    if (*skip_spaces(rest))
        return err_set(e, ERR_ARG, "\"%s\" is not a size (try 46G or 1.5GiB)", text);
    *out = v;
    return 0;
}

int rate_parse(uint64_t *out, const char *text, struct err *e)
{
    uint64_t v;
    const char *rest = scaled_parse(&v, text, 1000, "rate", "7GB/s", e);

    if (!rest)
        return e->code;
    if (!strncmp(rest, "/s", 2))
        rest += 2;
    if (*skip_spaces(rest) || !v)
        return err_set(e, ERR_ARG, "\"%s\" is not a rate (try 7GB/s)", text);
    *out = v;
    return 0;
}

static const char *scaled_text(char text[UNITS_TEXT], uint64_t bytes, double base,
                               const char *const names[5])
{
    double v = (double)bytes;
    unsigned i = 0;

    while (v >= base && i < 4) {
        v /= base;
        i++;
    }
    snprintf(text, UNITS_TEXT, i == 0 ? "%.0f %s" : i < 3 ? "%.1f %s" : "%.2f %s", v, names[i]);
    return text;
}

const char *size_text(char text[UNITS_TEXT], uint64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};

    return scaled_text(text, bytes, 1024, names);
}

const char *size_text_decimal(char text[UNITS_TEXT], uint64_t bytes)
{
    static const char *const names[] = {"B", "kB", "MB", "GB", "TB"};

    return scaled_text(text, bytes, 1000, names);
}

const char *count_text(char text[UNITS_TEXT], uint64_t n)
{
    static const char *const names[] = {"", " k", " M", " G", " T"};
    double v = (double)n;
    unsigned i = 0;

    while (v >= 1000 && i < 4) {
        v /= 1000;
        i++;
    }
    snprintf(text, UNITS_TEXT, i ? "%.3g%s" : "%.0f%s", v, names[i]);
    return text;
}

int estimate_decimals(double v)
{
    return v < 10 ? 2 : v < 100;
}

double per_second(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

const char *time_text(char text[UNITS_TEXT], double seconds)
{
    unsigned s;

    if (!isfinite(seconds) || seconds < 0 || seconds > 999 * 3600.0) {
        snprintf(text, UNITS_TEXT, "--:--");
        return text;
    }
    s = (unsigned)(seconds + 0.5);
    if (s < 3600)
        snprintf(text, UNITS_TEXT, "%u:%02u", s / 60, s % 60);
    else
        snprintf(text, UNITS_TEXT, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    return text;
}

int ids_parse(int32_t **out, size_t *n_out, const char *text, size_t len, struct err *e)
{
    static const char separators[] = " ,\t\r\n";
    int32_t *ids = malloc((len / 2 + 1) * sizeof(*ids)); /* an id and a separator are 2 bytes */
    size_t n = 0;

    if (!ids)
        return err_set(e, ERR_NOMEM, "%zu bytes of ids", len);
    for (size_t i = 0; i < len;) {
        size_t start = i;
        int64_t v = 0;

        if (text[i] && strchr(separators, text[i])) {
            i++;
            continue;
        }
        for (; i < len && text[i] >= '0' && text[i] <= '9' && v <= INT32_MAX; i++)
            v = v * 10 + (text[i] - '0');
        if (i == start || v > INT32_MAX || (i < len && !(text[i] && strchr(separators, text[i])))) {
            size_t shown_len = 0;

            while (start + shown_len < len && shown_len < 20 && text[start + shown_len] &&
                   !strchr(separators, text[start + shown_len]))
                shown_len++;
            free(ids);
            return err_set(e, ERR_ARG, "\"%.*s\" is not a token id", (int)shown_len, text + start);
        }
        ids[n++] = (int32_t)v;
    }
    *out = ids;
    *n_out = n;
    return 0;
}

void print_wrapped(FILE *to, const char *text, int at, int indent)
{
    enum { WIDTH = 79 };

    while (*text) {
        int len = (int)strcspn(text, " ");

        if (at + 1 + len > WIDTH) {
            fprintf(to, "\n%*s", indent - 1, "");
            at = indent - 1;
        }
        fprintf(to, " %.*s", len, text);
        at += 1 + len;
        text += len;
        text += strspn(text, " ");
    }
    fputc('\n', to);
}
