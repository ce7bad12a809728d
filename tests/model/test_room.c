/* test_room.c - cells of any size keep their bytes, whatever comes and goes beside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/room.h"

enum { CELLS = 24, ROOM = 64 * 100 };

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void check_links(const struct room *r)
{
    size_t end = 0, used = 0;

    for (const struct cell *c = r->first; c; c = c->after) {
        assert_true(c->off >= end);
        assert_int_equal(c->off % 64, 0);
        end = c->off + c->bytes;
        used += c->bytes;
    }
    assert_true(end <= r->bytes);
    assert_int_equal(used, r->used);
}

static void cells_keep_their_bytes(void **state)
{
    void *memory;
    struct room r;
    struct cell cell[CELLS];
    size_t bytes[CELLS] = {0};
    uint32_t seed = 7, refused = 0;

    (void)state;
    assert_int_equal(posix_memalign(&memory, 64, ROOM), 0);
    room_init(&r, memory, ROOM);
    for (unsigned i = 0; i < 20000; i++) {
        unsigned k = next(&seed) % CELLS;

        if (bytes[k]) {
            const uint8_t *at = room_at(&r, &cell[k]);

            for (size_t b = 0; b < bytes[k]; b++)
                assert_int_equal(at[b], k);
            room_give(&r, &cell[k]);
            bytes[k] = 0;
        } else {
            size_t n = 1 + next(&seed) % 900, up = (n + 63) / 64 * 64;
            size_t left = r.bytes - r.used;

            if (room_take(&r, &cell[k], n)) {
                assert_true(up <= left);
                bytes[k] = n;
                memset(room_at(&r, &cell[k]), (int)k, n);
            } else { /* only where it does not fit even in one piece */
                assert_true(up > left);
                refused++;
            }
        }
        check_links(&r);
    }
    assert_true(refused > 100);
    free(memory);
}

static void what_can_never_fit_is_refused(void **state)
{
    _Alignas(64) uint8_t memory[128 + 63];
    struct cell a, b;
    struct room r;

    (void)state;
    room_init(&r, memory, sizeof(memory));
    assert_int_equal(r.bytes, 128);
    assert_false(room_take(&r, &a, 129));
    assert_false(room_take(&r, &a, SIZE_MAX));
    assert_true(room_take(&r, &a, 65));
    assert_false(room_take(&r, &b, 1));
    room_give(&r, &a);
    assert_true(room_take(&r, &b, 128));
    room_init(&r, NULL, 0);
    assert_false(room_take(&r, &a, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_keep_their_bytes),
        cmocka_unit_test(what_can_never_fit_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
