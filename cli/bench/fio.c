#include "cli/bench/fio.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { OUTPUT_MAX = 1 << 20, PATH_BYTES = 8192, ARGS_MAX = 24, ARG_BYTES = 64 };

/* Makes malloc advise huge pages (glibc 2.35 and later): fio itself only knows hugetlbfs. */
static char huge_malloc[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
static char plain_malloc[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=0";

/* Run argv[0] off the PATH; what it says on standard output, and with `both` on standard error,
 * goes to text, NUL-terminated. Returns its exit status, or -errno. */
static int run_program(char *const *argv, char *const *env, char *text, size_t text_bytes,
                       bool both)
{
    posix_spawn_file_actions_t actions;
    int pipe_fd[2], status = 0, failed;
    size_t n = 0;
    pid_t pid;

    if (pipe2(pipe_fd, O_CLOEXEC))
        return -errno;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], 1);
    if (both)
        posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], 2);
    failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fd[1]);
    while (!failed) {
        char beyond[4096];
        bool room = n < text_bytes - 1;
        ssize_t got =
            read(pipe_fd[0], room ? text + n : beyond, room ? text_bytes - 1 - n : sizeof(beyond));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += room ? (size_t)got : 0;
    }
    text[n] = '\0';
    close(pipe_fd[0]);
    if (failed)
        return -failed;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool fio_version(char *version, unsigned version_bytes)
{
    char *argv[] = {"fio", "--version", NULL}, text[64];

    if (run_program(argv, environ, text, sizeof(text), false))
        return false;
    text[strcspn(text, "\n")] = '\0';
    if (version)
        snprintf(version, version_bytes, "%s", text);
    return true;
}

/* fio takes "a:b" for two files. */
static void escape(char *to, const char *name)
{
    size_t n = (size_t)snprintf(to, PATH_BYTES, "--filename=");

    for (; *name && n < PATH_BYTES - 2; name++) {
        if (*name == ':' || *name == '\\')
            to[n++] = '\\';
        to[n++] = *name;
    }
    to[n] = '\0';
}

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int parse(const char *text, struct read_result *out, double *cpu_s, struct err *e)
{
    const char *from = strchr(text, '{'); /* warnings may come first */
    json_error_t at;
    json_t *root = from ? json_loads(from, JSON_DISABLE_EOF_CHECK, &at) : NULL;
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    const json_t *read = json_object_get(job, "read"), *clat = json_object_get(read, "clat_ns");
    const json_t *percentile = json_object_get(clat, "percentile");

    *out = (struct read_result){
        .bytes = number(read, "io_bytes"),
        .seconds = number(read, "io_bytes") / number(read, "bw_bytes"),
        .p50_ms = number(percentile, "50.000000") * 1e-6,
        .p95_ms = number(percentile, "95.000000") * 1e-6,
        .p99_ms = number(percentile, "99.000000") * 1e-6,
        .max_ms = number(clat, "max") * 1e-6,
    };
    *cpu_s = (number(job, "usr_cpu") + number(job, "sys_cpu")) * 1e-2 * out->seconds;
    json_decref(root);
    if (!(out->seconds > 0))
        return err_set(e, ERR_FORMAT, "fio: no read figures in its JSON");
    return 0;
}

/* Our environment with one more setting; free() it. NULL: out of memory. */
static char **environ_with(char *setting)
{
    size_t n = 0, k = 1, name = strcspn(setting, "=") + 1;
    char **env;

    while (environ[n])
        n++;
    env = calloc(n + 2, sizeof(*env));
    if (!env)
        return NULL;
    env[0] = setting;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(environ[i], setting, name))
            env[k++] = environ[i];
    }
    return env;
}

static int run_and_parse(char *const *argv, char *const *env, struct read_result *out,
                         double *cpu_s, struct err *e)
{
    char *text = malloc(OUTPUT_MAX);
    int status;

    if (!text)
        return err_set(e, ERR_NOMEM, "output of fio");
    status = run_program(argv, env, text, OUTPUT_MAX, true);
    if (status < 0)
        err_sys(e, -status, "fio");
    else if (status)
        err_set(e, ERR_IO, "fio ended with %d: %.*s", status, (int)strcspn(text, "\n"), text);
    else
        status = parse(text, out, cpu_s, e);
    free(text);
    return status ? e->code : 0;
}

int fio_run(const char *file, const struct read_work *w, struct fio_way way,
            struct read_result *out, double *cpu_s, struct err *e)
{
    char name[PATH_BYTES], arg[5][ARG_BYTES], *argv[ARGS_MAX], **env;
    unsigned n = 0;
    int rc;

    escape(name, file);
    snprintf(arg[0], ARG_BYTES, "--bs=%u", w->record_bytes);
    snprintf(arg[1], ARG_BYTES, "--iodepth=%u", w->depth);
    snprintf(arg[2], ARG_BYTES, "--size=%llu", (unsigned long long)w->n_records * w->record_bytes);
    snprintf(arg[3], ARG_BYTES, "--io_size=%llu", (unsigned long long)w->n_reads * w->record_bytes);
    snprintf(arg[4], ARG_BYTES, "--randseed=%llu", (unsigned long long)(w->seed >> 1));
    argv[n++] = "fio";
    argv[n++] = "--name=reads";
    argv[n++] = name;
    for (unsigned i = 0; i < 5; i++)
        argv[n++] = arg[i];
    argv[n++] = "--rw=randread";
    argv[n++] = "--direct=1";
    argv[n++] = "--readonly";
    argv[n++] = "--ioengine=io_uring";
    if (way.registered) {
        argv[n++] = "--fixedbufs=1";
        argv[n++] = "--registerfiles=1";
    }
    argv[n++] = "--percentile_list=50:95:99";
    argv[n++] = "--output-format=json";
    argv[n] = NULL;
    env = environ_with(way.huge ? huge_malloc : plain_malloc);
    if (!env)
        return err_set(e, ERR_NOMEM, "environment of fio");
    rc = run_and_parse(argv, env, out, cpu_s, e);
    free(env);
    return rc;
}
