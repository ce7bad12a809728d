/* model/release.h - a published config.json, as the `config` of a container's manifest.
 *
 * A nested text_config becomes the configuration and what was around it its member _outer; names
 * that other families use get the canonical ones beside them; flags that some readers test by
 * presence are there only when they are true.
 */
#ifndef MODEL_RELEASE_H
#define MODEL_RELEASE_H

#include "base/err.h"
#include "base/json.h"

struct release {
    json_t *config;  /* owned */
    char prefix[64]; /* of every text tensor's name: "" or "language_model." */
    char arch[64];   /* "kimi-k3", "kimi-linear", or the release's own word */
};

/* config: the whole of config.json. generation: generation_config.json, or NULL; its eos_token_id
 * is taken when the configuration has none. ERR_FORMAT, ERR_NOMEM. */
int release_read(struct release *out, const json_t *config, const json_t *generation,
                 struct err *e);
void release_release(struct release *r); /* of all zero, too */

/* The vision tower's configuration, or NULL: the text model is all there is. Borrowed. */
const json_t *release_vision(const struct release *r);
/* A member of the release's outermost object. Borrowed, or NULL. */
const json_t *release_outer(const struct release *r, const char *key);

#endif
