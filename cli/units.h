/* cli/units.h - sizes, rates, times and ids as people write and read them. */
#ifndef CLI_UNITS_H
#define CLI_UNITS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* "46G", "1.5 GiB", "512MB", "4096": a decimal number, fractions allowed, then K, M, G or T (or
 * small; always binary: memory is sold that way), an optional i and B. ERR_ARG: anything else, and
 * what does not fit 64 bits. */
int size_parse(uint64_t *out, const char *text, struct err *e);

/* "7GB/s", "3.2 GiB/s", "900M": as above, but the units of drives: decimal unless an i says
 * otherwise. "/s" is optional. ERR_ARG also for 0. */
int rate_parse(uint64_t *out, const char *text, struct err *e);

enum { UNITS_TEXT = 32 };

/* "27.28 GiB", "37.0 MiB", "812 B"; and the decimal form, "29.29 GB". Returns text. */
const char *size_text(char text[UNITS_TEXT], uint64_t bytes);
const char *size_text_decimal(char text[UNITS_TEXT], uint64_t bytes);

/* "2.78 T", "48.1 G", "812": how many of something. */
const char *count_text(char text[UNITS_TEXT], uint64_t n);

/* Decimals with which an estimate shows no more than three digits: 0.07, 3.21, 13.9, 2524. */
int estimate_decimals(double v);

/* How many a second; 0: no time has passed. */
double per_second(double n, double seconds);

/* "0:07", "12:40", "3:04:05", and "--:--" for a duration that nobody can know. */
const char *time_text(char text[UNITS_TEXT], double seconds);

/* Print text and a newline, in lines of at most 79 columns; the cursor is in column `at`, further
 * lines are indented. */
void print_wrapped(FILE *to, const char *text, int at, int indent);

/* Token ids separated by spaces, commas, tabs or newlines. *out is the caller's to free. ERR_ARG
 * names what is not an id; ERR_NOMEM. An empty text is no ids. */
int ids_parse(int32_t **out, size_t *n_out, const char *text, size_t len, struct err *e);

#endif
