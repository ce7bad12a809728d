/* embed.c - the engine inside a host that has something else to do.
 *
 *     ./embed MODEL PROMPT [TOKENS [SECONDS]]
 *
 * A worker thread owns the context and makes every call that is not marked "any thread"; the host's
 * own thread looks at the progress ten times a second, and cancels after so many SECONDS or on
 * Ctrl-C. A pass that is cancelled never happened, so that what was written stands, and the host
 * goes on.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <waste.h>

struct job {
    const char *model, *prompt;
    unsigned n_tokens;
    _Atomic(waste_ctx *) ctx; /* NULL before it is open and after it is closed */
    atomic_bool stop, done;
    pthread_mutex_t closing; /* whoever calls from another thread holds it: then ctx stays */
    waste_status status;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* While opening there is no context yet that could be asked or cancelled: this is called instead,
 * on the worker's thread, at most every 100 ms. */
static int on_progress(const waste_progress *p, void *user)
{
    struct job *job = user;

    if (p->phase == 1 && p->total)
        fprintf(stderr, "\rloading %3.0f %%", 100.0 * (double)p->done / (double)p->total);
    return atomic_load(&job->stop); /* anything but 0 cancels */
}

static void on_log(int level, const char *text, void *user)
{
    (void)user;
    if (level <= 1)
        fprintf(stderr, "\n%s: %s\n", level ? "warning" : "error", text);
}

static int on_token(const waste_token_info *info, const char *piece, void *user)
{
    struct job *job = user;

    (void)info;
    fputs(piece, stdout);
    fflush(stdout);
    return atomic_load(&job->stop);
}

static waste_status run(struct job *job, waste_ctx *ctx)
{
    int32_t ids[1024];
    size_t n;
    waste_gen_params params;
    waste_status st = waste_tokenize(ctx, job->prompt, 0, ids, 1024, &n);

    waste_gen_params_init(&params);
    params.max_tokens = job->n_tokens;
    if (st == WASTE_OK)
        st = waste_generate(ctx, ids, n, &params, on_token, job);
    if (st != WASTE_OK)
        fprintf(stderr, "\n%s\n", waste_error_detail(ctx));
    return st;
}

static void *work(void *arg)
{
    struct job *job = arg;
    waste_ctx *ctx;
    waste_opts opts;

    waste_opts_init(&opts);
    opts.progress = on_progress;
    opts.log = on_log;
    opts.user = job;
    job->status = waste_open_ex(job->model, NULL, &opts, &ctx);
    if (job->status != WASTE_OK) {
        fprintf(stderr, "\n%s\n", waste_error_detail(NULL)); /* of this thread */
    } else {
        atomic_store(&job->ctx, ctx);
        job->status = run(job, ctx);
        pthread_mutex_lock(&job->closing);
        atomic_store(&job->ctx, NULL);
        pthread_mutex_unlock(&job->closing);
        waste_close(ctx);
    }
    atomic_store(&job->done, true);
    return NULL;
}

/* From the host's thread: what the worker is at, and the wish that it stop. */
static void watch(struct job *job)
{
    waste_progress p = {.size = sizeof(p)};
    waste_ctx *ctx;

    pthread_mutex_lock(&job->closing);
    ctx = atomic_load(&job->ctx);
    if (ctx) {
        waste_progress_get(ctx, &p);
        if (atomic_load(&job->stop))
            waste_cancel(ctx);
    }
    pthread_mutex_unlock(&job->closing);
    if (p.phase == 2)
        fprintf(stderr, "\rprompt %llu/%llu", (unsigned long long)p.done,
                (unsigned long long)p.total);
}

/* strtoull alone would take -3, for a very large number, and 12x for 12. */
static int number(uint64_t *out, const char *text, uint64_t least, uint64_t most)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *out >= least && *out <= most)
        return 0;
    fprintf(stderr, "%s: not a number from %" PRIu64 " to %" PRIu64 "\n", text, least, most);
    return 2;
}

static int real(double *out, const char *text)
{
    char *end;

    *out = strtod(text, &end);
    if (*text && !*end && *out >= 0 && *out <= DBL_MAX)
        return 0;
    fprintf(stderr, "%s: not a number from 0 up\n", text);
    return 2;
}

int main(int argc, char **argv)
{
    const struct timespec tick = {.tv_nsec = 100000000};
    struct job job = {.closing = PTHREAD_MUTEX_INITIALIZER};
    uint64_t n_tokens = 64;
    double seconds = 0; /* no end */
    pthread_t worker;

    if (argc < 3 || argc > 5)
        return fprintf(stderr, "usage: %s MODEL PROMPT [TOKENS [SECONDS]]\n", argv[0]), 2;
    if ((argc > 3 && number(&n_tokens, argv[3], 1, UINT32_MAX)) ||
        (argc > 4 && real(&seconds, argv[4])))
        return 2;
    job.model = argv[1];
    job.prompt = argv[2];
    job.n_tokens = (unsigned)n_tokens;
    signal(SIGINT, on_signal);
    if (pthread_create(&worker, NULL, work, &job))
        return fprintf(stderr, "no thread\n"), 1;
    for (unsigned ticks = 0; !atomic_load(&job.done); ticks++) {
        nanosleep(&tick, NULL); /* what the host does meanwhile */
        if (interrupted || (seconds > 0 && ticks * 0.1 >= seconds))
            atomic_store(&job.stop, true);
        watch(&job);
    }
    pthread_join(worker, NULL);
    putchar('\n');
    if (job.status == WASTE_E_CANCELLED)
        fprintf(stderr, "cancelled\n");
    return job.status == WASTE_OK ? 0 : job.status == WASTE_E_CANCELLED ? 130 : 1;
}
