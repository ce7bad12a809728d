#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "expertfs/safetensors.h"
#include "tests/support/alloc_fault.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

#define INDEX  "model.safetensors.index.json"
#define SINGLE "model.safetensors"

static char dir[256];
static int dir_fd;

static void write_file(const char *name, const void *bytes, size_t n)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

/* A safetensors file: header and data area. */
static void write_shard(const char *name, const char *header, const void *data, size_t n)
{
    size_t length = strlen(header);
    uint8_t *all = malloc(8 + length + n);

    assert_non_null(all);
    store_le64(all, length);
    memcpy(all + 8, header, length);
    if (n)
        memcpy(all + 8 + length, data, n);
    write_file(name, all, 8 + length + n);
    free(all);
}

static int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(dir, sizeof(dir), "%s/waste-test-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return -1;
    write_text("config.json", "{}");
    return 0;
}

static void remove_files(void)
{
    DIR *d = fdopendir(dup(dir_fd));

    assert_non_null(d);
    rewinddir(d);
    for (struct dirent *entry; (entry = readdir(d));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            unlinkat(dir_fd, entry->d_name, 0);
    closedir(d);
}

static int remove_dir(void **state)
{
    (void)state;
    remove_files();
    close(dir_fd);
    return rmdir(dir);
}

static struct checkpoint *accept(void)
{
    struct checkpoint *c = NULL;
    struct err e;

    if (checkpoint_open(&c, dir, &e))
        fail_msg("refused: %s", e.text);
    return c;
}

/* Refused with this code, and a message that has these words. */
static void refuse(int code, const char *words)
{
    struct checkpoint *c = NULL;
    struct err e = {0};

    if (!checkpoint_open(&c, dir, &e)) {
        checkpoint_close(c);
        fail_msg("accepted, expected: %s", words);
    }
    assert_null(c);
    if (e.code != code || !strstr(e.text, words))
        fail_msg("%d \"%s\", expected %d \"%s\"", e.code, e.text, code, words);
}

/* A single-file checkpoint with this header and n zero bytes of data. */
static void refuse_header(int code, const char *words, const char *header, size_t n)
{
    static const uint8_t zeros[40000];

    assert_true(n <= sizeof(zeros));
    write_shard(SINGLE, header, zeros, n);
    refuse(code, words);
}

static void reads_as(const struct checkpoint *c, const char *name, uint64_t row0, uint64_t n,
                     const float *want)
{
    const struct source_tensor *t = checkpoint_find(c, name);
    float *got, guard = 12345.0f;
    struct err e;

    assert_non_null(t);
    got = malloc((n * t->cols + 1) * sizeof(*got));
    assert_non_null(got);
    got[n * t->cols] = guard;
    if (checkpoint_read(c, t, row0, n, got, &e))
        fail_msg("%s: %s", name, e.text);
    for (size_t i = 0; i < n * t->cols; i++)
        if (memcmp(&got[i], &want[i], sizeof(float)))
            fail_msg("%s: value %zu is %a, expected %a", name, i, (double)got[i], (double)want[i]);
    assert_true(got[n * t->cols] == guard);
    free(got);
}

static void read_fails(const struct checkpoint *c, const char *name, uint64_t row0, uint64_t n,
                       int code, const char *words)
{
    const struct source_tensor *t = checkpoint_find(c, name);
    struct err e = {0};
    float *got;

    assert_non_null(t);
    got = calloc(n * t->cols + 1, sizeof(*got));
    assert_non_null(got);
    assert_int_equal(checkpoint_read(c, t, row0, n, got, &e), code);
    free(got);
    if (e.code != code || !strstr(e.text, words))
        fail_msg("%d \"%s\", expected %d \"%s\"", e.code, e.text, code, words);
}

/* What is read ------------------------------------------------------------------------------- */

static void plain_types_are_widened_exactly_in_any_rank(void **state)
{
    const uint8_t data[] = {
        0x00, 0x00, 0x80, 0x3f, 0x01, 0x00, 0x00, 0x80, /* F32: 1, -2^-149 */
        0x00, 0x3c, 0x01, 0x00, 0x00, 0xc0,             /* F16: 1, 2^-24, -2 */
        0xcd, 0x3d, 0x80, 0xbf, 0x01, 0x00, 0x00, 0x80, /* BF16: 0.1000977, -1, 2^-133, -0 */
    };
    const struct source_tensor *b;
    struct checkpoint *c;

    (void)state;
    write_shard(SINGLE,
                "{\"__metadata__\":{\"format\":\"pt\"},"
                "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                "\"h\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[8,14]},"
                "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,2,1,2],\"data_offsets\":[14,22]}}   ",
                data, sizeof(data));
    c = accept();
    b = checkpoint_find(c, "b");
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_string_equal(checkpoint_tensor(c, 0)->name, "b");
    assert_string_equal(checkpoint_tensor(c, 1)->name, "f");
    assert_string_equal(checkpoint_tensor(c, 2)->name, "h");
    assert_null(checkpoint_find(c, "g"));
    assert_string_equal(checkpoint_dir(c), dir);
    assert_true(json_is_object(checkpoint_config(c)));
    assert_int_equal(checkpoint_n_shards(c), 1);
    assert_string_equal(checkpoint_shard(c, 0), SINGLE);
    assert_true(checkpoint_shard_present(c, 0));
    assert_int_equal(b->dtype, SOURCE_BF16);
    assert_int_equal(b->rank, 4);
    assert_int_equal(b->dim[1], 2);
    assert_int_equal(b->rows, 2);
    assert_int_equal(b->cols, 2);
    assert_int_equal(b->scale_shard, b->shard);
    assert_int_equal(checkpoint_find(c, "f")->rows, 1);
    reads_as(c, "f", 0, 1, (float[]){1, -0x1p-149f});
    reads_as(c, "h", 0, 3, (float[]){1, 0x1p-24f, -2});
    reads_as(c, "h", 1, 1, (float[]){0x1p-24f});
    reads_as(c, "h", 3, 0, NULL);
    reads_as(c, "b", 0, 2, (float[]){0x1.9ap-4f, -1, 0x1p-133f, -0.0f});
    checkpoint_close(c);
}

#define FP8_SHAPE(type, rows, cols, bytes, scale_shape, scale_end)                                 \
    "{\"w\":{\"dtype\":\"" type "\",\"shape\":[" #rows "," #cols "],\"data_offsets\":[0," #bytes   \
    "]},\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":" scale_shape ",\"data_offsets\":[" #bytes    \
    "," #scale_end "]}}"

static void an_fp8_value_is_multiplied_by_the_scale_of_its_block(void **state)
{
    const uint8_t q[12] = {0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50, 0x51, 0x52, 0x53, 0x54};
    const float scale[4] = {10, 1, 2, 100};
    const float want[12] = {10, 20, 30, 4, 50, 60, 70, 8, 18, 20, 22, 1200};
    static const char two_by_three[] = "{\"quantization_config\":{\"weight_block_size\":[2,3]}}";
    static const char nested[] =
        "{\"text_config\":{\"quantization_config\":{\"weight_block_size\":[2,3]}}}";
    static const char both[] =
        "{\"quantization_config\":{\"weight_block_size\":[2,3]},"
        "\"text_config\":{\"quantization_config\":{\"weight_block_size\":[1,1]}}}";
    static const char *const configs[] = {two_by_three, nested, both};
    uint8_t data[28];
    struct checkpoint *c;

    (void)state;
    memcpy(data, q, 12);
    memcpy(data + 12, scale, 16);
    write_shard(SINGLE, FP8_SHAPE("F8_E4M3", 3, 4, 12, "[2,2]", 28), data, sizeof(data));
    for (unsigned i = 0; i < N_ELEMS(configs); i++) {
        write_text("config.json", configs[i]);
        c = accept();
        assert_int_equal(checkpoint_n_tensors(c), 1); /* the companion is not listed */
        assert_int_equal(checkpoint_tensor(c, 0)->dtype, SOURCE_F8_E4M3);
        for (uint64_t r = 0; r < 3; r++)
            for (uint64_t n = 1; n <= 3 - r; n++)
                reads_as(c, "w", r, n, want + 4 * r);
        checkpoint_close(c);
    }
}

static void every_fp8_byte_has_its_value_or_is_refused(void **state)
{
    static const struct {
        uint8_t byte;
        float value;
    } known[] = {{0x00, 0}, {0x01, 0x1p-9f}, {0x07, 7 * 0x1p-9f}, {0x08, 0x1p-6f},
                 {0x38, 1}, {0x7e, 448},     {0xb8, -1}};
    const float one[3] = {1, 1, 1};
    uint8_t data[256 + 12];
    struct checkpoint *c;

    (void)state;
    write_text("config.json", "{\"quantization_config\":{\"weight_block_size\":[100,1]}}");
    for (unsigned i = 0; i < 256; i++)
        data[i] = (uint8_t)i;
    memcpy(data + 256, one, 12);
    for (unsigned e5m2 = 0; e5m2 < 2; e5m2++) {
        write_shard(SINGLE,
                    e5m2 ? FP8_SHAPE("F8_E5M2", 256, 1, 256, "[3,1]", 268)
                         : FP8_SHAPE("F8_E4M3", 256, 1, 256, "[3,1]", 268),
                    data, sizeof(data));
        c = accept();
        for (unsigned i = 0; i < 256; i++) {
            unsigned e = e5m2 ? i >> 2 & 31 : i >> 3 & 15, m = e5m2 ? i & 3 : i & 7;
            int bias = e5m2 ? 15 : 7, width = e5m2 ? 2 : 3;
            float sign = i & 0x80 ? -1 : 1;
            float want = sign * ldexpf(ldexpf((float)m, -width) + (e ? 1.0f : 0.0f),
                                       (e ? (int)e : 1) - bias);
            char place[48];

            snprintf(place, sizeof(place), "w: non-finite value at [%u][0]", i);
            if (e5m2 ? e == 31 : (i & 0x7f) == 0x7f)
                read_fails(c, "w", i, 1, ERR_CORRUPT, place);
            else
                reads_as(c, "w", i, 1, &want);
        }
        if (!e5m2)
            for (unsigned i = 0; i < N_ELEMS(known); i++)
                reads_as(c, "w", known[i].byte, 1, &known[i].value);
        checkpoint_close(c);
    }
}

static void a_default_block_is_128_by_128_and_partial_blocks_count(void **state)
{
    static uint8_t data[129 * 130 + 16];
    static float want[129 * 130];
    const float scale[4] = {1, 2, 3, 4};
    struct checkpoint *c;

    (void)state;
    memset(data, 0x38, 129 * 130);
    memcpy(data + 129 * 130, scale, sizeof(scale));
    for (unsigned i = 0; i < 129; i++)
        for (unsigned j = 0; j < 130; j++)
            want[130 * i + j] = scale[2 * (i / 128) + j / 128];
    write_shard(SINGLE, FP8_SHAPE("F8_E4M3", 129, 130, 16770, "[2,2]", 16786), data, sizeof(data));
    c = accept();
    reads_as(c, "w", 0, 129, want);
    reads_as(c, "w", 127, 2, want + 130 * 127);
    checkpoint_close(c);
}

#define MXFP4_HEADER(packed, packed_shape, packed_end, scale, scale_shape, scale_end)              \
    "{\"x_packed\":{\"dtype\":\"" packed "\",\"shape\":" packed_shape                              \
    ",\"data_offsets\":[0," #packed_end "]},\"x_scale\":{\"dtype\":\"" scale                       \
    "\",\"shape\":" scale_shape ",\"data_offsets\":[" #packed_end "," #scale_end "]}}"

static void an_mxfp4_pair_is_one_matrix_low_nibble_first(void **state)
{
    const float magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const uint8_t e[4] = {128, 1, 0, 252};
    uint8_t data[68] = {0x12, 0x9f};
    float want[128] = {2, 1, -12, -1};
    struct checkpoint *c;

    (void)state;
    for (unsigned i = 2; i < 64; i++)
        data[i] = (uint8_t)(37 * i);
    memcpy(data + 64, e, 4);
    for (unsigned i = 0; i < 128; i++) {
        unsigned nibble = i & 1 ? data[i / 2] >> 4 : data[i / 2] & 15;
        float v = ldexpf(nibble & 8 ? -magnitude[nibble & 7] : magnitude[nibble], e[i / 32] - 127);

        if (i < 4)
            assert_true(want[i] == v);
        want[i] = e[i / 32] ? v : nibble & 8 ? -0.0f : 0.0f;
    }
    for (unsigned i8 = 0; i8 < 2; i8++) {
        write_shard(SINGLE,
                    i8 ? MXFP4_HEADER("I8", "[2,32]", 64, "U8", "[2,2]", 68)
                       : MXFP4_HEADER("U8", "[2,32]", 64, "U8", "[2,2]", 68),
                    data, sizeof(data));
        c = accept();
        assert_int_equal(checkpoint_n_tensors(c), 1);
        assert_string_equal(checkpoint_tensor(c, 0)->name, "x");
        assert_int_equal(checkpoint_tensor(c, 0)->dtype, SOURCE_MXFP4);
        assert_int_equal(checkpoint_tensor(c, 0)->dim[0], 2);
        assert_int_equal(checkpoint_tensor(c, 0)->dim[1], 64);
        assert_int_equal(checkpoint_tensor(c, 0)->cols, 64);
        reads_as(c, "x", 0, 2, want);
        reads_as(c, "x", 1, 1, want + 64);
        checkpoint_close(c);
    }
}

/* Two shards: x_packed and "v" in a, x_scale and "w" (fp8) with its scales in b. */
static void write_two_shards(void)
{
    uint8_t a[16 + 4] = {0x22}, b[1 + 1 + 4] = {127, 0x38};

    store_le32(a + 16, 0x40400000); /* 3 */
    store_le32(b + 2, 0x40000000);  /* 2 */
    write_shard("a.safetensors",
                "{\"x_packed\":{\"dtype\":\"U8\",\"shape\":[1,16],\"data_offsets\":[0,16]},"
                "\"v\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[16,20]}}",
                a, sizeof(a));
    write_shard("b.safetensors",
                "{\"x_scale\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[0,1]},"
                "\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1],\"data_offsets\":[1,2]},"
                "\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[2,6]}}",
                b, sizeof(b));
    write_text(INDEX, "{\"metadata\":{\"total_size\":26},\"weight_map\":{"
                      "\"x_packed\":\"a.safetensors\",\"x_scale\":\"b.safetensors\","
                      "\"v\":\"a.safetensors\",\"w\":\"b.safetensors\","
                      "\"w_scale_inv\":\"b.safetensors\"}}");
}

static void an_index_joins_shards_and_wins_over_a_single_file(void **state)
{
    const struct source_tensor *x;
    struct checkpoint *c;

    (void)state;
    write_two_shards();
    write_text(SINGLE, "not read");
    c = accept();
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_int_equal(checkpoint_n_shards(c), 2);
    assert_string_equal(checkpoint_shard(c, 1), "b.safetensors");
    x = checkpoint_find(c, "x");
    assert_non_null(x);
    assert_int_equal(x->shard, 0);
    assert_int_equal(x->scale_shard, 1);
    assert_null(checkpoint_find(c, "x_packed"));
    assert_null(checkpoint_find(c, "x_scale"));
    assert_null(checkpoint_find(c, "w_scale_inv"));
    reads_as(c, "x", 0, 1, (float[32]){1, 1});
    reads_as(c, "v", 0, 1, (float[]){3});
    reads_as(c, "w", 0, 1, (float[]){2});
    checkpoint_close(c);
}

static void what_the_index_does_not_list_is_left_out(void **state)
{
    struct checkpoint *c;

    (void)state;
    write_two_shards();
    write_text(INDEX, "{\"weight_map\":{\"v\":\"a.safetensors\"}}");
    c = accept();
    assert_int_equal(checkpoint_n_tensors(c), 1);
    checkpoint_close(c);
}

/* What is refused at open --------------------------------------------------------------------- */

static void what_is_not_a_checkpoint_is_refused(void **state)
{
    struct checkpoint *c;
    struct err e;

    (void)state;
    refuse(ERR_IO, "neither model.safetensors.index.json nor model.safetensors found");
    write_two_shards();
    unlinkat(dir_fd, "config.json", 0);
    refuse(ERR_IO, "config.json not found");
    write_text("config.json", "[]");
    refuse(ERR_FORMAT, "config.json: must be an object");
    write_text("config.json", "{");
    refuse(ERR_FORMAT, "config.json: JSON error");
    assert_int_equal(checkpoint_open(&c, "/nowhere/at/all", &e), ERR_IO);
    checkpoint_close(NULL);
}

static void block_sizes_are_two_positive_integers(void **state)
{
    static const char *const bad[] = {"[128]",         "[128,128,1]", "[0,128]", "[128,1.5]",
                                      "[128,1048577]", "[\"a\",1]",   "[]"};
    char text[128];

    (void)state;
    write_two_shards();
    for (unsigned i = 0; i < N_ELEMS(bad); i++) {
        snprintf(text, sizeof(text), "{\"quantization_config\":{\"weight_block_size\":%s}}",
                 bad[i]);
        write_text("config.json", text);
        refuse(ERR_FORMAT, "quantization_config.weight_block_size must be two integers");
    }
    write_text("config.json", "{\"quantization_config\":{\"weight_block_size\":128}}");
    refuse(ERR_FORMAT, "weight_block_size must be an array");
}

static void an_index_that_cannot_be_used_is_refused(void **state)
{
    static const char *const files[] = {"../a", "/etc/passwd", "a/b", "a\\\\b",
                                        "c:a",  ".hidden",     "",    "a\\u0001b"};
    char text[700];

    (void)state;
    write_text(INDEX, "[]");
    refuse(ERR_FORMAT, INDEX ": must be an object");
    write_text(INDEX, "{}");
    refuse(ERR_FORMAT, INDEX ": weight_map is absent");
    write_text(INDEX, "{\"weight_map\":[]}");
    refuse(ERR_FORMAT, INDEX ": weight_map must be an object");
    write_text(INDEX, "{\"weight_map\":{}}");
    refuse(ERR_FORMAT, "no tensor is listed");
    write_text(INDEX, "{\"weight_map\":{\"v\":\"a\",\"v\":\"a\"}}");
    refuse(ERR_FORMAT, "duplicate key \"v\"");
    write_text(INDEX, "{\"weight_map\":{\"v\":3}}");
    refuse(ERR_FORMAT, "v: \"(no string)\" is not a file name");
    for (unsigned i = 0; i < N_ELEMS(files); i++) {
        snprintf(text, sizeof(text), "{\"weight_map\":{\"v\":\"%s\"}}", files[i]);
        write_text(INDEX, text);
        refuse(ERR_FORMAT, "is not a file name inside the checkpoint");
    }
    write_text(INDEX, "{\"weight_map\":{\"\":\"a\"}}");
    refuse(ERR_FORMAT, "bad tensor name");
    write_text(INDEX, "{\"weight_map\":{\"a\\nb\":\"a\"}}");
    refuse(ERR_FORMAT, "bad tensor name \"a?b\"");
    snprintf(text, sizeof(text), "{\"weight_map\":{\"%0256d\":\"a\"}}", 0);
    write_text(INDEX, text);
    refuse(ERR_FORMAT, "bad tensor name");
}

static void a_tensor_that_is_not_in_its_shard_is_named(void **state)
{
    (void)state;
    write_two_shards();
    write_text(INDEX, "{\"weight_map\":{\"v\":\"a.safetensors\",\"u\":\"b.safetensors\"}}");
    refuse(ERR_FORMAT, "u: listed for b.safetensors but not there");
    write_text(INDEX, "{\"weight_map\":{\"v\":\"b.safetensors\"}}"); /* it is in the other one */
    refuse(ERR_FORMAT, "v: listed for b.safetensors but not there");
}

static void what_came_in_the_place_of_a_shard_is_no_safetensors_file(void **state)
{
    uint8_t head[16] = {0};

    (void)state;
    write_text(SINGLE, "<!DOCTYPE html><html><body>503</body></html>");
    refuse(ERR_FORMAT, SINGLE ": not a safetensors file (header length 5789751444030890300)");
    for (unsigned i = 0; i < 2; i++) {
        head[0] = (uint8_t)i;
        write_file(SINGLE, head, sizeof(head));
        refuse(ERR_FORMAT, i ? "(header length 1)" : "(header length 0)");
    }
    store_le64(head, (100 << 20) + 1);
    write_file(SINGLE, head, sizeof(head));
    refuse(ERR_FORMAT, "not a safetensors file (header length 104857601)");
    store_le64(head, UINT64_MAX);
    write_file(SINGLE, head, sizeof(head));
    refuse(ERR_FORMAT, "not a safetensors file");
    refuse_header(ERR_FORMAT,
                  SINGLE ": not a safetensors file (header length 4): header: JSON error", "{\"a\"",
                  0);
    refuse_header(ERR_FORMAT, "not a safetensors file (header length 2)", "[]", 0);
    refuse_header(ERR_FORMAT, "JSON error", "{} x", 0);
    refuse_header(ERR_FORMAT, "duplicate key \"a\"", "{\"a\":1,\"a\":1}", 0);
    refuse_header(ERR_FORMAT, "__metadata__ must be an object", "{\"__metadata__\":1}", 0);
    refuse_header(ERR_FORMAT, "__metadata__ must hold strings", "{\"__metadata__\":{\"a\":1}}", 0);
    refuse_header(ERR_FORMAT, "no tensor is listed", "{}", 0);
}

/* A shard of every shorter length: whatever was cut, the file and the cure are named. */
static void a_truncated_shard_is_named_with_both_sizes(void **state)
{
    char all[4096], words[64];
    ssize_t n;
    int fd;

    (void)state;
    write_two_shards();
    fd = openat(dir_fd, "b.safetensors", O_RDONLY | O_CLOEXEC);
    n = read(fd, all, sizeof(all));
    close(fd);
    assert_true(n > 100);
    for (ssize_t cut = 0; cut < n; cut++) {
        write_file("b.safetensors", all, (size_t)cut);
        snprintf(words, sizeof(words), "b.safetensors: %zd bytes, header needs ", cut);
        refuse(ERR_IO, words);
        refuse(ERR_IO, "; finish the download first");
    }
    snprintf(words, sizeof(words), "header needs %zd;", n);
    write_file("b.safetensors", all, (size_t)n - 1);
    refuse(ERR_IO, words);
    write_file("b.safetensors", all, (size_t)n);
    checkpoint_close(accept());
}

#define TENSOR(dtype, shape, offsets)                                                              \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void a_tensor_that_does_not_fit_its_place_is_refused(void **state)
{
    (void)state;
    refuse_header(ERR_FORMAT, SINGLE ": \"t\" occupies bytes 0...8, shape needs 12",
                  TENSOR("F32", "[3]", "[0,8]"), 16);
    refuse_header(ERR_FORMAT, "\"t\" occupies bytes 8...4, shape needs 4",
                  TENSOR("F32", "[1]", "[8,4]"), 16);
    refuse_header(ERR_FORMAT, "\"t\" occupies bytes -4...0, shape needs 4",
                  TENSOR("F32", "[1]", "[-4,0]"), 16);
    refuse_header(ERR_IO, "header needs", TENSOR("F32", "[1]", "[1000,1004]"), 16);
    refuse_header(ERR_FORMAT, "data_offsets must be two integers", TENSOR("F32", "[1]", "[0]"), 4);
    refuse_header(ERR_FORMAT, "data_offsets must be two integers", TENSOR("F32", "[1]", "null"), 4);
    refuse_header(ERR_FORMAT, "data_offsets must be two integers", TENSOR("F32", "[1]", "[0,4.5]"),
                  4);
    refuse_header(ERR_FORMAT, "data_offsets must be two integers",
                  TENSOR("F32", "[1]", "[0,9223372036854775807]"), 4);
    refuse_header(ERR_FORMAT, "\"t\" must be an object", "{\"t\":[]}", 0);
    refuse_header(ERR_FORMAT, "bad tensor name", "{\"\":[]}", 0);
    refuse_header(ERR_FORMAT, SINGLE ": \"a\" and \"b\" overlap",
                  "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
                  "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                  16);
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    refuse_header(ERR_UNSUPPORTED, "t: 0 dimensions are not supported",
                  TENSOR("F32", "[]", "[0,4]"), 4);
    refuse_header(ERR_UNSUPPORTED, "t: 5 dimensions are not supported",
                  TENSOR("F32", "[1,1,1,1,1]", "[0,4]"), 4);
    refuse_header(ERR_FORMAT, "t: shape is absent", TENSOR("F32", "null", "[0,4]"), 4);
    refuse_header(ERR_FORMAT, "dimension 0 of its shape is impossible",
                  TENSOR("F32", "[0]", "[0,0]"), 4);
    refuse_header(ERR_FORMAT, "dimension 1 of its shape is impossible",
                  TENSOR("F32", "[1,-1]", "[0,4]"), 4);
    refuse_header(ERR_FORMAT, "dimension 0 of its shape is impossible",
                  TENSOR("F32", "[1.5]", "[0,4]"), 4);
    refuse_header(ERR_FORMAT, "dimension 0 of its shape is impossible",
                  TENSOR("F32", "[2147483648]", "[0,4]"), 4);
    refuse_header(ERR_FORMAT, "dimension 2 of its shape is impossible", /* 2^64 bytes are 0 */
                  TENSOR("F32", "[1073741824,1073741824,4]", "[0,0]"), 4);
}

static void other_dtypes_are_refused_by_name(void **state)
{
    (void)state;
    refuse_header(ERR_UNSUPPORTED, "t: dtype I32 is not supported", TENSOR("I32", "[1]", "[0,4]"),
                  4);
    refuse_header(ERR_UNSUPPORTED, "dtype F8_E8M0 is not supported",
                  TENSOR("F8_E8M0", "[1]", "[0,1]"), 4);
    refuse_header(ERR_UNSUPPORTED, "t: dtype U8 is not supported", TENSOR("U8", "[1]", "[0,1]"), 4);
    refuse_header(ERR_UNSUPPORTED, "t: dtype I8 is not supported", TENSOR("I8", "[1]", "[0,1]"), 4);
    refuse_header(ERR_UNSUPPORTED, "dtype a?b is not supported", TENSOR("a\\nb", "[1]", "[0,1]"),
                  4);
    refuse_header(ERR_UNSUPPORTED, "t: dtype (absent) is not supported", "{\"t\":{}}", 4);
    refuse_header(ERR_FORMAT, "t.dtype must be a string", "{\"t\":{\"dtype\":3}}", 4);
}

static void fp8_without_its_scales_is_refused(void **state)
{
    (void)state;
    refuse_header(ERR_FORMAT, "t: t_scale_inv is missing", TENSOR("F8_E4M3", "[1,1]", "[0,1]"), 4);
    refuse_header(ERR_FORMAT, "t: t_scale_inv is missing", TENSOR("F8_E5M2", "[1,1]", "[0,1]"), 4);
    refuse_header(ERR_UNSUPPORTED, "t: F8_E4M3 of 1 dimensions is not supported",
                  TENSOR("F8_E4M3", "[1]", "[0,1]"), 4);
    refuse_header(ERR_FORMAT, "w: w_scale_inv is [3,1], expected [3,2] for blocks [128,128]",
                  FP8_SHAPE("F8_E4M3", 300, 129, 38700, "[3,1]", 38712), 38712);
    refuse_header(ERR_FORMAT, "w: w_scale_inv is [4], expected [2,2]",
                  FP8_SHAPE("F8_E4M3", 129, 129, 16641, "[4]", 16657), 16657);
    refuse_header(ERR_UNSUPPORTED, "w: dtype BF16 of w_scale_inv is not supported",
                  "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1],\"data_offsets\":[0,1]},"
                  "\"w_scale_inv\":{\"dtype\":\"BF16\",\"shape\":[1,1],\"data_offsets\":[1,3]}}",
                  3);
    refuse_header(ERR_FORMAT, "w: is missing, w_scale_inv is there",
                  "{\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}",
                  4);
    refuse_header(ERR_FORMAT, "w: is BF16, yet w_scale_inv is there",
                  FP8_SHAPE("BF16", 1, 1, 2, "[1,1]", 6), 6);
}

static void halves_of_an_mxfp4_pair_that_do_not_fit_are_refused(void **state)
{
    static const char two[] = "x: _packed [2,32] and _scale ";
    char words[96];

    (void)state;
    snprintf(words, sizeof(words), "%s[2,1] do not describe one matrix", two);
    refuse_header(ERR_FORMAT, words, MXFP4_HEADER("U8", "[2,32]", 64, "U8", "[2,1]", 66), 66);
    snprintf(words, sizeof(words), "%s[1,2] do not describe one matrix", two);
    refuse_header(ERR_FORMAT, words, MXFP4_HEADER("U8", "[2,32]", 64, "U8", "[1,2]", 66), 66);
    snprintf(words, sizeof(words), "%s[4] do not describe one matrix", two);
    refuse_header(ERR_FORMAT, words, MXFP4_HEADER("U8", "[2,32]", 64, "U8", "[4]", 68), 68);
    refuse_header(ERR_FORMAT, "x: _packed [2,24] and _scale [2,2] do not describe one matrix",
                  MXFP4_HEADER("U8", "[2,24]", 48, "U8", "[2,2]", 52), 52);
    refuse_header(ERR_UNSUPPORTED, "x_scale: dtype I8 is not supported",
                  MXFP4_HEADER("U8", "[1,16]", 16, "I8", "[1,1]", 17), 17);
    refuse_header(ERR_UNSUPPORTED, "x_packed: dtype BF16 is not supported",
                  MXFP4_HEADER("BF16", "[1,16]", 32, "U8", "[1,1]", 33), 33);
    refuse_header(ERR_FORMAT, "x: _packed [1,16] and _scale (missing) do not describe one matrix",
                  "{\"x_packed\":{\"dtype\":\"U8\",\"shape\":[1,16],\"data_offsets\":[0,16]}}", 16);
    refuse_header(ERR_FORMAT, "x: _packed (missing) and _scale [1,1] do not describe one matrix",
                  "{\"x_scale\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[0,1]}}", 1);
    refuse_header(ERR_FORMAT, "x: is there twice, once packed",
                  "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[17,21]},"
                  "\"x_packed\":{\"dtype\":\"U8\",\"shape\":[1,16],\"data_offsets\":[0,16]},"
                  "\"x_scale\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[16,17]}}",
                  21);
}

static void floats_named_like_halves_are_tensors(void **state)
{
    const float data[2] = {1, 2};
    struct checkpoint *c;

    (void)state;
    write_shard(SINGLE,
                "{\"logit_scale\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                "\"y_packed\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                data, sizeof(data));
    c = accept();
    assert_int_equal(checkpoint_n_tensors(c), 2);
    reads_as(c, "logit_scale", 0, 1, data);
    reads_as(c, "y_packed", 0, 1, data + 1);
    checkpoint_close(c);
}

/* What a download and a conversion leave behind -------------------------------------------------
 */

static void an_absent_or_unverified_shard_is_an_error(void **state)
{
    (void)state;
    write_two_shards();
    write_text(".download-state", "a.safetensors\n");
    refuse(ERR_IO, "b.safetensors: not verified yet");
    write_text(".download-state", "a.safetensors\r\n\nxb.safetensors\nb.safetensor");
    refuse(ERR_IO, "b.safetensors: not verified yet");
    write_text(".download-state", "");
    refuse(ERR_IO, "a.safetensors: not verified yet");
    write_text(".download-state", "b.safetensors\r\na.safetensors");
    checkpoint_close(accept());
    unlinkat(dir_fd, "b.safetensors", 0); /* which the state still vouches for */
    refuse(ERR_IO, "b.safetensors: not found; finish the download first");
}

static void tensors_of_a_reclaimed_shard_are_listed_and_not_read(void **state)
{
    struct checkpoint *c;

    (void)state;
    write_two_shards();
    write_text(".download-state", "a.safetensors\nb.safetensors\n");
    write_text(".reclaimed", "b.safetensors\n");
    c = accept(); /* in the ledger and not yet gone: it is there */
    assert_true(checkpoint_shard_present(c, 1));
    checkpoint_close(c);
    unlinkat(dir_fd, "b.safetensors", 0);
    c = accept();
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_true(checkpoint_shard_present(c, 0));
    assert_false(checkpoint_shard_present(c, 1));
    reads_as(c, "v", 0, 1, (float[]){3});
    assert_int_equal(checkpoint_find(c, "x")->cols, 32); /* known: the payload is still there */
    assert_int_equal(checkpoint_find(c, "x")->scale_shard, 1);
    read_fails(c, "x", 0, 1, ERR_IO, "x: its shard b.safetensors was reclaimed");
    assert_int_equal(checkpoint_find(c, "w")->rank, 0);
    read_fails(c, "w", 0, 0, ERR_IO, "w: its shard b.safetensors was reclaimed");
    checkpoint_close(c);

    write_two_shards();
    write_text(".reclaimed", "a.safetensors\n");
    unlinkat(dir_fd, "a.safetensors", 0);
    c = accept();
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_int_equal(checkpoint_find(c, "x")->rank, 0);
    assert_int_equal(checkpoint_find(c, "x")->scale_shard, 1);
    reads_as(c, "w", 0, 1, (float[]){2});
    checkpoint_close(c);
}

static void a_state_file_that_is_none_is_refused(void **state)
{
    static char big[(1 << 20) + 1];

    (void)state;
    write_two_shards();
    memset(big, 'x', sizeof(big));
    write_file(".reclaimed", big, sizeof(big));
    refuse(ERR_LIMIT, ".reclaimed: 1048577 bytes, it may have 1048576");
    unlinkat(dir_fd, ".reclaimed", 0);
    assert_int_equal(mkdirat(dir_fd, ".reclaimed", 0700), 0);
    refuse(ERR_IO, ".reclaimed: not a regular file");
    unlinkat(dir_fd, ".reclaimed", AT_REMOVEDIR);
}

/* What is refused while reading -----------------------------------------------------------------
 */

static void a_value_that_is_not_finite_is_named_by_its_place(void **state)
{
    static const struct {
        const char *dtype;
        unsigned bytes;
        uint32_t bad[3];
    } types[] = {{"F32", 4, {0x7f800000, 0xff800000, 0x7fc00001}},
                 {"F16", 2, {0x7c00, 0xfc00, 0x7c01}},
                 {"BF16", 2, {0x7f80, 0xff80, 0x7fff}}};
    enum { COLS = 70 };
    char header[128], words[64];
    uint8_t data[2 * COLS * 4];
    struct checkpoint *c;

    (void)state;
    for (unsigned i = 0; i < N_ELEMS(types); i++)
        for (unsigned j = 0; j < 3 * COLS; j++) {
            unsigned n = types[i].bytes, col = j % COLS;

            memset(data, 0, sizeof(data));
            for (unsigned b = 0; b < n; b++)
                data[(COLS + col) * n + b] = (uint8_t)(types[i].bad[j / COLS] >> 8 * b);
            snprintf(header, sizeof(header), TENSOR("%s", "[2,70]", "[0,%u]"), types[i].dtype,
                     2 * COLS * n);
            write_shard(SINGLE, header, data, 2 * COLS * (size_t)n);
            snprintf(words, sizeof(words), "t: non-finite value at [1][%u]", col);
            c = accept();
            read_fails(c, "t", 0, 2, ERR_CORRUPT, words);
            read_fails(c, "t", 1, 1, ERR_CORRUPT, words);
            reads_as(c, "t", 0, 1, (float[COLS]){0});
            checkpoint_close(c);
        }
    store_le32(data, 0x7f800000);
    write_shard(SINGLE, TENSOR("F32", "[1]", "[0,4]"), data, 4);
    c = accept();
    read_fails(c, "t", 0, 1, ERR_CORRUPT, "t: non-finite value at [0]");
    checkpoint_close(c);
}

static void a_scale_that_is_not_finite_is_named_by_its_place(void **state)
{
    const uint8_t nan = 255, most = 254;
    uint8_t data[68] = {0};
    struct checkpoint *c;

    (void)state;
    data[2 + 4 + 2] = 0x80; /* scale [1][0] = inf */
    data[2 + 4 + 3] = 0x7f;
    write_text("config.json", "{\"quantization_config\":{\"weight_block_size\":[1,1]}}");
    write_shard(SINGLE, FP8_SHAPE("F8_E4M3", 2, 1, 2, "[2,1]", 10), data, 10);
    c = accept();
    reads_as(c, "w", 0, 1, (float[]){0});
    read_fails(c, "w", 0, 2, ERR_CORRUPT, "w_scale_inv: non-finite value at [1][0]");
    read_fails(c, "w", 1, 1, ERR_CORRUPT, "w_scale_inv: non-finite value at [1][0]");
    checkpoint_close(c);

    data[0] = 0x7e; /* 448 * 2^127 */
    store_le32(data + 2, 0x7f000000);
    write_shard(SINGLE, FP8_SHAPE("F8_E4M3", 2, 1, 2, "[2,1]", 10), data, 10);
    c = accept();
    read_fails(c, "w", 0, 1, ERR_CORRUPT, "w: non-finite value at [0][0]");
    checkpoint_close(c);

    memset(data, 0, sizeof(data));
    data[67] = nan;
    write_shard(SINGLE, MXFP4_HEADER("U8", "[2,32]", 64, "U8", "[2,2]", 68), data, 68);
    c = accept();
    reads_as(c, "x", 0, 1, (float[64]){0});
    read_fails(c, "x", 0, 2, ERR_CORRUPT, "x_scale: non-finite value at [1][1]");
    read_fails(c, "x", 1, 1, ERR_CORRUPT, "x_scale: non-finite value at [1][1]");
    checkpoint_close(c);

    data[67] = most;
    data[63] = 0x70; /* 6 * 2^127 in the last column */
    write_shard(SINGLE, MXFP4_HEADER("U8", "[2,32]", 64, "U8", "[2,2]", 68), data, 68);
    c = accept();
    read_fails(c, "x", 1, 1, ERR_CORRUPT, "x: non-finite value at [1][63]");
    checkpoint_close(c);
}

static void a_shard_truncated_after_open_fails_the_read(void **state)
{
    struct checkpoint *c;

    (void)state;
    write_two_shards();
    c = accept();
    for (unsigned i = 0; i < 2; i++) {
        int fd = openat(dir_fd, i ? "a.safetensors" : "b.safetensors", O_WRONLY | O_CLOEXEC);

        assert_int_equal(ftruncate(fd, 20), 0);
        close(fd);
    }
    read_fails(c, "v", 0, 1, ERR_IO, "v: a.safetensors");
    read_fails(c, "x", 0, 1, ERR_IO, "x: b.safetensors");
    read_fails(c, "w", 0, 1, ERR_IO, "w: b.safetensors");
    checkpoint_close(c);
}

static void memory_that_is_refused_fails_the_open_and_the_read(void **state)
{
    struct checkpoint *c = NULL;
    float row[32];
    struct err e;
    int code;

    (void)state;
    write_two_shards();
    write_text(".reclaimed", "c\n");
    for (unsigned nth = 1, failed = 1; failed; nth++) {
        alloc_fault_arm(nth);
        code = checkpoint_open(&c, dir, &e);
        failed = alloc_fault_disarm();
        assert_int_equal(code, failed ? ERR_NOMEM : 0);
        assert_true(!failed || !c);
    }
    alloc_fault_arm(1);
    code = checkpoint_read(c, checkpoint_find(c, "x"), 0, 1, row, &e);
    assert_true(alloc_fault_disarm());
    assert_int_equal(code, ERR_NOMEM);
    reads_as(c, "x", 0, 1, (float[32]){1, 1});
    checkpoint_close(c);
}

#define T(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(plain_types_are_widened_exactly_in_any_rank),
        T(an_fp8_value_is_multiplied_by_the_scale_of_its_block),
        T(every_fp8_byte_has_its_value_or_is_refused),
        T(a_default_block_is_128_by_128_and_partial_blocks_count),
        T(an_mxfp4_pair_is_one_matrix_low_nibble_first),
        T(an_index_joins_shards_and_wins_over_a_single_file),
        T(what_the_index_does_not_list_is_left_out),
        T(what_is_not_a_checkpoint_is_refused),
        T(block_sizes_are_two_positive_integers),
        T(an_index_that_cannot_be_used_is_refused),
        T(a_tensor_that_is_not_in_its_shard_is_named),
        T(what_came_in_the_place_of_a_shard_is_no_safetensors_file),
        T(a_truncated_shard_is_named_with_both_sizes),
        T(a_tensor_that_does_not_fit_its_place_is_refused),
        T(impossible_shapes_are_refused),
        T(other_dtypes_are_refused_by_name),
        T(fp8_without_its_scales_is_refused),
        T(halves_of_an_mxfp4_pair_that_do_not_fit_are_refused),
        T(floats_named_like_halves_are_tensors),
        T(an_absent_or_unverified_shard_is_an_error),
        T(tensors_of_a_reclaimed_shard_are_listed_and_not_read),
        T(a_state_file_that_is_none_is_refused),
        T(a_value_that_is_not_finite_is_named_by_its_place),
        T(a_scale_that_is_not_finite_is_named_by_its_place),
        T(a_shard_truncated_after_open_fails_the_read),
        T(memory_that_is_refused_fails_the_open_and_the_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
