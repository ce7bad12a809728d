/* tests/fuzz/fuzz_state.c - the input as a saved state, its checksums made good: whatever it says,
 * it is refused, or it is a state of this shape whose ids are ids; nothing outside is written. */
#include <libdeflate.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "model/checkpoint.h"

enum { CTX = 12, PARTS_CRC_AT = 244 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static const struct hparams hp = {
    .vocab = 50,
    .n_layers = 3,
    .n_kda = 2,
    .n_mla = 1,
    .kda_heads = 2,
    .kda_dim = 3,
    .conv_taps = 4,
    .kv_lora = 5,
    .rope = 2,
};

/* As someone who knows the format would. */
static void reseal(uint8_t *b, size_t n)
{
    if (n < STATE_HEADER_BYTES)
        return;
    if (b[STATE_HEADER_BYTES - 5] & 1)
        store_le32(b + PARTS_CRC_AT,
                   libdeflate_crc32(0, b + STATE_HEADER_BYTES, n - STATE_HEADER_BYTES));
    store_le32(b + STATE_HEADER_BYTES - 4, libdeflate_crc32(0, b, STATE_HEADER_BYTES - 4));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct state_kind kind = {.container = 1, .trunk = 2, .numeric = "f32", .arch = "toy"};
    size_t bytes = session_bytes(&hp, CTX);
    uint8_t *copy = malloc(size ? size : 1);
    struct state_head h;
    struct session s;
    void *memory = NULL;
    struct err e = {0};
    int fd = memfd_create("state", MFD_CLOEXEC);

    require(copy && fd >= 0 && !posix_memalign(&memory, 64, bytes)); /* exactly: ASan looks on */
    memset(memory, 0, bytes);
    session_init(&s, &hp, CTX, memory);
    memcpy(copy, data, size);
    reseal(copy, size);
    require(write(fd, copy, size) == (ssize_t)size);
    if (!state_read_head(fd, "state", &h, &e) && !state_fits(&h, "state", &kind, &hp, CTX, &e) &&
        !state_verify(fd, "state", &h, &e)) {
        require(!state_load(fd, "state", &h, &s, &e));
        require(s.pos == h.pos && s.pos <= CTX);
        for (unsigned i = 0; i < s.pos; i++)
            require(s.ids[i] < (int32_t)hp.vocab); /* below 0: a row of a picture */
        require(s.choice >= -1 && s.choice < (int32_t)hp.vocab);
    } else {
        require(e.code && e.text[0] && s.pos == 0);
    }
    close(fd);
    free(memory);
    free(copy);
    return 0;
}
