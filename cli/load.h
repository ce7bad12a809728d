/* cli/load.h - a model: find it, open it as the options say, tell what came of it. */
#ifndef CLI_LOAD_H
#define CLI_LOAD_H

#include <limits.h>
#include <stdbool.h>

#include "cli/say.h"
#include "waste.h"

/* A path as it is, if something is there; a bare NAME is NAME.waste in $XDG_DATA_HOME/waste, then
 * where the program was installed, then in the source tree. Returns 0 or an exit code, having said
 * why. */
int model_find(struct cli *c, const char *name, char path[PATH_MAX]);

/* The same for a bare name of an installed model, without a word: false, also for a path. */
bool model_look(const char *name, char path[PATH_MAX]);

/* Refuse what is no container's directory, before a prompt is read or a tokenizer is missed. */
int model_check(struct cli *c, const char *path);

/* waste_tokenizer_open(path) failed: because there is no container at all? */
int fail_tokenizer(struct cli *c, waste_status st, const char *path);

/* What waste_open_ex and waste_plan_ex want to know. Strings are borrowed from c. */
void model_settings(struct cli *c, waste_cfg *cfg, waste_opts *opts);

/* What one of these two refused; a setting that is at fault may be nobody's on the command line, so
 * the others are named. Returns an exit code. */
int fail_settings(struct cli *c, waste_status st, const char *path);

/* Refuse a prompt of no tokens, or of more than the context will have, before anything is loaded.
 */
int prompt_fits(struct cli *c, size_t n);

/* With --learn: save which experts were used, and note where. A failure is a note, too. */
void model_learn(struct cli *c, waste_ctx *ctx, const char *path);

/* Open with a bar; an interrupt ends it. Returns 0 or an exit code. */
int model_open(struct cli *c, const char *path, waste_ctx **out);
void model_close(waste_ctx *ctx); /* NULL-safe */

/* Refuse ids outside the vocabulary of an open model, and a --logit-bias of such an id. */
int ids_check(struct cli *c, waste_ctx *ctx, const int32_t *ids, size_t n);

/* What is open, what it takes, how it reads and computes: notes, so nothing under --quiet. */
void model_banner(struct cli *c, waste_ctx *ctx);

#endif
