#include "tests/kernels/check.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/half.h"

enum { MARGIN = 64, KEEP_MAX = 4096 };

static uint64_t seed, state;
static void *keep[KEEP_MAX];
static unsigned n_keep;

int check_run(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t n)
{
    seed = (uint64_t)time(NULL);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0);
        else {
            fprintf(stderr, "usage: %s [--seed N]\n", argv[0]);
            return 2;
        }
    }
    state = seed;
    printf("# %s: seed %llu, levels", name, (unsigned long long)seed);
    for (unsigned i = 0; i < 4; i++) {
        struct kernels k;

        if (!check_level(i, PROFILE_F32, &k))
            break;
        printf(" %s", k.name);
    }
    printf("\n");
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}

bool check_level(unsigned i, enum profile profile, struct kernels *k)
{
    static const char *const name[] = {"c", "avx2", "avx512", "neon"};

    for (unsigned l = 0; l < N_ELEMS(name); l++) {
        unsigned cpu;
        struct err e;

        assert_int_equal(cpu_level(&cpu, name[l], &e), 0);
        kernels_init(k, cpu & cpu_detect(), profile);
        if (strcmp(k->name, name[l]) == 0 && i-- == 0)
            return true;
    }
    return false;
}

/* splitmix64 */
uint32_t check_random(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static float wild(void)
{
    uint32_t u = check_random();

    if (u % 16 == 0)
        return u & 16 ? 0.0f : -0.0f;
    return bits_to_f32((u & 0x807fffffu) | check_random() % 167 << 23);
}

void check_fill(float *x, size_t n, enum fill kind)
{
    static const uint32_t odd[] = {0x7fc00000u, 0x7f800000u, 0xff800000u};

    for (size_t i = 0; i < n; i++)
        x[i] = kind == FILL_WILD ? wild() : (float)(int32_t)check_random() * 0x1p-31f;
    if (kind == FILL_NONFINITE && n)
        x[check_random() % n] = bits_to_f32(odd[check_random() % 3]);
}

void *check_new(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);

    if (n_keep == KEEP_MAX || !p)
        abort();
    keep[n_keep++] = p;
    return memset(p, 0, bytes);
}

void check_free(void)
{
    while (n_keep)
        free(keep[--n_keep]);
}

float *check_guarded(size_t n)
{
    size_t bytes = (n + 2 * MARGIN) * sizeof(float);
    float *p = check_new(bytes);

    memset(p, 0xa5, bytes);
    return p + MARGIN;
}

void check_same(const float *got, const float *want, size_t n, const char *level)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t g = f32_to_bits(got[i]), w = f32_to_bits(want[i]);

        if (g == w || (got[i] != got[i] && want[i] != want[i]))
            continue;
        fail_msg("%s: element %zu of %zu is %08X (%g), wanted %08X (%g); seed %llu", level, i, n, g,
                 (double)got[i], w, (double)want[i], (unsigned long long)seed);
    }
}

void check_same_guarded(const float *got, const float *want, size_t n, const char *level)
{
    check_same(got - MARGIN, want - MARGIN, n + 2 * MARGIN, level);
}

static int code_bias(int fmt)
{
    return fmt == FMT_Q8G ? 0 : fmt == FMT_Q4G ? 8 : 4;
}

void check_set_code(const struct tensor *w, uint32_t r, uint32_t c, int q)
{
    uint8_t *row = (uint8_t *)w->data + r * w->row_bytes;
    unsigned field = (unsigned)(q + code_bias(w->fmt));

    if (w->fmt == FMT_Q8G)
        row[c] = (uint8_t)field;
    else if (w->fmt == FMT_Q4G)
        row[c / 2] = (uint8_t)((row[c / 2] & (c & 1 ? 0x0f : 0xf0)) | field << 4 * (c & 1));
    else
        for (unsigned b = 0; b < 3; b++) {
            unsigned bit = 3 * c + b;

            row[bit / 8] =
                (uint8_t)((row[bit / 8] & ~(1u << bit % 8)) | (field >> b & 1) << bit % 8);
        }
}

int check_code(const struct tensor *w, uint32_t r, uint32_t c)
{
    const uint8_t *row = w->data + r * w->row_bytes;
    unsigned bit = 3 * c;

    if (w->fmt == FMT_Q8G)
        return (int8_t)row[c];
    if (w->fmt == FMT_Q4G)
        return (row[c / 2] >> 4 * (c & 1) & 15) - 8;
    return ((row[bit / 8] | row[bit / 8 + 1] << 8) >> bit % 8 & 7) - 4;
}

static int code_of_kind(int fmt, enum codes kind)
{
    static const int lowest[] = {[FMT_Q8G] = -128, [FMT_Q4G] = -8, [FMT_Q3G] = -4};
    int low = lowest[fmt], high = -low - 1;

    if (kind == CODES_RANDOM)
        return low + (int)(check_random() % (unsigned)(high - low + 1));
    return kind == CODES_LOWEST ? low : high;
}

struct tensor check_tensor(int fmt, uint32_t rows, uint32_t cols, enum codes codes,
                           uint16_t scale_lo, uint16_t scale_hi)
{
    struct tensor w = {.fmt = fmt, .rows = rows, .cols = cols};
    uint16_t *scale;

    if (fmt == FMT_F32) {
        float *data = check_new((size_t)rows * cols * sizeof(float));

        w.row_bytes = cols * sizeof(float);
        w.data = (const uint8_t *)data;
        check_fill(data, (size_t)rows * cols, FILL_PLAIN);
        return w;
    }
    w.groups = (cols + FORMAT_GROUP - 1) / FORMAT_GROUP;
    w.row_bytes = fmt == FMT_Q8G   ? w.groups * 128
                  : fmt == FMT_Q4G ? w.groups * 64
                                   : w.groups * 48 + 1;
    w.data = check_new(rows * w.row_bytes);
    w.scale = scale = check_new((size_t)rows * w.groups * sizeof(*scale));
    for (uint32_t i = 0; i < rows * w.groups; i++)
        scale[i] = (uint16_t)(scale_lo + check_random() % (scale_hi - scale_lo + 1u));
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < w.groups * FORMAT_GROUP; c++)
            check_set_code(&w, r, c, c < cols ? code_of_kind(fmt, codes) : 0);
    return w;
}

float check_fold(const float *lane, unsigned n)
{
    float a[16];

    memcpy(a, lane, n * sizeof(float));
    for (unsigned half = n / 2; half; half /= 2)
        for (unsigned l = 0; l < half; l++)
            a[l] = a[l] + a[l + half];
    return a[0];
}
