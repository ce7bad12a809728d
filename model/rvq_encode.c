#include "model/rvq_encode.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

enum {
    DIM = FORMAT_VEC_DIM,
    STAGES = FORMAT_STAGES_MAX,
    ENTRIES = FORMAT_ENTRIES_MAX,
    CHUNK = 256, /* vectors of a row that are encoded together */
    SHARES = 64, /* what is added up is added within a share first, whatever the threads */
    SEEDS = 64,  /* vectors per entry that initial centres are chosen from */
    ALIGN = 64,
};

/* Lloyd stops when an iteration takes less than this off the error. */
static const double converged = 1e-4;

/* ---- codebooks ---- */

/* What the vectors of one share add up to. */
struct share {
    double sum[ENTRIES][DIM];
    uint32_t count[ENTRIES];
    double total; /* of squares or of scores */
    int rc;
};

struct fit {
    const struct rvq_fit *f;
    const struct kernels *k;
    struct team *team;
    float *x; /* [n][8] */
    size_t n, per_share;
    unsigned shares;
    uint64_t random; /* state of the generator */
    float *book;     /* of this stage: [entries][8] */
    float bias[ENTRIES];

    struct share *share; /* [SHARES] */
    float *score;        /* [n]: of the nearest entry */
    uint8_t *index;      /* [n]: the nearest entry */
    float *seed;         /* what centres are chosen from: [][8], then a distance of each */
};

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Centres are chosen among these; a sample is enough, Lloyd sees all of them. */
static size_t seed_count(const struct rvq_fit *f, size_t n)
{
    size_t most = (size_t)SEEDS * f->entries;

    return n < most ? n : most;
}

size_t rvq_fit_scratch_bytes(const struct rvq_fit *f, size_t n)
{
    return ALIGN + align_up(SHARES * sizeof(struct share)) + align_up(n * sizeof(float)) +
           align_up(n) + seed_count(f, n) * (DIM + 1) * sizeof(float);
}

static void fit_init(struct fit *t, void *scratch)
{
    char *at = (char *)scratch + (ALIGN - (uintptr_t)scratch % ALIGN) % ALIGN;

    t->share = (struct share *)(void *)at;
    at += align_up(SHARES * sizeof(struct share));
    t->score = (float *)(void *)at;
    at += align_up(t->n * sizeof(float));
    t->index = (uint8_t *)at;
    t->seed = (float *)(void *)(at + align_up(t->n));
    t->per_share = (t->n + SHARES - 1) / SHARES;
    t->shares = (unsigned)((t->n + t->per_share - 1) / t->per_share);
    t->random = t->f->seed;
}

static size_t share_begin(const struct fit *t, unsigned i)
{
    size_t at = i * t->per_share;

    return at < t->n ? at : t->n;
}

/* The kernels count vectors in 32 bits. */
static uint32_t share_count(const struct fit *t, unsigned i)
{
    return (uint32_t)(share_begin(t, i + 1) - share_begin(t, i));
}

static double total(const struct fit *t)
{
    double sum = 0;

    for (unsigned i = 0; i < t->shares; i++)
        sum += t->share[i].total;
    return sum;
}

/* splitmix64: uniform in [0, 1). */
static double uniform(struct fit *t)
{
    uint64_t z = t->random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* As the kernels want it: struct assign_book. */
static void biases(float *bias, const float *book, uint32_t entries)
{
    for (uint32_t e = 0; e < entries; e++, book += DIM) {
        float sum = book[0] * book[0];

        for (unsigned d = 1; d < DIM; d++)
            sum = sum + book[d] * book[d];
        bias[e] = -0.5f * sum;
    }
}

static void check_shares(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct fit *t = arg;

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        const float *x = t->x + share_begin(t, i) * DIM;
        float most = t->k->largest(x, share_count(t, i) * DIM);

        t->share[i].rc = most < 0x1p15f ? 0 : ERR_CORRUPT; /* NaN is largest as well */
    }
}

static int vectors_check(struct fit *t, struct err *e)
{
    team_for(t->team, t->shares, 1, check_shares, t);
    for (unsigned i = 0; i < t->shares; i++)
        if (t->share[i].rc)
            return err_set(e, ERR_CORRUPT,
                           "codebooks: a vector of [%zu, %zu) is not finite or not normalised",
                           share_begin(t, i), share_begin(t, i + 1));
    return 0;
}

/* The k-th of m vectors, evenly spread over all n. */
static const float *seed_at(const struct fit *t, size_t k, size_t m)
{
    return t->x + (size_t)((double)k * (double)t->n / (double)m) * DIM;
}

/* One of m, with probability proportional to its distance from the centres so far. */
static size_t draw(struct fit *t, const float *d2, size_t m)
{
    double sum = 0, left;
    size_t last = 0;

    for (size_t i = 0; i < m; i++)
        sum += (double)d2[i];
    left = uniform(t) * sum;
    for (size_t i = 0; i < m; i++) {
        if (d2[i] <= 0)
            continue;
        last = i;
        left -= (double)d2[i];
        if (left < 0)
            break;
    }
    return last;
}

/* k-means++ (Arthur, Vassilvitskii 2007). */
static void choose_centres(struct fit *t)
{
    size_t m = seed_count(t->f, t->n), at = (size_t)(uniform(t) * (double)m);
    float *d2 = t->seed + m * DIM;

    for (size_t i = 0; i < m; i++) {
        memcpy(t->seed + i * DIM, seed_at(t, i, m), DIM * sizeof(float));
        d2[i] = INFINITY;
    }
    for (unsigned c = 0; c < t->f->entries; c++) {
        float *centre = t->book + c * DIM;

        memcpy(centre, t->seed + at * DIM, DIM * sizeof(float));
        t->k->assign_closer(d2, t->seed, centre, (uint32_t)m);
        at = draw(t, d2, m);
    }
}

static void assign_shares(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct fit *t = arg;
    struct assign_book b = {t->book, t->bias, t->f->entries};

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        struct share *s = &t->share[i];
        size_t at = share_begin(t, i), end = share_begin(t, i + 1);

        t->k->assign_nearest(t->index + at, t->score + at, t->x + at * DIM, share_count(t, i), &b);
        memset(s, 0, sizeof(*s));
        for (; at < end; at++) {
            const float *x = t->x + at * DIM;
            double *sum = s->sum[t->index[at]];

            for (unsigned d = 0; d < DIM; d++)
                sum[d] += (double)x[d];
            s->count[t->index[at]]++;
            s->total += (double)t->score[at];
        }
    }
}

static void square_shares(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct fit *t = arg;

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        const float *x = t->x + share_begin(t, i) * DIM;

        t->share[i].total = 0;
        for (size_t j = 0; j < (size_t)share_count(t, i) * DIM; j++)
            t->share[i].total += (double)x[j] * (double)x[j];
    }
}

static double distance(const float *a, const float *b)
{
    double sum = 0;

    for (unsigned d = 0; d < DIM; d++)
        sum += ((double)a[d] - (double)b[d]) * ((double)a[d] - (double)b[d]);
    return sum;
}

/* The vector farthest from the entry it was assigned to; it is then no longer far from anything. */
static const float *take_farthest(struct fit *t, const float *assigned)
{
    size_t far = 0;
    double most = 0;

    for (size_t i = 0; i < t->n; i++) {
        double d =
            t->score[i] == INFINITY ? 0 : distance(t->x + i * DIM, assigned + t->index[i] * DIM);

        if (d > most) {
            most = d;
            far = i;
        }
    }
    if (most == 0)
        return NULL;
    t->score[far] = INFINITY;
    return t->x + far * DIM;
}

/* Centres from their vectors. */
static void move_centres(struct fit *t)
{
    float before[ENTRIES * DIM];
    bool none_far = false;

    memcpy(before, t->book, t->f->entries * DIM * sizeof(float));
    for (unsigned c = 0; c < t->f->entries; c++) {
        float *centre = t->book + c * DIM;
        double sum[DIM] = {0};
        size_t count = 0;

        for (unsigned i = 0; i < t->shares; i++) {
            for (unsigned d = 0; d < DIM; d++)
                sum[d] += t->share[i].sum[c][d];
            count += t->share[i].count[c];
        }
        if (count) {
            for (unsigned d = 0; d < DIM; d++)
                centre[d] = (float)(sum[d] / (double)count);
        } else if (!none_far) {
            const float *far = take_farthest(t, before);

            if (far)
                memcpy(centre, far, DIM * sizeof(float));
            none_far = !far;
        }
    }
}

static void lloyd(struct fit *t)
{
    double squares, error, before = INFINITY;

    team_for(t->team, t->shares, 1, square_shares, t);
    squares = total(t);
    for (unsigned i = 0; i < t->f->iterations; i++) {
        biases(t->bias, t->book, t->f->entries);
        team_for(t->team, t->shares, 1, assign_shares, t);
        move_centres(t);
        error = squares - 2 * total(t);
        if (i && before - error <= converged * before)
            break;
        before = error;
    }
}

static void leave_shares(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct fit *t = arg;
    struct assign_book b = {t->book, t->bias, t->f->entries};

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        size_t at = share_begin(t, i), end = share_begin(t, i + 1);

        t->k->assign_nearest(t->index + at, t->score + at, t->x + at * DIM, share_count(t, i), &b);
        for (; at < end; at++)
            for (unsigned d = 0; d < DIM; d++)
                t->x[at * DIM + d] -= t->book[t->index[at] * DIM + d];
    }
}

static void fit_stage(struct fit *t, float *book)
{
    t->book = book;
    choose_centres(t);
    lloyd(t);
    for (unsigned i = 0; i < t->f->entries * DIM; i++)
        book[i] = half_to_f32(f32_to_half(book[i]));
    biases(t->bias, book, t->f->entries);
    team_for(t->team, t->shares, 1, leave_shares, t);
}

int rvq_fit_books(const struct rvq_fit *f, float *vectors, size_t n, float *books, void *scratch,
                  const struct kernels *k, struct team *team, struct err *e)
{
    struct fit t = {.f = f, .k = k, .team = team, .x = vectors, .n = n};
    unsigned fp;
    int rc;

    if (f->stages < 1 || f->stages > STAGES || f->entries < 1 || f->entries > ENTRIES)
        return err_set(e, ERR_ARG, "codebooks: %u stages of %u entries: 1...%d of 1...%d",
                       f->stages, f->entries, STAGES, ENTRIES);
    if (n < 1 || n > (size_t)1 << 32)
        return err_set(e, ERR_ARG, "codebooks: %zu vectors: 1...2^32", n);
    fit_init(&t, scratch);
    fp = fp_begin();
    rc = vectors_check(&t, e);
    for (unsigned s = 0; s < f->stages && !rc; s++)
        fit_stage(&t, books + (size_t)s * f->entries * DIM);
    fp_end(fp);
    return rc;
}

/* ---- matrices ---- */

static uint32_t positions(const struct record_layout *l, enum matrix m)
{
    return record_cols(l, m) / DIM;
}

/* The cell of a row's first position, and what lies between two positions of it. */
static size_t cell_offset(const struct record_layout *l, enum matrix m, uint32_t row)
{
    size_t block = row / FORMAT_INDEX_BLOCK;

    return (block * positions(l, m) * FORMAT_INDEX_BLOCK + row % FORMAT_INDEX_BLOCK) *
           l->cell_bytes;
}

static size_t cell_stride(const struct record_layout *l)
{
    return (size_t)FORMAT_INDEX_BLOCK * l->cell_bytes;
}

/* entry[stage][CHUNK] into n cells. */
static void store_cells(uint8_t *cell, const uint8_t *entry, uint32_t n,
                        const struct record_layout *l)
{
    const size_t stride = cell_stride(l);

    for (uint32_t v = 0; v < n; v++, cell += stride, entry++) {
        if (l->index_bits == 6) {
            uint32_t word = entry[0] | (uint32_t)entry[CHUNK] << 6 |
                            (uint32_t)entry[2 * CHUNK] << 12 | (uint32_t)entry[3 * CHUNK] << 18;

            cell[0] = (uint8_t)word;
            cell[1] = (uint8_t)(word >> 8);
            cell[2] = (uint8_t)(word >> 16);
            continue;
        }
        for (uint32_t s = 0; s < l->stages; s++)
            cell[s] = entry[s * CHUNK];
    }
}

static uint32_t load_entry(const uint8_t *cell, uint32_t s, const struct record_layout *l)
{
    uint32_t word;

    if (l->index_bits == 8)
        return cell[s];
    word = cell[0] | (uint32_t)cell[1] << 8 | (uint32_t)cell[2] << 16;
    return word >> (6 * s) & 63;
}

void rvq_encode_rows(uint8_t *index, uint16_t *scale, const float *w, const float *books,
                     const struct record_layout *l, enum matrix m, uint32_t r0, uint32_t r1,
                     const struct kernels *k)
{
    const uint32_t cols = record_cols(l, m), n = positions(l, m);
    struct assign_book book[STAGES];
    float bias[STAGES * ENTRIES];
    uint8_t entry[STAGES * CHUNK];
    unsigned fp = fp_begin();

    biases(bias, books, l->stages * l->entries);
    for (uint32_t s = 0; s < l->stages; s++)
        book[s] = (struct assign_book){books + (size_t)s * l->entries * DIM, bias + s * l->entries,
                                       l->entries};
    for (uint32_t r = r0; r < r1; r++) {
        const float *row = w + (size_t)r * cols;
        uint8_t *cell = index + cell_offset(l, m, r);
        float a = k->largest(row, cols);

        a = a < 1e-8f ? 1e-8f : a; /* NaN stays, and makes a scale that readers refuse */
        scale[r] = f32_to_half(a);
        for (uint32_t v = 0; v < n; v += CHUNK) {
            uint32_t here = n - v < CHUNK ? n - v : CHUNK;

            k->assign_stages(entry, CHUNK, row + (size_t)v * DIM, a, here, book, l->stages);
            store_cells(cell + v * cell_stride(l), entry, here, l);
        }
    }
    fp_end(fp);
}

void rvq_decode_row(float *out, const uint8_t *index, const uint16_t *scale, const float *books,
                    const struct record_layout *l, enum matrix m, uint32_t r)
{
    const uint8_t *cell = index + cell_offset(l, m, r);
    float a = half_to_f32(scale[r]);

    for (uint32_t v = 0; v < positions(l, m); v++, cell += cell_stride(l), out += DIM) {
        float sum[DIM] = {0};

        for (uint32_t s = 0; s < l->stages; s++) {
            const float *c = books + ((size_t)s * l->entries + load_entry(cell, s, l)) * DIM;

            for (unsigned d = 0; d < DIM; d++)
                sum[d] = sum[d] + c[d];
        }
        for (unsigned d = 0; d < DIM; d++)
            out[d] = sum[d] * a;
    }
}
