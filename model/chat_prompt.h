/* model/chat_prompt.h - a prompt: segments, each markup or content, and the ids they become.
 *
 * Put the segments in order, then encode. Each one is encoded by itself: joining neighbours changes
 * ids, and joining content to markup hands control to whoever wrote the content. Empty ones are
 * dropped. A failed allocation sticks until prompt_encode reports it.
 */
#ifndef MODEL_CHAT_PROMPT_H
#define MODEL_CHAT_PROMPT_H

#include "base/buf.h"
#include "include/waste.h"
#include "model/tokenizer.h"

/* What a request says of its answer. */
struct answer_tool {
    size_t name, name_len, schema, schema_len; /* in answer_rules.text; schema_len 0: no object */
    int32_t message;                           /* declared in this one; -1: in the request */
    uint32_t index;                            /* tools[index] */
    bool strict;
};
struct answer_rules {
    struct buf text;
    struct answer_tool *tools;
    size_t n_tools, tools_cap;
    size_t schema, schema_len; /* of the response, in text; 0: free */
    bool one_call;
    struct buf grammar; /* made last */
};

struct prompt {
    const struct chat *chat;
    struct buf text;    /* of all segments, one after the other */
    struct buf sources; /* of the images */
    waste_segment *segments;
    size_t n_segments, segments_cap;
    waste_message_end *ends; /* n_ids counts segments until they are encoded */
    size_t n_ends, ends_cap;
    waste_image_place *images; /* `at` is a segment, source an offset until they are encoded */
    size_t n_images, images_cap;
    int32_t *ids;
    size_t n_ids, ids_cap;
    bool failed;

    uint32_t begins;
    const char *effort; /* static */
    bool may_call, must_call;
    struct answer_rules answer;
    struct buf must_call_name; /* empty: any */
    char note[160];
};

void prompt_markup(struct prompt *p, struct str text);
void prompt_content(struct prompt *p, struct str text);
/* A segment in parts: put them into the buffer, then say what they were. */
struct buf *prompt_begin(struct prompt *p);
void prompt_end(struct prompt *p, enum token_mode mode);
/* A message ends here; -1: one that is none of the request's. */
void prompt_message_end(struct prompt *p, int32_t message);
/* The last segment holds the place of this image; source is copied. */
void prompt_image(struct prompt *p, const waste_image_place *image, struct str source);

/* All segments to ids, once. pad: the id that an image's place has. */
int prompt_encode(struct prompt *p, const struct tokenizer *t, int32_t pad, struct err *e);
void prompt_release(struct prompt *p);

#endif
