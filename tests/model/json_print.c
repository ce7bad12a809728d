/* json_print - JSON texts, one a line, on standard input; each one spaced and then sorted on
 * standard output, a line each. For json_oracle.py. */
#include "model/json_write.h"

#include <stdio.h>

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct tree tree = {0};
        struct buf b = {0};
        struct err e;

        if (tree_parse(&tree, line, (size_t)n, &e)) {
            fprintf(stderr, "%s", e.text);
            return 1;
        }
        json_write(&b, tree.root, JSON_SPACED);
        buf_str(&b, STR("\n"));
        json_write(&b, tree.root, JSON_SORTED);
        buf_str(&b, STR("\n"));
        fwrite(b.s, 1, b.n, stdout);
        buf_release(&b);
        tree_release(&tree);
    }
    free(line);
    return ferror(stdout) || fflush(stdout);
}
