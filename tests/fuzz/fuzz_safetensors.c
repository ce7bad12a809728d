/* Whatever the files of a checkpoint: refused with words, or what safetensors.h promises of it, and
 * every row reads as finite values or is refused as corrupt.
 *
 * An input is three 16-bit little-endian lengths, then as many bytes of config.json, of the index
 * and of the first shard; what remains is the second shard. Without an index the first shard is
 * model.safetensors, else they are a.safetensors and b.safetensors. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "expertfs/safetensors.h"

enum { ROWS = 3 };

static char dir[256];

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void remove_dir(void)
{
    static const char *const names[] = {"config.json", "model.safetensors.index.json",
                                        "model.safetensors", "a.safetensors", "b.safetensors"};
    char path[320];

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void make_dir(void)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(dir, sizeof(dir), "%s/waste-fuzz-XXXXXX", tmp ? tmp : "/tmp");
    require(mkdtemp(dir));
    atexit(remove_dir);
}

/* A file of these bytes; without bytes, none. */
static void put(const char *name, const uint8_t *bytes, size_t n)
{
    char path[320];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (!n) {
        unlink(path);
        return;
    }
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

/* Every row, in an allocation of exactly its size. */
static void check_rows(const struct checkpoint *c, const struct source_tensor *t)
{
    for (uint64_t row = 0, n; row < t->rows; row += n) {
        float *rows;
        struct err e = {0};

        n = t->rows - row < ROWS ? t->rows - row : ROWS;
        rows = malloc(n * t->cols * sizeof(*rows));
        require(rows);
        if (checkpoint_read(c, t, row, n, rows, &e))
            require(e.code == ERR_CORRUPT && e.text[0]);
        for (uint64_t i = 0; !e.code && i < n * t->cols; i++)
            require(isfinite(rows[i]));
        free(rows);
    }
}

static void check(const struct checkpoint *c)
{
    const struct source_tensor *t, *before = NULL;

    require(checkpoint_n_tensors(c) && json_is_object(checkpoint_config(c)));
    for (unsigned i = 0; i < checkpoint_n_tensors(c); i++, before = t) {
        uint64_t elements = 1;

        t = checkpoint_tensor(c, i);
        require(!before || strcmp(before->name, t->name) < 0);
        require(checkpoint_find(c, t->name) == t);
        require(t->shard < checkpoint_n_shards(c) && t->scale_shard < checkpoint_n_shards(c));
        require(t->rank >= 1 && t->rank <= 4 && t->cols == t->dim[t->rank - 1]);
        for (unsigned d = 0; d < t->rank; d++)
            elements *= t->dim[d];
        require(t->rows * t->cols == elements && elements);
        check_rows(c, t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes in = bytes_of(data, size);
    struct checkpoint *c = NULL;
    struct err e = {0};
    const uint8_t *part[4];
    size_t length[4];

    for (unsigned i = 0; i < 3; i++)
        length[i] = bytes_u16(&in);
    for (unsigned i = 0; i < 3; i++) {
        if (length[i] > (size_t)(in.end - in.at))
            length[i] = (size_t)(in.end - in.at);
        part[i] = bytes_take(&in, length[i]);
    }
    length[3] = (size_t)(in.end - in.at);
    part[3] = in.at;
    if (!dir[0])
        make_dir();
    put("config.json", part[0], length[0]);
    put("model.safetensors.index.json", part[1], length[1]);
    put("model.safetensors", part[2], length[1] ? 0 : length[2]);
    put("a.safetensors", part[2], length[1] ? length[2] : 0);
    put("b.safetensors", part[3], length[3]);
    if (checkpoint_open(&c, dir, &e)) {
        require(!c && e.code < 0 && e.text[0]);
        return 0;
    }
    check(c);
    checkpoint_close(c);
    return 0;
}
