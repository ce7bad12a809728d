/* nextuse.c - the page whose next use is expected to be farthest away leaves.
 *
 * Groups of pages are visited in turn, a cycle after the other, so a page's next use is as far away
 * as its group's next visit, and then as many cycles more as pass without it, where p is the chance
 * that a visit asks for the page. p is learned while running, in two steps, each a table whose
 * cells count the visits that found a page in them and those that used it:
 *
 *   habit  from how many visits ago the page was used last, and from a count of its uses that
 *          decays with every visit
 *   p      from the habit, and from what the cycles did that asked for the same pages as this one
 *          has so far: the share of them, weighted by how alike they are, that used the page
 *
 * A page that is guessed for its group's next visit has a cell of its own. It is an LFRU whose
 * weight between frequency and recency is learned and not chosen. */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "storage/history.h"

/* Buckets begin after these ages, and at these counts and chances. */
static const uint16_t age_after[] = {1, 2, 3, 5, 9, 17, 33};
static const float count_from[] = {0.1f, 0.2f, 0.4f, 0.6f, 0.8f, 1, 1.3f,
                                   1.6f, 2,    2.5f, 3.2f, 4,    5, 7};
static const float habit_from[] = {0.005f, 0.01f, 0.02f, 0.035f, 0.06f, 0.1f,
                                   0.15f,  0.22f, 0.32f, 0.45f,  0.6f};
static const float alike_from[] = {0.002f, 0.01f, 0.02f, 0.05f, 0.1f, 0.2f, 0.35f, 0.5f, 0.7f};

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum {
    N_AGES = N_ELEMS(age_after) + 1,
    N_COUNTS = N_ELEMS(count_from) + 1,
    N_HABITS = N_ELEMS(habit_from) + 1,
    N_ALIKES = N_ELEMS(alike_from) + 1,
    CYCLES = 256, /* remembered */
    HORIZON = 4,  /* cycles looked ahead */
    AGE_MAX = UINT16_MAX,
};

static const float count_decay = 0.97f; /* a visit */
static const float p_least = 1e-5f;
static const double mean_at_first = 0.05, guess_at_first = 0.75;
static const float alike_least = 1e-6f;  /* what a cycle counts that has nothing in common */
static const double forget_at = 1 << 24; /* visits of pages, after which older ones count half */

struct cell {
    double visits, uses;
};

struct use_page {
    float count;  /* of uses, decayed */
    uint16_t age; /* visits that began since its last use; AGE_MAX: not used yet */
    uint16_t group;
    bool met;                         /* the last visit of its group found it, in the cells below */
    bool used;                        /* and that visit used it */
    bool guessed;                     /* for its group's next visit */
    struct cell *habit_cell, *p_cell; /* habit_cell NULL: p_cell is the guesses' */
    float away;                       /* visits until its next use, */
    uint64_t judged;                  /* as of this visit; 0: not known */
    uint32_t next, prev;              /* in its group */
    uint64_t cycle[CYCLES / 64];      /* a bit each: whether it used the page */
};

struct use_group {
    uint32_t first;   /* page */
    uint64_t visited; /* number of its last visit; 0: never */
    uint64_t cycle;   /* and of the cycle */
    float wait;       /* visits until its next one */
};

struct nextuse {
    struct policy policy;
    unsigned n_frames, n_groups, n_files;
    uint16_t *group_of; /* [n_files] */
    struct history history;
    struct use_page *page;   /* [history.n_max] */
    struct use_group *group; /* [n_groups] */
    unsigned n_visited;      /* groups that were, at least once: the length of a cycle */
    unsigned now;            /* the group that is visited */
    uint64_t visit, cycle;   /* their numbers; 0: none yet */
    unsigned n_turns;        /* groups that this cycle has visited */
    struct {
        uint32_t asked;  /* pages that it asked for */
        uint32_t common; /* that this cycle asked for, too */
        float weight;    /* how alike they are; of this cycle itself 0 */
    } past[CYCLES];
    float weights; /* their sum */
    struct cell habit[N_AGES][N_COUNTS], p[N_HABITS][N_ALIKES], guess, all;
};

static void nextuse_close(struct policy *p)
{
    struct nextuse *x = (struct nextuse *)p;

    if (!x)
        return;
    free(x->group);
    free(x->page);
    history_release(&x->history);
    free(x->group_of);
    free(x);
}

static bool nextuse_alloc(struct nextuse *x, const struct policy_known *known)
{
    uint32_t n_max = history_size(x->n_frames, known);

    x->n_files = known->n_files ? known->n_files : 1;
    x->group_of = calloc(x->n_files, sizeof(*x->group_of));
    if (!x->group_of)
        return false;
    for (unsigned i = 0; i < x->n_files; i++) {
        x->group_of[i] = known->group ? known->group[i] : (uint16_t)i;
        if (x->group_of[i] >= x->n_groups)
            x->n_groups = x->group_of[i] + 1u;
    }
    x->page = calloc(n_max, sizeof(*x->page));
    x->group = calloc(x->n_groups, sizeof(*x->group));
    return history_init(&x->history, x->n_frames, n_max) && x->page && x->group;
}

static int nextuse_open(struct policy **out, unsigned n_frames, uint64_t seed,
                        const struct policy_known *known, struct err *e)
{
    struct nextuse *x;

    (void)seed;
    if (known->n_files > UINT16_MAX)
        return err_set(e, ERR_ARG, "policy nextuse: %u files, at most %d are possible",
                       known->n_files, UINT16_MAX);
    x = calloc(1, sizeof(*x));
    if (x)
        x->n_frames = n_frames;
    if (!x || !nextuse_alloc(x, known)) {
        nextuse_close((struct policy *)x);
        return err_set(e, ERR_NOMEM, "policy nextuse: %u frames", n_frames);
    }
    x->policy.ops = &policy_nextuse;
    for (unsigned g = 0; g < x->n_groups; g++)
        x->group[g].first = NO_PAGE;
    *out = &x->policy;
    return 0;
}

static unsigned bucket(const float *from, unsigned n, float v)
{
    unsigned i = 0;

    while (i < n && v >= from[i])
        i++;
    return i;
}

static struct cell *habit_cell(struct nextuse *x, const struct use_page *u)
{
    unsigned a = 0;

    while (a < N_AGES - 1 && u->age > age_after[a])
        a++;
    return &x->habit[a][bucket(count_from, N_COUNTS - 1, u->count)];
}

static struct cell *p_cell(struct nextuse *x, float habit, float alike)
{
    return &x->p[bucket(habit_from, N_HABITS - 1, habit)][bucket(alike_from, N_ALIKES - 1, alike)];
}

/* The ratio that a cell has seen, or what is thought before it has seen much. */
static float ratio(const struct cell *c, double before, double weight)
{
    double p = (c->uses + weight * before) / (c->visits + weight);

    return p > p_least ? (float)p : p_least;
}

/* The weighted share of the cycles before this one that used the page. A group that this cycle has
 * visited is next visited by the one after it: then what came after those cycles is asked. */
static float alike(const struct nextuse *x, const struct use_page *u)
{
    unsigned later = x->group[u->group].cycle == x->cycle;
    float sum = 0;

    for (unsigned w = 0; w < CYCLES / 64; w++)
        for (uint64_t bits = u->cycle[w]; bits; bits &= bits - 1) {
            unsigned slot = w * 64 + (unsigned)__builtin_ctzll(bits);

            sum += x->past[(slot - later) % CYCLES].weight;
        }
    return x->weights > 0 ? sum / x->weights : 0;
}

/* What the tables say: p, and the cells that it comes from. A guess stands above habit. */
static float chance(struct nextuse *x, const struct use_page *u, struct cell **habit_from_cell,
                    struct cell **p_from_cell)
{
    float habit;

    if (u->guessed) {
        *habit_from_cell = NULL;
        *p_from_cell = &x->guess;
        return ratio(&x->guess, guess_at_first, 4);
    }
    *habit_from_cell = habit_cell(x, u);
    habit = ratio(*habit_from_cell, ratio(&x->all, mean_at_first, 1), 1);
    *p_from_cell = p_cell(x, habit, alike(x, u));
    return ratio(*p_from_cell, habit, 2);
}

/* Cycles that pass without a use, of the next HORIZON. Pages whose use is farther away are alike:
 * neither stays that long. */
static float idle_cycles(float p)
{
    float idle = 1, sum = 0;

    for (unsigned i = 0; i < HORIZON; i++) {
        idle *= 1 - p;
        sum += idle;
    }
    return sum;
}

static void judge(struct nextuse *x, struct use_page *u)
{
    struct cell *habit, *p;
    float idle = idle_cycles(chance(x, u, &habit, &p));

    u->away = x->group[u->group].wait + idle * (float)x->n_visited;
    u->judged = x->visit;
}

static void learn(struct nextuse *x, const struct use_page *u)
{
    struct cell *c[] = {u->p_cell, u->habit_cell, &x->all};

    for (unsigned i = 0; i < (u->habit_cell ? N_ELEMS(c) : 1); i++) {
        c[i]->visits++;
        c[i]->uses += u->used;
    }
}

static void forget_half(struct nextuse *x)
{
    struct cell *c[] = {&x->habit[0][0], &x->p[0][0], &x->guess, &x->all};
    unsigned n[] = {N_AGES * N_COUNTS, N_HABITS * N_ALIKES, 1, 1};

    for (unsigned i = 0; i < N_ELEMS(c); i++)
        for (unsigned k = 0; k < n[i]; k++) {
            c[i][k].visits /= 2;
            c[i][k].uses /= 2;
        }
}

static void visit_ends(struct nextuse *x)
{
    for (uint32_t n = x->group[x->now].first; n != NO_PAGE; n = x->page[n].next) {
        struct use_page *u = &x->page[n];

        if (u->met)
            learn(x, u);
        u->met = u->used = u->guessed = false;
        u->judged = 0;
    }
    if (x->all.visits > forget_at)
        forget_half(x);
}

/* The page gets older with every visit; demanded() makes up for it when the visit uses it. */
static void visit_meets(struct nextuse *x, struct use_page *u)
{
    chance(x, u, &u->habit_cell, &u->p_cell);
    u->met = true;
    u->judged = 0;
    u->count *= count_decay;
    u->age += u->age < AGE_MAX;
}

static void cycle_begins(struct nextuse *x)
{
    unsigned slot = ++x->cycle % CYCLES;

    for (uint32_t n = 0; n < x->history.n; n++) /* the cycle that had the slot is forgotten */
        x->page[n].cycle[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    for (unsigned i = 0; i < CYCLES; i++)
        x->past[i].common = 0;
    x->past[slot].asked = 0;
    x->n_turns = 0;
}

/* The square of the cosine between two cycles as sets of pages, squared once more, so that the few
 * that are much alike outweigh the many that are little. Of this one only a part is known. */
static void weigh_cycles(struct nextuse *x)
{
    unsigned slot = x->cycle % CYCLES;
    float whole = (float)x->n_visited / (float)(x->n_turns ? x->n_turns : 1);

    x->weights = 0;
    for (unsigned i = 0; i < CYCLES; i++) {
        float common = (float)x->past[i].common, cos2;

        x->past[i].weight = 0;
        if (i == slot || !x->past[i].asked)
            continue;
        cos2 = x->past[slot].asked ? common * common * whole /
                                         ((float)x->past[i].asked * (float)x->past[slot].asked)
                                   : 0;
        x->past[i].weight = cos2 * cos2 + alike_least;
        x->weights += x->past[i].weight;
    }
}

static void visit_begins(struct nextuse *x, unsigned group)
{
    if (x->visit)
        visit_ends(x);
    if (!x->visit || x->group[group].cycle == x->cycle)
        cycle_begins(x);
    weigh_cycles(x);
    for (uint32_t n = x->group[group].first; n != NO_PAGE; n = x->page[n].next)
        visit_meets(x, &x->page[n]);
    x->now = group;
    x->visit++;
    x->n_turns++;
    x->n_visited += !x->group[group].visited;
    x->group[group].visited = x->visit;
    x->group[group].cycle = x->cycle;
    for (unsigned g = 0; g < x->n_groups; g++) {
        uint64_t due = x->group[g].visited + x->n_visited;

        x->group[g].wait = due > x->visit ? (float)(due - x->visit) : 1;
    }
}

/* A page asked for twice is asked for in two visits: so a cycle of one group has visits, too. */
static void demanded(struct nextuse *x, struct use_page *u)
{
    unsigned slot;

    if (!x->visit || u->group != x->now || u->used)
        visit_begins(x, u->group);
    slot = x->cycle % CYCLES;
    for (unsigned w = 0; w < CYCLES / 64; w++)
        for (uint64_t bits = u->cycle[w]; bits; bits &= bits - 1)
            x->past[w * 64 + (unsigned)__builtin_ctzll(bits)].common++;
    u->cycle[slot / 64] |= UINT64_C(1) << (slot % 64);
    x->past[slot].asked++;
    u->used = true;
    u->count += 1;
    u->age = 1;
    u->judged = 0;
}

static void join_group(struct nextuse *x, uint32_t n, uint16_t group)
{
    struct use_page *u = &x->page[n];

    *u = (struct use_page){
        .age = AGE_MAX, .group = group, .next = x->group[group].first, .prev = NO_PAGE};
    if (u->next != NO_PAGE)
        x->page[u->next].prev = n;
    x->group[group].first = n;
}

static void leave_group(struct nextuse *x, uint32_t n)
{
    struct use_page *u = &x->page[n];

    *(u->prev != NO_PAGE ? &x->page[u->prev].next : &x->group[u->group].first) = u->next;
    if (u->next != NO_PAGE)
        x->page[u->next].prev = u->prev;
}

static void nextuse_loaded(struct policy *p, unsigned frame, struct extent at, enum hint kind)
{
    struct nextuse *x = (struct nextuse *)p;
    uint32_t n_before = x->history.n, n;
    bool is_new;

    n = history_loaded(&x->history, frame, at, &is_new);
    if (is_new) {
        if (x->history.n == n_before) /* somebody else's number */
            leave_group(x, n);
        join_group(x, n, x->group_of[at.file < x->n_files ? at.file : 0]);
    }
    if (kind == HINT_SURE) {
        demanded(x, &x->page[n]);
        return;
    }
    x->page[n].guessed = kind == HINT_GUESS;
    x->page[n].judged = 0;
}

static void nextuse_used(struct policy *p, unsigned frame)
{
    struct nextuse *x = (struct nextuse *)p;

    demanded(x, &x->page[x->history.of_frame[frame]]);
}

static unsigned nextuse_victim(struct policy *p, const uint64_t *free_to_go)
{
    struct nextuse *x = (struct nextuse *)p;
    unsigned last = x->n_frames;
    float farthest = -1;

    for (unsigned base = 0; base < x->n_frames; base += 64)
        for (uint64_t bits = free_to_go[base / 64]; bits; bits &= bits - 1) {
            unsigned f = base + (unsigned)__builtin_ctzll(bits);
            struct use_page *u = &x->page[x->history.of_frame[f]];

            if (u->judged != x->visit)
                judge(x, u);
            if (u->away > farthest) {
                farthest = u->away;
                last = f;
            }
        }
    assert(last < x->n_frames);
    return last;
}

const struct policy_ops policy_nextuse = {
    .name = "nextuse",
    .open = nextuse_open,
    .loaded = nextuse_loaded,
    .used = nextuse_used,
    .victim = nextuse_victim,
    .close = nextuse_close,
};
