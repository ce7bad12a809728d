/* The delta rule: each level against the definition spelled out, and what it must do. */
#include <math.h>
#include <string.h>

#include "tests/kernels/check.h"

static const struct delta_shape shapes[] = {
    {2, 16, 16}, {3, 128, 128}, {2, 7, 200}, {1, 33, 5}, {4, 1, 1},
};
static const uint32_t n_tokens[] = {1, 2, 3, 5, 16};

struct delta_case {
    struct delta_shape shape;
    uint32_t T;
    size_t keys, values, state; /* floats of q, k, d; of v, o; of the state */
    float *q, *k, *d, *v, *beta, *from;
};

static struct delta_case random_case(const struct delta_shape *m, uint32_t T, enum fill kind)
{
    struct delta_case c = {.shape = *m, .T = T};

    c.keys = (size_t)T * m->heads * m->key;
    c.values = (size_t)T * m->heads * m->value;
    c.state = (size_t)m->heads * m->key * m->value;
    c.q = check_new(c.keys * sizeof(float));
    c.k = check_new(c.keys * sizeof(float));
    c.d = check_new(c.keys * sizeof(float));
    c.v = check_new(c.values * sizeof(float));
    c.beta = check_new((size_t)T * m->heads * sizeof(float));
    c.from = check_new(c.state * sizeof(float));
    check_fill(c.q, c.keys, FILL_PLAIN);
    check_fill(c.k, c.keys, FILL_PLAIN);
    check_fill(c.d, c.keys, FILL_PLAIN);
    check_fill(c.v, c.values, kind);
    check_fill(c.beta, (size_t)T * m->heads, FILL_PLAIN);
    check_fill(c.from, c.state, FILL_PLAIN);
    for (size_t i = 0; i < c.keys; i++)
        c.d[i] = i % 13 ? fabsf(c.d[i]) : 0x1p-140f;
    for (size_t i = 0; i < c.keys; i++)
        c.k[i] = c.k[i] / (float)m->key;
    return c;
}

static void spelled(const struct delta_case *c, float *o, float *s, uint32_t h)
{
    const uint32_t H = c->shape.heads, K = c->shape.key, V = c->shape.value;

    memcpy(s + (size_t)h * K * V, c->from + (size_t)h * K * V, (size_t)K * V * sizeof(float));
    s += (size_t)h * K * V;
    for (uint32_t t = 0; t < c->T; t++)
        for (uint32_t v = 0; v < V; v++) {
            const size_t at = ((size_t)t * H + h) * K, ov = ((size_t)t * H + h) * V + v;
            float p = 0, u, out = 0;

            for (uint32_t i = 0; i < K; i++)
                p = fmaf(c->k[at + i], c->d[at + i] * s[i * V + v], p);
            u = c->beta[t * H + h] * (c->v[ov] - p);
            for (uint32_t i = 0; i < K; i++) {
                s[i * V + v] = fmaf(c->k[at + i], u, c->d[at + i] * s[i * V + v]);
                out = fmaf(c->q[at + i], s[i * V + v], out);
            }
            o[ov] = out;
        }
}

static void call(const struct kernels *k, const struct delta_case *c, float *o, float *to,
                 const float *from, uint32_t t, uint32_t n, uint32_t h0, uint32_t h1)
{
    const size_t keys = (size_t)c->shape.heads * c->shape.key;
    const size_t values = (size_t)c->shape.heads * c->shape.value;

    k->delta_heads(o + t * values, to, from, c->q + t * keys, c->k + t * keys, c->v + t * values,
                   c->d + t * keys, c->beta + t * c->shape.heads, n, &c->shape, h0, h1);
}

static void heads_match_their_definition(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(shapes); s++)
        for (unsigned n = 0; n < N_ELEMS(n_tokens); n++)
            for (enum fill kind = 0; kind < FILLS; kind++) {
                struct delta_case c = random_case(&shapes[s], n_tokens[n], kind);
                const uint32_t h0 = c.shape.heads > 2, h1 = c.shape.heads;
                float *o = check_guarded(c.values), *to = check_guarded(c.state);

                for (uint32_t h = h0; h < h1; h++)
                    spelled(&c, o, to, h);
                for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                    float *got_o = check_guarded(c.values), *got = check_guarded(c.state);

                    call(&k, &c, got_o, got, c.from, 0, c.T, h0, h1);
                    check_same_guarded(got_o, o, c.values, k.name);
                    check_same_guarded(got, to, c.state, k.name);
                }
                check_free();
            }
}

static void in_place_and_token_by_token_give_the_same_bits(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(shapes); s++)
        for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
            struct delta_case c = random_case(&shapes[s], 5, FILL_PLAIN);
            const uint32_t H = c.shape.heads;
            float *o = check_guarded(c.values), *to = check_guarded(c.state);
            float *got_o = check_guarded(c.values), *got = check_guarded(c.state);

            call(&k, &c, o, to, c.from, 0, 5, 0, H);
            memcpy(got, c.from, c.state * sizeof(float));
            for (uint32_t t = 0; t < 5; t++)
                call(&k, &c, got_o, got, got, t, 1, 0, H);
            check_same_guarded(got_o, o, c.values, k.name);
            check_same_guarded(got, to, c.state, k.name);
            check_free();
        }
}

static void without_beta_and_decay_the_state_stays(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        struct delta_case c = random_case(&shapes[1], 3, FILL_PLAIN);
        float *o = check_guarded(c.values), *to = check_guarded(c.state);

        for (size_t n = 0; n < c.keys; n++)
            c.d[n] = 1;
        memset(c.beta, 0, 3 * c.shape.heads * sizeof(float));
        call(&k, &c, o, to, c.from, 0, 3, 0, c.shape.heads);
        check_same(to, c.from, c.state, k.name);
        check_free();
    }
}

/* With beta 1, no decay and the same unit key again and again, the state answers v for k. */
static void a_repeated_key_recalls_its_value(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        struct delta_case c = random_case(&shapes[1], 4, FILL_PLAIN);
        const uint32_t H = c.shape.heads, K = c.shape.key, V = c.shape.value;
        float *o = check_guarded(c.values), *to = check_guarded(c.state);

        for (uint32_t n = 0; n < 4 * H; n++) {
            k.l2norm(c.k + (size_t)n % H * K, K, 0, 1);
            memcpy(c.k + (size_t)n * K, c.k + (size_t)(n % H) * K, K * sizeof(float));
            memcpy(c.q + (size_t)n * K, c.k + (size_t)(n % H) * K, K * sizeof(float));
            memcpy(c.v + (size_t)n * V, c.v + (size_t)(n % H) * V, V * sizeof(float));
            c.beta[n] = 1;
        }
        for (size_t n = 0; n < c.keys; n++)
            c.d[n] = 1;
        call(&k, &c, o, to, c.from, 0, 4, 0, H);
        for (uint32_t n = 0; n < H * V; n++)
            assert_true(fabsf(o[3 * H * V + n] - c.v[n]) < 1e-5f);
        check_free();
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_match_their_definition),
        cmocka_unit_test(in_place_and_token_by_token_give_the_same_bits),
        cmocka_unit_test(without_beta_and_decay_the_state_stays),
        cmocka_unit_test(a_repeated_key_recalls_its_value),
    };

    return check_run(argc, argv, "check_delta", tests, N_ELEMS(tests));
}
