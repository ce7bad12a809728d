#include "model/think_limit.h"

#include <string.h>

void think_limit_set(struct think_limit *l, const int32_t *close, unsigned n, uint32_t after)
{
    if (n)
        memcpy(l->close, close, n * sizeof(*close));
    l->n_close = n;
    l->after = after;
    think_limit_restart(l);
}

void think_limit_restart(struct think_limit *l)
{
    l->left = l->after;
    l->at = 0;
}

int32_t think_limit_due(const struct think_limit *l)
{
    if (l->at == l->n_close || l->left)
        return -1;
    return l->close[l->at];
}

void think_limit_chosen(struct think_limit *l, int32_t id)
{
    if (l->at == l->n_close)
        return;
    if (!l->left)
        l->at++;
    else if (id == l->close[0])
        l->at = l->n_close; /* the model's own */
    else
        l->left--;
}
