/* The option tables of waste-bench. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "cli/bench/flags.h"

enum { ARGS_MAX = 8 };

static struct {
    bool set;
    int64_t number;
    uint64_t size;
    struct flag_list numbers, sizes;
    const char *text, *choice;
} got;

static const struct flag own[] = {
    {"set", FLAG_SET, &got.set, 0, 0, NULL, "a flag"},
    {"number", FLAG_INT, &got.number, -3, 10, "N", "a number"},
    {"size", FLAG_SIZE, &got.size, 4096, 1e12, "SIZE", "a size"},
    {"numbers", FLAG_INTS, &got.numbers, 1, 9, "N,...", "numbers"},
    {"sizes", FLAG_SIZES, &got.sizes, 1, 1e12, "SIZE,...", "sizes"},
    {0},
};
static const struct flag common[] = {
    {"text", FLAG_TEXT, &got.text, 0, 0, "TEXT", "a text"},
    {"choice", FLAG_CHOICE, &got.choice, 0, 0, "one|two", "a choice"},
    {0},
};

static char **words; /* of the last parse: positionals in front */
static unsigned n_words;

static int parse(struct err *e, const char *first, ...)
{
    static char *argv[ARGS_MAX];
    int argc = 0;
    va_list ap;

    memset(&got, 0, sizeof(got));
    va_start(ap, first);
    for (const char *word = first; word; word = va_arg(ap, const char *))
        argv[argc++] = (char *)(uintptr_t)word;
    va_end(ap);
    words = argv;
    return flags_parse(argv, argc, &n_words, own, common, e);
}

static void every_kind_is_read_with_and_without_an_equals_sign(void **unused)
{
    struct err e;

    (void)unused;
    assert_int_equal(parse(&e, "--set", "--number=-3", "--size", "2M", "--text==", NULL), 0);
    assert_true(got.set && got.number == -3 && got.size == 2 << 20);
    assert_string_equal(got.text, "=");
    assert_int_equal(parse(&e, "--numbers", "1,9,4", "--sizes=1K,2.5K", "--choice", "two", NULL),
                     0);
    assert_int_equal(got.numbers.n, 3);
    assert_int_equal(got.numbers.v[1], 9);
    assert_int_equal(got.sizes.n, 2);
    assert_int_equal(got.sizes.v[1], 2560);
    assert_string_equal(got.choice, "two");
}

static void positionals_keep_their_order_wherever_they_stand(void **unused)
{
    struct err e;

    (void)unused;
    assert_int_equal(parse(&e, "a", "--set", "-", "--", "--set", "b", NULL), 0);
    assert_int_equal(n_words, 4);
    assert_string_equal(words[0], "a");
    assert_string_equal(words[1], "-");
    assert_string_equal(words[2], "--set");
    assert_string_equal(words[3], "b");
}

static void what_is_wrong_is_named(void **unused)
{
    static const struct {
        const char *word, *value, *text;
    } bad[] = {
        {"--number", "11", "--number \"11\": a whole number from -3 to 10 is needed"},
        {"--number", "2x", "--number \"2x\": a whole number from -3 to 10 is needed"},
        {"--number", "99999999999999999999", "a whole number from -3 to 10"},
        {"--number", NULL, "--number: a value is missing (N)"},
        {"--size", "1K", "--size \"1K\": from 4.0 KiB to"},
        {"--numbers", "1,10", "--numbers \"10\""},
        {"--numbers", "", "--numbers \"\""},
        {"--numbers", "1,", "--numbers \"\""},
        {"--choice", "three", "--choice \"three\": one of one|two is needed"},
        {"--choice", "on", "--choice \"on\""},
        {"--choice", "", "--choice \"\""},
        {"--text", "", "--text: it is empty"},
        {"--set=1", NULL, "--set takes no value, \"1\" was given"},
        {"--sets", NULL, "--sets: no such option (did you mean --set?)"},
        {"--se", NULL, "--se: no such option"},
        {"-s", NULL, "-s: no such option"},
        {"--=", NULL, "--=: no such option"},
    };
    struct err e;

    (void)unused;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse(&e, bad[i].word, bad[i].value, NULL), ERR_ARG);
        if (!strstr(e.text, bad[i].text))
            fail_msg("%s %s: \"%s\" does not say \"%s\"", bad[i].word,
                     bad[i].value ? bad[i].value : "", e.text, bad[i].text);
    }
}

static void a_list_that_is_too_long_is_refused(void **unused)
{
    char many[3 * FLAG_LIST_MAX];
    struct err e;

    (void)unused;
    for (unsigned i = 0; i <= FLAG_LIST_MAX; i++)
        memcpy(many + 2 * i, "1,", 3);
    many[2 * FLAG_LIST_MAX - 1] = '\0';
    assert_int_equal(parse(&e, "--numbers", many, NULL), 0);
    assert_int_equal(got.numbers.n, FLAG_LIST_MAX);
    many[2 * FLAG_LIST_MAX - 1] = ',';
    many[2 * FLAG_LIST_MAX + 1] = '\0';
    assert_int_equal(parse(&e, "--numbers", many, NULL), ERR_ARG);
}

static void names_are_found_whole(void **unused)
{
    (void)unused;
    assert_true(flag_names(NULL, "sync"));
    assert_true(flag_names("threads,sync", "sync"));
    assert_true(flag_names("sync,threads", "sync"));
    assert_false(flag_names("syncs,threads", "sync"));
    assert_false(flag_names("syn", "sync"));
    assert_false(flag_names("", "sync"));
}

static void refuse_name(const char *list, const char *message)
{
    static const char *const known[] = {"threads", "sync"};
    struct err e;

    assert_int_equal(flag_names_check(list, "engines", "there are", known, 2, &e), ERR_ARG);
    assert_string_equal(e.text, message);
}

static void names_that_are_not_known_are_refused(void **unused)
{
    static const char *const known[] = {"threads", "sync"};
    struct err e;

    (void)unused;
    assert_int_equal(flag_names_check(NULL, "engines", "there are", known, 2, &e), 0);
    assert_int_equal(flag_names_check("sync,threads", "engines", "there are", known, 2, &e), 0);
    refuse_name("", "--engines \"\": there are threads, sync");
    refuse_name("sync,", "--engines \"\": there are threads, sync");
    refuse_name("threads,other", "--engines \"other\": there are threads, sync");
    refuse_name("syn,threads", "--engines \"syn\": there are threads, sync (did you mean sync?)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read_with_and_without_an_equals_sign),
        cmocka_unit_test(positionals_keep_their_order_wherever_they_stand),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_list_that_is_too_long_is_refused),
        cmocka_unit_test(names_are_found_whole),
        cmocka_unit_test(names_that_are_not_known_are_refused),
    };

    return cmocka_run_group_tests_name("flags", tests, NULL, NULL);
}
