/* Synthetic containers: the same bytes however they came about, and models that are sane.
 *
 * The system calls that change a disk are defined here and counted, so that a test can end the
 * process before the n-th, or fail it: every n is tried.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <libdeflate.h>

#include "base/half.h"
#include "expertfs/codebook.h"
#include "expertfs/container.h"
#include "expertfs/shapes.h"
#include "expertfs/synth.h"
#include "expertfs/synth_weights.h"
#include "expertfs/synth_words.h"
#include "expertfs/trunk.h"

static struct {
    atomic_uint n; /* calls so far */
    atomic_uint writes;
    unsigned die_at;  /* end the process before this one; 0: never */
    unsigned fail_at; /* this one fails with `error` */
    int error;
    uint64_t free_bytes; /* what the volume is said to have; 0: the truth */
    bool no_size;        /* it says nothing: ramfs, some of FUSE */
    bool no_direct;      /* it opens files for direct writes, and takes none */
    struct progress *cancel;
    unsigned cancel_at;
} disk;

enum { DIED = 86, WRITES_COUNTED = 5 };

static bool disk_refuses(void)
{
    unsigned n = atomic_fetch_add(&disk.n, 1) + 1;

    if (n == disk.die_at)
        raise(SIGKILL);
    if (disk.cancel && n == disk.cancel_at)
        atomic_store(&disk.cancel->cancel, true);
    errno = disk.error;
    return n == disk.fail_at;
}

static atomic_bool was_direct[1024]; /* by descriptor: how its file was opened */

int openat(int at, const char *name, int flags, ...)
{
    va_list ap;
    mode_t mode;
    int fd;

    va_start(ap, flags);
    mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    fd = (int)syscall(SYS_openat, at, name, flags, mode);
    if (fd >= 0)
        was_direct[fd] = flags & O_DIRECT;
    return fd;
}

int dup2(int fd, int to)
{
    atomic_store(&was_direct[to], atomic_load(&was_direct[fd]));
    return (int)syscall(SYS_dup3, fd, to, 0);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    bool counted = atomic_fetch_add(&disk.writes, 1) % WRITES_COUNTED == 0; /* they are many */

    if (disk.no_direct && was_direct[fd]) {
        errno = EINVAL;
        return -1;
    }
    return counted && disk_refuses() ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}

int fsync(int fd) /* counted, not done: it is a process that dies here, not a machine */
{
    (void)fd;
    return disk_refuses() ? -1 : 0;
}

int renameat(int from, const char *a, int to, const char *b)
{
    return disk_refuses() ? -1 : (int)syscall(SYS_renameat2, from, a, to, b, 0);
}

int fstatvfs(int fd, struct statvfs *v)
{
    (void)fd;
    memset(v, 0, sizeof(*v));
    v->f_frsize = 1;
    v->f_blocks = disk.no_size ? 0 : 1ull << 51;
    v->f_bavail = disk.no_size ? 0 : disk.free_bytes ? disk.free_bytes : 1ull << 50;
    return 0;
}

struct fixture {
    char top[64], a[96], b[96];
    struct synth_options options; /* of a slice of a few hundred KB */
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    memset(&disk, 0, sizeof(disk));
    snprintf(f->top, sizeof(f->top), "/tmp/test_synth.XXXXXX");
    assert_non_null(mkdtemp(f->top));
    snprintf(f->a, sizeof(f->a), "%s/a.waste", f->top);
    snprintf(f->b, sizeof(f->b), "%s/b.waste", f->top);
    f->options = (struct synth_options){
        .dir = f->a, .shape = "tiny-kimi", .layers = 3, .experts = 4, .seed = 7, .threads = 2};
    *state = f;
    return 0;
}

static void remove_tree(const char *dir)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    remove_tree(f->top);
    free(f);
    return 0;
}

static void must(int rc, const struct err *e)
{
    if (rc)
        fail_msg("%s", e->text);
}

/* Of all files, names and contents; whatever order the directory lists them in. */
static uint32_t digest(const char *dir, unsigned *n_files)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    uint32_t sum = 0;

    assert_non_null(d);
    *n_files = 0;
    while ((entry = readdir(d))) {
        char path[400];
        uint32_t crc = libdeflate_crc32(0, entry->d_name, strlen(entry->d_name));
        uint8_t *bytes = malloc(16 << 20);
        size_t n;
        FILE *file;

        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.') {
            file = fopen(path, "r");
            assert_non_null(file);
            n = fread(bytes, 1, 16 << 20, file);
            fclose(file);
            sum += libdeflate_crc32(crc, bytes, n);
            ++*n_files;
        }
        free(bytes);
    }
    closedir(d);
    return sum;
}

static bool exists(const char *dir, const char *name)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void check_container(const struct synth_options *o)
{
    struct container_options open = {.direct = true};
    const struct file *const *files;
    struct synth_plan plan;
    struct codebooks *cb;
    struct container *c;
    struct trunk *t;
    struct err e;
    unsigned n;

    must(synth_plan(&plan, o, &e), &e);
    must(container_open(&c, o->dir, &open, &e), &e);
    assert_int_equal(container_manifest(c)->n_layers, plan.layers);
    assert_int_equal(container_manifest(c)->n_experts, plan.experts);
    assert_int_equal(container_manifest(c)->top_k, plan.top_k);
    assert_int_equal(container_trunk(c)->bytes, plan.trunk_bytes);
    assert_int_equal(container_codebooks(c)->bytes, plan.codebook_bytes);
    must(codebooks_open(&cb, c, NULL, &e), &e);
    codebooks_close(cb);
    must(trunk_open(&t, c, &e), &e);
    for (unsigned i = 0; i < container_manifest(c)->n_trunk; i++)
        trunk_want(t, &container_manifest(c)->trunk[i]);
    must(trunk_load(t, NULL, NULL, &e), &e); /* all scales and f32 values are finite */
    trunk_close(t);
    files = container_files(c, &n);
    assert_int_equal(n, plan.moe_layers);
    for (unsigned i = 0; i < n; i++)
        for (unsigned x = 0; x < plan.experts; x++) {
            unsigned layer = container_file_layer(c, i);
            const struct bank *bank = &container_manifest(c)->bank[layer];
            const struct record_layout *l = &container_manifest(c)->record;
            uint8_t *bytes = malloc(l->bytes);

            must(file_read(files[i], bytes, l->bytes, (uint64_t)x * l->bytes, &e), &e);
            must(record_check(l, bytes, layer, x, bank->codebook_base, &e), &e);
            must(record_verify(l, bytes, layer, x, &e), &e);
            for (uint32_t j = l->used; j < l->bytes; j++)
                assert_int_equal(bytes[j], 0);
            free(bytes);
        }
    container_close(c);
}

static void every_family_opens_and_every_record_verifies(void **state)
{
    static const char *const names[] = {"tiny-kimi", "tiny-k3", "tiny-deepseek"};
    struct fixture *f = *state;
    struct synth_result result;
    struct err e;

    for (unsigned i = 0; i < 3; i++) {
        f->options.shape = names[i];
        f->options.layers = 4; /* full attention too */
        f->options.experts = 8;
        must(synth_run(&f->options, NULL, &result, &e), &e);
        assert_false(result.was_complete);
        check_container(&f->options);
        must(synth_run(&f->options, NULL, &result, &e), &e);
        assert_true(result.was_complete);
        assert_int_equal(result.bytes, 0);
        remove_tree(f->a);
    }
}

static void published_shapes_have_the_published_sizes(void **state)
{
    struct synth_options o = {.shape = "kimi-linear-48b"};
    struct synth_plan p;
    struct err e;

    (void)state;
    must(synth_plan(&p, &o, &e), &e);
    assert_int_equal(p.record_bytes, 2666496);
    assert_int_equal(p.bank_bytes, 682622976);
    assert_int_equal(p.codebook_bytes, 962208);
    assert_int_equal(p.trunk_bytes, 1419257600);
    assert_int_equal(p.tensors, 525);
    o.shape = "k3";
    must(synth_plan(&p, &o, &e), &e);
    assert_int_equal(p.record_bytes, 12406784);
    assert_int_equal(p.bank_bytes, 11116478464);
    assert_int_equal(p.codebook_bytes, 3404736);
    assert_int_equal(p.trunk_bytes, 29294179840 + 1192755200); /* resident, and the embedding */
    assert_int_equal(p.tensors, 2460);
    o.shape = "deepseek-v3";
    must(synth_plan(&p, &o, &e), &e);
    assert_int_equal(p.record_bytes, 16539648);
    assert_int_equal(p.moe_layers, 58);
}

static void the_bytes_depend_on_the_seed_and_not_on_threads_or_direct_writes(void **state)
{
    struct fixture *f = *state;
    struct synth_options o = f->options;
    unsigned n, m;
    uint32_t first;
    struct err e;

    must(synth_run(&o, NULL, NULL, &e), &e);
    first = digest(o.dir, &n);
    o.dir = f->b;
    o.threads = 7;
    o.buffered = true;
    must(synth_run(&o, NULL, NULL, &e), &e);
    assert_int_equal(digest(o.dir, &m), first);
    assert_int_equal(m, n);
    remove_tree(f->b);
    o.seed++;
    must(synth_run(&o, NULL, NULL, &e), &e);
    assert_int_not_equal(digest(o.dir, &m), first);
}

/* In a child, so that nothing is cleaned up. */
static int run_and_die(const struct synth_options *o, unsigned at)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct err e;

        atomic_store(&disk.n, 0);
        atomic_store(&disk.writes, 0);
        disk.die_at = at;
        _exit(synth_run(o, NULL, NULL, &e) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? DIED : WEXITSTATUS(status);
}

/* Killed before the 1st call, the 2nd, ... until a run meets none. */
static void killed_anywhere_and_run_again_gives_the_same_bytes(void **state)
{
    struct fixture *f = *state;
    struct container_options open = {0};
    struct synth_options o = f->options;
    unsigned n, m, at, kept = 0;
    uint32_t whole;
    int died = DIED;

    struct err e;

    must(synth_run(&o, NULL, NULL, &e), &e);
    whole = digest(o.dir, &n);
    o.dir = f->b;
    for (at = 1; died == DIED; at++) {
        struct synth_result result = {0};
        struct container *c;

        died = run_and_die(&o, at);
        assert_true(died == DIED || died == 0);
        if (!exists(f->b, "manifest.json")) /* not a container before it is sealed */
            assert_int_not_equal(container_open(&c, f->b, &open, &e), 0);
        else /* and whole from then on */
            check_container(&o);
        must(synth_run(&o, NULL, &result, &e), &e);
        assert_int_equal(digest(f->b, &m), whole);
        assert_int_equal(m, n);
        kept += result.banks_kept;
        remove_tree(f->b);
    }
    assert_true(at > 40); /* there was something to kill */
    assert_true(kept > 10);
}

/* The disk fills at the 1st call, the 2nd, ... */
static void a_full_disk_is_said_once_and_leaves_no_container(void **state)
{
    struct fixture *f = *state;
    unsigned n, m;
    uint32_t whole;
    int bad = 1;
    struct err e;

    must(synth_run(&f->options, NULL, NULL, &e), &e);
    whole = digest(f->a, &n);
    f->options.dir = f->b;
    disk.error = ENOSPC;
    for (unsigned at = 1; bad; at++) {
        atomic_store(&disk.n, 0);
        atomic_store(&disk.writes, 0);
        disk.fail_at = at;
        bad = synth_run(&f->options, NULL, NULL, &e);
        disk.fail_at = 0;
        if (bad) {
            assert_int_equal(bad, ERR_IO);
            assert_non_null(strstr(e.text, strerror(ENOSPC)));
            assert_non_null(strstr(e.text, f->b));
            /* the last call of all is the sync of the directory, after the manifest's rename */
            if (exists(f->b, "manifest.json"))
                check_container(&f->options);
        }
        must(synth_run(&f->options, NULL, NULL, &e), &e);
        assert_int_equal(digest(f->b, &m), whole);
        remove_tree(f->b);
    }
}

static void too_small_a_disk_is_refused_before_anything_is_written(void **state)
{
    struct fixture *f = *state;
    struct synth_options o = {.dir = f->a, .shape = "kimi-linear-48b"};
    struct err e;

    disk.free_bytes = 12ull << 30;
    assert_int_equal(synth_run(&o, NULL, NULL, &e), ERR_IO);
    assert_non_null(strstr(e.text, "need 17.8"));
    assert_non_null(strstr(e.text, "12.00 GiB free"));
    assert_int_equal(access(f->a, F_OK), -1);
    assert_int_equal(atomic_load(&disk.n), 1); /* the directory's name, which is gone again */
}

static void a_volume_that_does_not_tell_its_size_is_not_full(void **state)
{
    struct fixture *f = *state;
    struct err e;

    disk.no_size = true;
    must(synth_run(&f->options, NULL, NULL, &e), &e);
    assert_true(exists(f->a, "manifest.json"));
}

/* mergerfs: what was opened direct stays so, whatever fcntl says. */
static void direct_writes_that_are_refused_are_made_through_the_page_cache(void **state)
{
    struct fixture *f = *state;
    unsigned a, b;
    struct err e;

    must(synth_run(&f->options, NULL, NULL, &e), &e);
    f->options.dir = f->b;
    disk.no_direct = true;
    must(synth_run(&f->options, NULL, NULL, &e), &e);
    assert_int_equal(digest(f->b, &b), digest(f->a, &a));
    assert_int_equal(b, a);
}

static void cancelled_work_ends_soon_and_continues(void **state)
{
    struct fixture *f = *state;
    struct progress progress = {0};
    struct synth_result result;
    struct synth_plan plan;
    unsigned n;
    struct err e;

    must(synth_plan(&plan, &f->options, &e), &e);
    disk.cancel = &progress;
    disk.cancel_at = 1;
    assert_int_equal(synth_run(&f->options, &progress, &result, &e), ERR_CANCELLED);
    assert_true(atomic_load(&disk.n) < 20);
    assert_false(exists(f->a, "manifest.json"));
    disk.cancel = NULL;
    atomic_store(&progress.cancel, false);
    must(synth_run(&f->options, &progress, &result, &e), &e);
    assert_int_equal(atomic_load(&progress.phase), PHASE_SYNTH);
    assert_int_equal(atomic_load(&progress.total), plan.total_bytes);
    assert_int_equal(atomic_load(&progress.done), plan.total_bytes);
    digest(f->a, &n);
    assert_int_equal(n, 7); /* manifest, trunk, codebooks, 2 banks, tokenizer, specials */
}

static void other_peoples_directories_are_left_alone(void **state)
{
    struct fixture *f = *state;
    struct synth_options o = f->options;
    char path[160];
    FILE *file;
    struct err e;

    must(synth_run(&o, NULL, NULL, &e), &e);
    o.seed++;
    assert_int_equal(synth_run(&o, NULL, NULL, &e), ERR_ARG);
    assert_non_null(strstr(e.text, "other parameters"));
    o = f->options;
    snprintf(path, sizeof(path), "%s/experts-L2.bin", f->a);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(synth_run(&o, NULL, NULL, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "experts-L2.bin has 4096 bytes"));
    o.dir = f->b;
    assert_int_equal(run_and_die(&o, 15), DIED); /* unfinished */
    o.experts = 5;
    assert_int_equal(synth_run(&o, NULL, NULL, &e), ERR_ARG);
    o.dir = f->top;
    snprintf(path, sizeof(path), "%s/thesis.txt", f->top);
    file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(synth_run(&o, NULL, NULL, &e), ERR_ARG);
    assert_non_null(strstr(e.text, "not empty"));
}

static void slices_that_cannot_be_are_refused(void **state)
{
    static const struct synth_options bad[] = {
        {.shape = "gpt"},
        {.shape = "k3", .layers = 94},
        {.shape = "k3", .layers = 1},
        {.shape = "k3", .experts = 4, .top_k = 5},
        {.shape = "k3", .top_k = 65},
        {.shape = "k3", .experts = 70000},
        {.shape = "deepseek-v3", .experts = 8},
        {.shape = "deepseek-v3", .experts = 20},
        {.shape = "k3", .seed = 1ull << 53},
    };
    struct synth_plan p;
    struct err e;

    (void)state;
    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_int_equal(synth_plan(&p, &bad[i], &e), ERR_ARG);
}

static void layer_lists_are_cut_with_the_layers(void **state)
{
    struct shape s = *shape_find("kimi-linear-48b");
    json_t *c, *linear;
    struct err e;

    (void)state;
    must(shape_cut(&s, 6, 16, 0, &e), &e);
    c = shape_config(&s);
    linear = json_object_get(c, "linear_attn_config");
    assert_int_equal(json_array_size(json_object_get(linear, "kda_layers")), 5);
    assert_int_equal(json_array_size(json_object_get(linear, "full_attn_layers")), 1);
    assert_int_equal(json_integer_value(json_object_get(c, "num_experts_per_token")), 8);
    /* upstream reads these by presence */
    assert_null(json_object_get(c, "mla_use_output_gate"));
    assert_null(json_object_get(c, "latent_moe_use_norm"));
    assert_null(json_object_get(linear, "use_full_rank_gate"));
    assert_true(json_is_true(json_object_get(c, "moe_renormalize")));
    json_decref(c);
    s = *shape_find("kimi-k3");
    c = shape_config(&s);
    linear = json_object_get(c, "linear_attn_config");
    assert_int_equal(json_array_size(json_object_get(linear, "kda_layers")), 69);
    assert_int_equal(json_array_size(json_object_get(linear, "full_attn_layers")), 24);
    assert_non_null(json_object_get(json_object_get(c, "_outer"), "architectures"));
    json_decref(c);
}

/* Mean, and root mean square, of a tensor's first rows. */
static void moments(const struct synth_weights *w, const char *name, double *mean, double *rms)
{
    uint8_t *codes = aligned_alloc(64, 1 << 20);
    uint16_t *scale = malloc(1 << 16);
    double sum = 0, squares = 0;
    unsigned i = 0;

    while (i < w->n_tensors && strcmp(w->tensor[i].name, name))
        i++;
    assert_true(i < w->n_tensors);
    const struct synth_tensor *t = &w->tensor[i];
    uint64_t n = t->rows < 64 ? t->rows : 64;

    synth_rows(w, i, 0, n, codes, scale);
    for (uint64_t j = 0; j < n * t->cols; j++) {
        uint64_t r = j / t->cols, c = j % t->cols;
        const uint8_t *row = codes + r * t->row_bytes;
        double v, s = t->groups ? half_to_f32(scale[r * t->groups + c / 128]) : 0;

        if (t->fmt == FMT_F32)
            v = ((const float *)(const void *)codes)[j];
        else if (t->fmt == FMT_Q8G)
            v = s * (int8_t)row[c];
        else
            v = s * ((c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15) - 8);
        sum += v;
        squares += v * v;
    }
    *mean = sum / (double)(n * t->cols);
    *rms = sqrt(squares / (double)(n * t->cols));
    free(codes);
    free(scale);
}

/* A mean that is not zero is a component that all outputs share; it grows with depth. */
static void matrices_have_no_mean_and_the_size_that_keeps_activations_near_one(void **state)
{
    struct synth_weights w;
    double mean, rms;
    struct err e;

    (void)state;
    must(synth_weights_init(&w, shape_find("kimi-linear-48b"), 3, &e), &e);
    moments(&w, "model.layers.5.self_attn.g_a_proj.weight", &mean, &rms);
    assert_true(fabs(mean) < 0.01 * rms);
    assert_true(fabs(rms * sqrt(2304) - 1) < 0.05);
    moments(&w, "model.embed_tokens.weight", &mean, &rms);
    assert_true(fabs(mean) < 0.01 * rms && rms > 0.3 && rms < 1.5);
    moments(&w, "model.layers.5.self_attn.o_proj.weight", &mean, &rms);
    assert_true(fabs(mean) < 0.01 * rms);
    moments(&w, "model.layers.5.self_attn.o_norm.weight", &mean, &rms);
    assert_true(fabs(mean - 1) < 0.05);
    synth_weights_release(&w);
}

static void codebooks_have_no_mean(void **state)
{
    struct synth_weights w = {.seed = 5};
    uint16_t entries[256 * FORMAT_VEC_DIM];
    double sum = 0, squares = 0;

    (void)state;
    synth_codebook(&w, 3, MATRIX_UP, 0, 256, entries);
    for (unsigned i = 0; i < 256 * FORMAT_VEC_DIM; i++) {
        double v = half_to_f32(entries[i]);

        sum += v;
        squares += v * v;
    }
    assert_true(sum == 0);
    assert_true(squares / (256 * FORMAT_VEC_DIM) > 0.5);
}

/* A channel of a KDA layer keeps e^g of itself a token. */
static void most_channels_forget_between_a_tenth_and_a_thousandth_per_token(void **state)
{
    static const char *const names[2] = {"kimi-linear-48b", "k3"};
    struct err e;

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        struct synth_weights w;
        unsigned a_log = 0, dt = 0;
        float a[128], *bias = malloc(4 * 12288);

        must(synth_weights_init(&w, shape_find(names[k]), 3, &e), &e);
        while (!strstr(w.tensor[a_log].name, "A_log"))
            a_log++;
        while (!strstr(w.tensor[dt].name, "dt_bias"))
            dt++;
        synth_rows(&w, a_log, 0, w.tensor[a_log].rows, a, NULL);
        synth_rows(&w, dt, 0, 1, bias, NULL);
        for (unsigned c = 0; c < w.tensor[dt].cols; c++) {
            double A = exp(a[c / 128]), z = bias[c];
            double keep = k ? exp(-5 / (1 + exp(-A * z))) : exp(-A * log1p(exp(z)));

            assert_true(A >= 1 && A <= 16);
            assert_true(keep > 0.904 && keep < 0.99901);
        }
        if (k)
            assert_true(a[96] == 0 && a[127] == 0); /* stored, of no head */
        free(bias);
        synth_weights_release(&w);
    }
}

static void control_tokens_and_unused_ids_have_logit_zero(void **state)
{
    const struct shape *s = shape_find("tiny-kimi");
    struct synth_weights w;
    uint8_t codes[4 * 256];
    uint16_t scale[4 * 2];
    unsigned i = 0;
    struct err e;

    (void)state;
    must(synth_weights_init(&w, s, 3, &e), &e);
    while (strcmp(w.tensor[i].name, "lm_head.weight"))
        i++;
    synth_rows(&w, i, s->n_ranks - 1, 3, codes, scale);
    for (unsigned j = 0; j < 256; j++)
        assert_int_equal(codes[256 + j] | codes[512 + j], 0);
    assert_int_not_equal(codes[0] | codes[1] | codes[2], 0);
    synth_weights_release(&w);
}

/* A part of a tensor is the same bytes as in the whole: the unit of work is free. */
static void rows_do_not_depend_on_the_cut(void **state)
{
    struct synth_weights w;
    uint8_t whole[8 * 2048], part[2048];
    uint16_t scale[8 * 16], some[16];
    struct err e;

    (void)state;
    must(synth_weights_init(&w, shape_find("tiny-k3"), 3, &e), &e);
    for (unsigned i = 0; i < w.n_tensors; i++) {
        const struct synth_tensor *t = &w.tensor[i];

        if (t->rows < 8 || t->row_bytes > 2048)
            continue;
        synth_rows(&w, i, 0, 8, whole, scale);
        for (unsigned r = 0; r < 8; r++) {
            synth_rows(&w, i, r, 1, part, some);
            assert_memory_equal(part, whole + r * t->row_bytes, t->row_bytes);
            assert_memory_equal(some, scale + r * t->groups, 2 * t->groups);
        }
    }
    synth_weights_release(&w);
}

static unsigned decode64(const char *in, unsigned char *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned n = 0, bits = 0, v = 0;

    for (; *in && *in != '='; in++) {
        v = v << 6 | (unsigned)(strchr(digit, *in) - digit);
        bits += 6;
        if (bits >= 8)
            out[n++] = (unsigned char)(v >> (bits -= 8));
    }
    return n;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, 8);
}

static bool is_token(unsigned char (*token)[8], unsigned n, const unsigned char *bytes,
                     unsigned len)
{
    unsigned char key[8] = {0};

    memcpy(key, bytes, len);
    key[7] = (unsigned char)len;
    return bsearch(key, token, n, 8, by_bytes) != NULL;
}

/* Dense ranks, no token twice, and each the concatenation of two others that come before it. */
static void every_word_can_be_merged_from_earlier_ones(void **state)
{
    static const unsigned sizes[] = {256, 2048, 128000, 163584};

    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        unsigned n = sizes[k];
        unsigned char(*token)[8] = calloc(n, 8), (*sorted)[8] = calloc(n, 8);
        char *text, *line;
        size_t len;
        struct err e;

        must(synth_words(&text, &len, n, &e), &e);
        text = realloc(text, len + 1);
        text[len] = 0;
        line = text;
        for (unsigned i = 0; i < n; i++) {
            char base64[16];
            unsigned rank, bytes;
            int used;

            assert_int_equal(sscanf(line, "%15s %u\n%n", base64, &rank, &used), 2);
            assert_int_equal(rank, i);
            bytes = decode64(base64, token[i]);
            assert_true(bytes >= 1 && bytes <= 7);
            if (bytes < 7)
                token[i][7] = (unsigned char)bytes;
            else
                token[i][7] = 7;
            if (i < 256)
                assert_true(bytes == 1 && token[i][0] == i);
            line = strchr(line, '\n') + 1;
        }
        assert_ptr_equal(line, text + len);
        memcpy(sorted, token, (size_t)n * 8);
        qsort(sorted, n, 8, by_bytes);
        for (unsigned i = 1; i < n; i++)
            assert_int_not_equal(memcmp(sorted[i - 1], sorted[i], 8), 0);
        for (unsigned i = 256; i < n; i++) {
            unsigned bytes = token[i][7], space = token[i][0] == ' ';
            unsigned cut = bytes == 2 ? 1 : bytes == 3 ? 1 : bytes - 2;

            assert_true(is_token(sorted, n, token[i], cut));
            assert_true(is_token(sorted, n, token[i] + cut, bytes - cut));
            /* whichever neighbours merge first, what is left can still merge */
            if (bytes >= 6) {
                assert_true(is_token(sorted, n, token[i] + space, 4));
                assert_true(is_token(sorted, n, token[i] + space + 2, 4));
            }
        }
        free(text);
        free(token);
        free(sorted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_shapes_have_the_published_sizes),
        cmocka_unit_test(slices_that_cannot_be_are_refused),
        cmocka_unit_test(layer_lists_are_cut_with_the_layers),
        cmocka_unit_test(matrices_have_no_mean_and_the_size_that_keeps_activations_near_one),
        cmocka_unit_test(codebooks_have_no_mean),
        cmocka_unit_test(most_channels_forget_between_a_tenth_and_a_thousandth_per_token),
        cmocka_unit_test(control_tokens_and_unused_ids_have_logit_zero),
        cmocka_unit_test(rows_do_not_depend_on_the_cut),
        cmocka_unit_test(every_word_can_be_merged_from_earlier_ones),
        cmocka_unit_test_setup_teardown(every_family_opens_and_every_record_verifies, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            the_bytes_depend_on_the_seed_and_not_on_threads_or_direct_writes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(killed_anywhere_and_run_again_gives_the_same_bytes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_full_disk_is_said_once_and_leaves_no_container, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_volume_that_does_not_tell_its_size_is_not_full, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            direct_writes_that_are_refused_are_made_through_the_page_cache, set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_small_a_disk_is_refused_before_anything_is_written,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(cancelled_work_ends_soon_and_continues, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_peoples_directories_are_left_alone, set_up,
                                        tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
