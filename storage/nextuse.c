/* nextuse.c - the page whose next use is expected to be farthest away leaves.
 *
 * Groups of pages are visited in turn, so a page's next use is as far away as its group's next
 * visit, and then 1/p - 1 cycles more, where p is the chance that a visit asks for the page. What p
 * depends on is learned while running: from how many visits ago the page was used last, and from a
 * count of its uses that decays with every visit. Both are put into buckets; each cell of that
 * table counts the visits that found a page in it and those that used the page, and p is their
 * ratio. A page that is guessed for its group's next visit has a cell of its own.
 *
 * It is an LFRU whose weight between frequency and recency is learned and not chosen. */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "storage/history.h"

/* Buckets begin after these ages and at these counts. */
static const uint16_t age_after[] = {1, 2, 3, 5, 9, 17, 33};
static const float count_from[] = {0.1f, 0.3f, 0.6f, 1, 1.6f, 2.5f, 4};

enum {
    N_AGES = sizeof(age_after) / sizeof(age_after[0]) + 1,
    N_COUNTS = sizeof(count_from) / sizeof(count_from[0]) + 1,
    GUESSED = N_AGES * N_COUNTS, /* the cell of pages that were guessed */
    N_CELLS,
    NEW = N_CELLS, /* nothing is known: it has not met a visit yet */
    AGE_MAX = UINT16_MAX,
};

static const float count_decay = 0.97f;   /* a visit */
static const double prior_visits = 1;     /* a cell's ratio begins as the mean of all, */
static const double prior_mean = 0.05;    /* and that mean as this, */
static const double prior_guessed = 0.75; /* except where a guess was made */
static const double forget_at = 1 << 24;  /* visits of pages, after which older ones count half */

struct use_page {
    float count;  /* of uses, decayed */
    uint16_t age; /* visits that began since its last use; AGE_MAX: not used yet */
    uint16_t group;
    uint8_t cell, was;   /* now, and when the last visit of its group began */
    bool used;           /* in this visit of its group */
    uint32_t next, prev; /* in its group */
};

struct use_group {
    uint32_t first;   /* page */
    uint64_t visited; /* number of its last visit; 0: never */
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
    uint64_t visit;          /* its number; 0: none yet */
    struct {
        double visits, uses;
    } cell[N_CELLS], all;
    float cycles[N_CELLS]; /* that pass without a use, expected, as visits */
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

static void expect(struct nextuse *x);

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
    expect(x);
    *out = &x->policy;
    return 0;
}

static uint8_t cell_of(const struct use_page *u)
{
    unsigned a = 0, c = 0;

    while (a < N_AGES - 1 && u->age > age_after[a])
        a++;
    while (c < N_COUNTS - 1 && u->count >= count_from[c])
        c++;
    return (uint8_t)(a * N_COUNTS + c);
}

/* What the table says, as visits that pass before the one that uses a page of this cell. */
static void expect(struct nextuse *x)
{
    double mean = (x->all.uses + prior_mean) / (x->all.visits + 1);

    for (unsigned c = 0; c < N_CELLS; c++) {
        double before = c == GUESSED ? prior_guessed : mean;
        double p = (x->cell[c].uses + prior_visits * before) / (x->cell[c].visits + prior_visits);

        x->cycles[c] = (float)((1 / p - 1) * x->n_visited);
    }
}

static void learn(struct nextuse *x, unsigned cell, bool used)
{
    x->cell[cell].visits++;
    x->cell[cell].uses += used;
    x->all.visits++;
    x->all.uses += used;
}

static void forget_half(struct nextuse *x)
{
    for (unsigned c = 0; c < N_CELLS; c++) {
        x->cell[c].visits /= 2;
        x->cell[c].uses /= 2;
    }
    x->all.visits /= 2;
    x->all.uses /= 2;
}

static void visit_ends(struct nextuse *x)
{
    for (uint32_t n = x->group[x->now].first; n != NO_PAGE; n = x->page[n].next) {
        struct use_page *u = &x->page[n];

        if (!u->used && u->was != NEW)
            learn(x, u->was, false);
        u->used = false;
    }
    if (x->all.visits > forget_at)
        forget_half(x);
}

/* Until it turns out that the visit uses them, it passes them over. */
static void pass_over(struct nextuse *x, unsigned group)
{
    for (uint32_t n = x->group[group].first; n != NO_PAGE; n = x->page[n].next) {
        struct use_page *u = &x->page[n];

        u->was = u->cell;
        u->count *= count_decay;
        u->age += u->age < AGE_MAX;
        u->cell = cell_of(u);
    }
}

static void visit_begins(struct nextuse *x, unsigned group)
{
    if (x->visit)
        visit_ends(x);
    pass_over(x, group);
    x->now = group;
    x->visit++;
    x->n_visited += !x->group[group].visited;
    x->group[group].visited = x->visit;
    for (unsigned g = 0; g < x->n_groups; g++) {
        uint64_t due = x->group[g].visited + x->n_visited;

        x->group[g].wait = due > x->visit ? (float)(due - x->visit) : 1;
    }
    expect(x);
}

/* A page asked for twice is asked for in two visits: so a cycle of one group has visits, too. */
static void demanded(struct nextuse *x, struct use_page *u)
{
    if (!x->visit || u->group != x->now || u->used)
        visit_begins(x, u->group);
    if (u->was != NEW)
        learn(x, u->was, true);
    u->used = true;
    u->count += 1;
    u->age = 1;
    u->cell = cell_of(u);
}

static void join_group(struct nextuse *x, uint32_t n, uint16_t group)
{
    struct use_page *u = &x->page[n];

    *u = (struct use_page){.age = AGE_MAX,
                           .group = group,
                           .cell = NEW,
                           .was = NEW,
                           .next = x->group[group].first,
                           .prev = NO_PAGE};
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
    x->page[n].cell = GUESSED;
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
            const struct use_page *u = &x->page[x->history.of_frame[f]];
            float away = x->group[u->group].wait + x->cycles[u->cell];

            if (away > farthest) {
                farthest = away;
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
