/* model/conversation.h - what a host asks for: messages, tools, how much to think.
 *
 * Read from a JSON request and brought into one form, whatever the chat format: roles, typed
 * content, calls with their arguments, results matched to the calls they answer. Nothing here knows
 * a marker. Texts are borrowed from the conversation's own memory; they are whatever users, tools
 * and models wrote.
 */
#ifndef MODEL_CONVERSATION_H
#define MODEL_CONVERSATION_H

#include "model/json_tree.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };

struct part { /* of a content */
    bool is_image;
    struct str text; /* of an image: its address */
    uint32_t width, height;
};

struct call {
    struct str id, name;
    const struct node *arguments; /* an object; NULL: none, or given as text that is not JSON */
    struct str raw;               /* that text */
    struct str given;             /* a text from which arguments were read */
    uint32_t nth;                 /* of all calls in the conversation, from 0 */
};

struct message {
    enum role role;
    uint32_t source; /* index in the request; results may be sorted */
    struct str name;
    struct part *parts;
    uint32_t n_parts;
    struct str reasoning; /* assistant; empty: none */
    struct call *calls;   /* assistant */
    uint32_t n_calls;
    const struct node *tools; /* system: declares these instead of saying something; or NULL */
    struct str id, tool; /* tool: which call, of what, as sent; then the name of what was called */
    const struct call *answers; /* tool: the call with that id; or NULL */
    uint32_t nth;               /* tool: position since the last assistant's message, from 1 */
};

enum tool_choice { CHOICE_AUTO, CHOICE_NONE, CHOICE_REQUIRED };
enum answer_format { ANSWER_TEXT, ANSWER_JSON, ANSWER_SCHEMA };

struct conversation {
    struct tree tree;
    struct message *messages;
    uint32_t n_messages;
    const struct node *tools; /* an array that is not empty; or NULL */
    bool tools_later;         /* a system message declares some */
    enum tool_choice choice;
    struct str choice_name; /* the one that must be called; empty: any */
    bool parallel_calls;    /* several in one answer */
    enum answer_format format;
    const struct node *schema;
    bool thinking;
    bool thinking_asked; /* the request wants it, not only the default */
    bool effort_note;
    const char *effort; /* "low", "high", "max"; "" without thinking */
    bool floor;         /* hand the turn to the model */
    char note[160];     /* what a host may want to log; "" */
};

struct thinking_rules {
    const char *effort; /* when the request says nothing: "low", "high", "max", "none" */
    bool lenient;       /* medium is high, xhigh is max */
};

/* c must be all zero; release it also after a failure. ERR_ARG names the member by its path
 * ("messages[2].content[0].type"); ERR_LIMIT: too large. */
int conversation_read(struct conversation *c, const char *json, size_t len,
                      const struct thinking_rules *rules, struct err *e);
void conversation_release(struct conversation *c);

/* "low", "high", "max", "none" in any case, or NULL. With lenient also what that adds. */
const char *effort_of(struct str text, bool lenient);

#endif
