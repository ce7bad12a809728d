#include "cli/opts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/nearest.h"

enum { ARGS_MAX = 16 };

/* Parse words as they would follow the program's name. */
static int parse(struct opts *o, struct err *e, const char *const *words)
{
    const char *argv[ARGS_MAX] = {"waste"};
    int argc = 1;

    opts_init(o);
    for (; words[argc - 1]; argc++)
        argv[argc] = words[argc - 1];
    return opts_parse(o, argc, (char *const *)argv, e);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void options_stand_anywhere_with_a_space_or_an_equals_sign(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &e,
                           WORDS("--json", "run", "--budget", "1.5G", "k3.waste", "-n", "7",
                                 "--temp=0.5", "Hello", "--io=threads")),
                     0);
    assert_int_equal(o.n_args, 3);
    assert_string_equal(o.arg[0], "run");
    assert_string_equal(o.arg[1], "k3.waste");
    assert_string_equal(o.arg[2], "Hello");
    assert_true(o.json);
    assert_true(o.budget == 3ull << 29);
    assert_int_equal(o.n_tokens, 7);
    assert_true(o.temp == 0.5);
    assert_string_equal(o.io, "threads");
    opts_release(&o);
}

static void what_follows_two_dashes_is_positional(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &e, WORDS("run", "-q", "--", "--json", "-n", "--")), 0);
    assert_int_equal(o.n_args, 4);
    assert_string_equal(o.arg[1], "--json");
    assert_string_equal(o.arg[3], "--");
    assert_true(o.quiet);
    assert_false(o.json);
    opts_release(&o);
}

static void a_dash_is_a_value_and_a_positional_but_an_option_is_no_value(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &e, WORDS("run", "m", "-", "--file", "-")), 0);
    assert_int_equal(o.n_args, 3);
    assert_string_equal(o.file, "-");
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("run", "--file", "--json")), ERR_ARG);
    assert_non_null(strstr(e.text, "--file needs a value"));
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("run", "--file")), ERR_ARG);
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("run", "--stop=--json", "--presence-penalty", "-1.5")), 0);
    assert_string_equal(o.stop[0], "--json");
    assert_true(o.presence_penalty == -1.5);
    opts_release(&o);
}

static void the_last_of_two_wins_and_lists_grow(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(
        parse(&o, &e,
              WORDS("run", "--no-verify", "--verify", "--ctx", "1", "--ctx=2", "--stop", "a",
                    "--stop", "b", "--logit-bias", "7=-1.5", "--logit-bias=0=2")),
        0);
    assert_true(o.verify);
    assert_int_equal(o.ctx, 2);
    assert_int_equal(o.n_stop, 2);
    assert_string_equal(o.stop[1], "b");
    assert_int_equal(o.n_bias, 2);
    assert_int_equal(o.bias[0].id, 7);
    assert_true(o.bias[0].value == -1.5f);
    assert_int_equal(o.bias[1].id, 0);
    opts_release(&o);
}

static void an_unknown_option_names_the_nearest(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &e, WORDS("run", "--bugdet", "3G")), ERR_ARG);
    assert_non_null(strstr(e.text, "--bugdet"));
    assert_non_null(strstr(e.text, "--budget"));
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("run", "--no-direct=1")), ERR_ARG);
    assert_non_null(strstr(e.text, "--no-direct-io"));
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("run", "-x")), ERR_ARG);
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("run", "--frobnicate")), ERR_ARG);
    assert_string_equal(e.text, "unknown option --frobnicate"); /* nothing is near */
    opts_release(&o);
}

static void values_out_of_range_are_refused(void **state)
{
    static const char *const bad[][2] = {
        {"--ctx", "0"},
        {"--ctx", "-1"},
        {"--ctx", "4096x"},
        {"--ctx", ""},
        {"--ctx", " 1"},
        {"--ctx", "16777217"},
        {"--max-rows", "0"},
        {"--max-rows", "4097"},
        {"-n", "0"},
        {"-n", "1.5"},
        {"--temp", "-0.1"},
        {"--temp", "nan"},
        {"--temp", "inf"},
        {"--temp", "0x1"},
        {"--temp", ""},
        {"--top-p", "0"},
        {"--top-p", "1.1"},
        {"--min-p", "1.1"},
        {"--top-k", "-1"},
        {"--seed", "-1"},
        {"--seed", "1e3"},
        {"--seed", "18446744073709551616"},
        {"--io", "aio"},
        {"--io", ""},
        {"--io", "io_uring|threads"},
        {"--numeric", "f64"},
        {"--cache", "LRU"},
        {"--lookahead", "65"},
        {"--threads", "65"},
        {"--io-depth", "0"},
        {"--repeat-penalty", "0"},
        {"--logit-bias", "7"},
        {"--logit-bias", "=1"},
        {"--logit-bias", "-1=1"},
        {"--logit-bias", "7=x"},
        {"--stop", ""},
        {"--budget", "x"},
        {"--budget", "46"},
        {"--budget", " 1048575 "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct opts o;
        struct err e = {0};

        if (parse(&o, &e, WORDS("run", bad[i][0], bad[i][1])) != ERR_ARG)
            fail_msg("%s \"%s\" was taken", bad[i][0], bad[i][1]);
        if (!strstr(e.text, bad[i][0]))
            fail_msg("\"%s\" does not name %s", e.text, bad[i][0]);
        opts_release(&o);
    }
}

static void the_library_takes_what_the_table_does(void **state)
{
    static const char *const good[][2] = {
        {"--ctx", "16777216"}, {"--max-rows", "1"},   {"--max-rows", "4096"}, {"--threads", "0"},
        {"--threads", "64"},   {"--lookahead", "0"},  {"--lookahead", "64"},  {"--budget", "0"},
        {"--budget", "46g"},   {"--budget", "500 B"}, {"--budget", "1048576"}};
    struct opts o;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (parse(&o, &e, WORDS("run", good[i][0], good[i][1])))
            fail_msg("%s", e.text);
        opts_release(&o);
    }
}

/* `--budget 46` was a plan for 46 bytes. */
static void a_size_without_its_letter_is_a_question(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &e, WORDS("run", "--budget", "46")), ERR_ARG);
    assert_string_equal(e.text, "--budget: 46 bytes? say 46G");
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("plan", "--drive", "7/s")), ERR_ARG);
    assert_string_equal(e.text, "--drive: 7 bytes per second? say 7G");
    opts_release(&o);
    opts_init(&o);
    assert_int_equal(opts_env(&o, (char *const[]){"WASTE_BUDGET=1.5", NULL}, &e), ERR_ARG);
    assert_non_null(strstr(e.text, "1.5 bytes? say 1.5G"));
}

static void a_flag_takes_no_value(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &e, WORDS("run", "--json=1")), ERR_ARG);
    assert_non_null(strstr(e.text, "--json takes no value"));
    opts_release(&o);
}

static void an_option_of_another_command_is_an_error(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &e, WORDS("tokenize", "m", "--temp", "1")), 0);
    assert_int_equal(opts_apply(&o, CMD_TOKENIZE, "tokenize", &e), ERR_ARG);
    assert_string_equal(e.text, "--temp does not apply to tokenize");
    assert_int_equal(opts_apply(&o, CMD_RUN, "run", &e), 0);
    opts_release(&o);
    assert_int_equal(parse(&o, &e, WORDS("eval", "m", "-n", "1")), 0);
    assert_int_equal(opts_apply(&o, CMD_EVAL, "eval", &e), ERR_ARG);
    assert_string_equal(e.text, "-n does not apply to eval");
    opts_release(&o);
}

#define VARIABLES(...) ((char *const[]){__VA_ARGS__, NULL})

static void flags_beat_variables(void **state)
{
    const char *argv[] = {"waste", "run", "--budget", "2G", "--verify", NULL};
    struct opts o;
    struct err e;

    (void)state;
    opts_init(&o);
    assert_int_equal(
        opts_env(&o,
                 VARIABLES("WASTE_BUDGET=1G", "WASTE_VERIFY=0", "WASTE_DIRECT=0", "WASTE_THREADS=3",
                           "WASTE_DUMP_ROUTE=/tmp/x", "WASTE_CPU=c", "PATH=/bin"),
                 &e),
        0);
    assert_false(o.verify);
    assert_int_equal(opts_parse(&o, 5, (char *const *)argv, &e), 0);
    assert_true(o.budget == 2ull << 30);
    assert_true(o.verify);
    assert_false(o.direct);
    assert_int_equal(o.threads, 3);
    assert_string_equal(o.route_trace, "/tmp/x");
    assert_string_equal(o.cpu_level, "c");
    /* a variable that the command has no use for is no mistake: it was set for others */
    assert_int_equal(opts_apply(&o, CMD_RUN, "run", &e), 0);
    opts_release(&o);
}

static void a_variable_nobody_knows_is_an_error_that_names_the_nearest(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    opts_init(&o);
    assert_int_equal(opts_env(&o, VARIABLES("WASTE_BUDGE=1G"), &e), ERR_ARG);
    assert_non_null(strstr(e.text, "WASTE_BUDGE "));
    assert_non_null(strstr(e.text, "WASTE_BUDGET"));
    assert_int_equal(opts_env(&o, VARIABLES("WASTE_NONSENSE=1"), &e), ERR_ARG);
    assert_string_equal(e.text, "unknown variable WASTE_NONSENSE");
    assert_int_equal(opts_env(&o, VARIABLES("WASTE_DIRECT=off"), &e), ERR_ARG);
    assert_non_null(strstr(e.text, "WASTE_DIRECT"));
    assert_int_equal(
        opts_env(&o, VARIABLES("WASTE_LIB=/x", "WASTE_API_KEY=y", "WASTED=1", "WASTE_BUDGET="), &e),
        0);
    assert_true(o.budget == 0);
}

/* A level of another machine was taken, and a lower one used. */
static void a_kernel_level_of_another_machine_is_refused(void **state)
{
    struct opts o;
    struct err e;

    (void)state;
    opts_init(&o);
#ifdef __aarch64__
    assert_int_equal(opts_env(&o, VARIABLES("WASTE_CPU=avx2"), &e), ERR_ARG);
#else
    assert_int_equal(opts_env(&o, VARIABLES("WASTE_CPU=neon"), &e), ERR_ARG);
#endif
    assert_non_null(strstr(e.text, "this machine has no "));
    assert_int_equal(opts_env(&o, VARIABLES("WASTE_CPU=sse"), &e), ERR_ARG);
    assert_int_equal(opts_env(&o, VARIABLES("WASTE_CPU=c"), &e), 0);
}

static void the_table_is_consistent(void **state)
{
    (void)state;
    for (unsigned i = 0; i < opts_rows; i++) {
        const struct opt *a = &opts_table[i];

        assert_true(a->commands != 0 && !(a->commands & ~(unsigned)CMD_ALL));
        assert_true(a->name || a->letter || a->env);
        assert_non_null(a->help);
        for (const struct opt_help *x = a->other; x && x->commands; x++) {
            assert_false(x->commands & ~a->commands);
            assert_non_null(x->help);
        }
        assert_true(a->field < sizeof(struct opts));
        assert_true(!a->env || !strncmp(a->env, "WASTE_", 6));
        for (unsigned k = 0; k < i; k++) {
            assert_false(a->name && opts_table[k].name && !strcmp(a->name, opts_table[k].name));
            assert_false(a->env && opts_table[k].env && !strcmp(a->env, opts_table[k].env));
            assert_false(a->letter && a->letter == opts_table[k].letter);
        }
    }
}

static void the_nearest_name_is_the_fewest_edits_away(void **state)
{
    const char *const names[] = {"run", "eval", "verify", "version"}, *const letters[] = {"n"};
    char line[200];

    (void)state;
    memset(line, 'r', sizeof(line) - 1);
    line[sizeof(line) - 1] = 0;
    assert_string_equal(nearest_name("rum", names, 4), "run");
    assert_string_equal(nearest_name("verfy", names, 4), "verify");
    assert_string_equal(nearest_name("versoin", names, 4), "version");
    assert_null(nearest_name("", names, 4));
    assert_null(nearest_name("x", names, 4));
    assert_null(nearest_name("frobnicate", names, 4));
    assert_null(nearest_name("x", names, 0));
    assert_null(nearest_name("", letters, 1));
    assert_null(nearest_name("x", letters, 1));
    assert_null(nearest_name(line, names, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_stand_anywhere_with_a_space_or_an_equals_sign),
        cmocka_unit_test(what_follows_two_dashes_is_positional),
        cmocka_unit_test(a_dash_is_a_value_and_a_positional_but_an_option_is_no_value),
        cmocka_unit_test(the_last_of_two_wins_and_lists_grow),
        cmocka_unit_test(an_unknown_option_names_the_nearest),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(the_library_takes_what_the_table_does),
        cmocka_unit_test(a_size_without_its_letter_is_a_question),
        cmocka_unit_test(a_flag_takes_no_value),
        cmocka_unit_test(an_option_of_another_command_is_an_error),
        cmocka_unit_test(flags_beat_variables),
        cmocka_unit_test(a_variable_nobody_knows_is_an_error_that_names_the_nearest),
        cmocka_unit_test(a_kernel_level_of_another_machine_is_refused),
        cmocka_unit_test(the_table_is_consistent),
        cmocka_unit_test(the_nearest_name_is_the_fewest_edits_away),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
