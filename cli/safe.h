/* cli/safe.h - text of unknown origin, made fit for a terminal.
 *
 * A file name, a tensor's name or a model's answer may hold escapes that move the cursor, retitle
 * the window or worse. Control characters (C0, DEL, C1) and bytes that are not UTF-8 become \xNN.
 * Characters that hide or reorder what others see become \u{N}: overrides and isolates of
 * direction, U+200B, U+2060, U+FEFF, tags. Everything else stays as it is, joiners and marks of
 * direction, too: scripts and emoji need them.
 */
#ifndef CLI_SAFE_H
#define CLI_SAFE_H

#include <stdbool.h>
#include <stddef.h>

enum { SAFE_UNIT = 10 };

/* The next character: its safe form is put to out, *n bytes of it. Control characters listed in
 * keep pass. len is at least 1; returns the bytes taken. */
size_t safe_next(char out[SAFE_UNIT], size_t *n, const char *bytes, size_t len, const char *keep);

/* Whether all of it is safe as it stands. */
bool safe_as_is(const char *bytes, size_t len);

/* All of it, NUL-terminated; what does not fit is cut between characters. Returns text. */
const char *safe_text(char *text, size_t text_bytes, const char *bytes, size_t len,
                      const char *keep);

#endif
