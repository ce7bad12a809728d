/* tests/fuzz/replay.c - run a fuzz target over a corpus, without a fuzzer.
 *
 *     replay_X FILE-OR-DIRECTORY...
 *
 * Linked with one fuzz_X.c in place of libFuzzer's main. Directories are replayed in order of
 * names, one level deep, hidden files left out. Each input lies in an allocation of exactly its
 * size, so that a sanitizer sees a read beyond it. The name comes before the run: after a crash,
 * the last line says which input it was. No input at all is a failure: the corpus was mislaid.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned long n_inputs;

static int complain(const char *path)
{
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return -1;
}

static int replay_file(const char *path, size_t size)
{
    uint8_t *data = malloc(size ? size : 1);
    FILE *f = fopen(path, "rb");
    int rc = 0;

    if (!data || !f || fread(data, 1, size, f) != size) {
        rc = complain(path);
    } else {
        printf("%s (%zu bytes)\n", path, size);
        fflush(stdout);
        LLVMFuzzerTestOneInput(data, size);
        n_inputs++;
    }
    if (f)
        fclose(f);
    free(data);
    return rc;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int replay_directory(const char *dir)
{
    struct dirent **entry;
    int n = scandir(dir, &entry, visible, alphasort), rc = 0;

    if (n < 0)
        return complain(dir);
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        struct stat st;

        if (snprintf(path, sizeof(path), "%s/%s", dir, entry[i]->d_name) >= (int)sizeof(path))
            rc = -1;
        else if (stat(path, &st))
            rc = complain(path);
        else if (S_ISREG(st.st_mode) && replay_file(path, (size_t)st.st_size))
            rc = -1;
        free(entry[i]);
    }
    free(entry);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = 0;

    for (int i = 1; i < argc; i++) {
        struct stat st;

        if (stat(argv[i], &st))
            rc = complain(argv[i]);
        else if (S_ISDIR(st.st_mode) ? replay_directory(argv[i])
                                     : replay_file(argv[i], (size_t)st.st_size))
            rc = -1;
    }
    printf("%lu inputs replayed\n", n_inputs);
    return rc || n_inputs == 0;
}
