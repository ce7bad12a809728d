#include "cli/opts.h"

#include <limits.h>
#include <string.h>

#include "cli/units.h"

#define FIELD(f)   offsetof(struct opts, f)
#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

enum {
    RUNS = CMD_RUN | CMD_EVAL | CMD_CHAT, /* commands that run a model */
    TALKS = CMD_RUN | CMD_CHAT,           /* that answer */
    READS_TEXT = CMD_RUN | CMD_EVAL | CMD_TOKENIZE,
    READS_INPUT = READS_TEXT | CMD_DETOKENIZE,
};

#define OTHER(...)                                                                                 \
    (const struct opt_help[])                                                                      \
    {                                                                                              \
        __VA_ARGS__,                                                                               \
        {                                                                                          \
            0, NULL                                                                                \
        }                                                                                          \
    }

const struct opt opts_table[] = {
    {"budget", 0, OPT_SIZE, GROUP_MEMORY, RUNS | CMD_PLAN | CMD_DOCTOR, FIELD(budget),
     .value = "SIZE", .env = "WASTE_BUDGET",
     .help = "memory for everything the engine takes, such as 46G; chosen if not given"},
    {"ctx", 0, OPT_INT, GROUP_MEMORY, RUNS | CMD_PLAN | CMD_DOCTOR, FIELD(ctx), 1, 1 << 24,
     .value = "N", .help = "most positions, prompt and answer together (4096)"},
    {"max-rows", 0, OPT_INT, GROUP_MEMORY, RUNS | CMD_PLAN | CMD_DOCTOR, FIELD(max_rows), 1, 4096,
     .value = "N", .help = "most prompt tokens in one pass (512; fewer while memory is short)"},
    {"cache", 0, OPT_CHOICE, GROUP_MEMORY, RUNS, FIELD(policy), .value = "nextuse|lfru|lru|s3fifo",
     .help = "which expert leaves memory first (nextuse)"},
    {"threads", 0, OPT_INT, GROUP_MEMORY, RUNS | CMD_PLAN | CMD_DOCTOR | CMD_VERIFY | CMD_SYNTH,
     FIELD(threads), 0, 64, .value = "N", .env = "WASTE_THREADS",
     .help = "threads; 0 = one per core (0)"},
    {"cpus", 0, OPT_TEXT, GROUP_MEMORY, RUNS | CMD_PLAN | CMD_DOCTOR, FIELD(cpus), .value = "LIST",
     .env = "WASTE_CPUS", .help = "bind threads to these CPUs, such as 0-7,16"},
    {"io", 0, OPT_CHOICE, GROUP_MEMORY, RUNS, FIELD(io), .value = "io_uring|libaio|threads|sync",
     .env = "WASTE_IO", .help = "how experts are read; the best that works if not given"},
    {"io-depth", 0, OPT_INT, GROUP_MEMORY, RUNS, FIELD(io_depth), 1, 4096, .value = "N",
     .env = "WASTE_IO_DEPTH", .help = "reads in flight; chosen if not given"},
    {"no-direct-io", 0, OPT_CLEAR, GROUP_MEMORY,
     RUNS | CMD_PLAN | CMD_DOCTOR | CMD_VERIFY | CMD_SYNTH | CMD_CONVERT, FIELD(direct),
     .env = "WASTE_DIRECT", .help = "read through the page cache"},
    {"lookahead", 0, OPT_INT, GROUP_MEMORY, RUNS, FIELD(lookahead), 0, 64, .value = "N",
     .env = "WASTE_LOOKAHEAD", .help = "experts of the next layer asked for early; 0 = off (6)"},
    {"verify", 0, OPT_SET, GROUP_MEMORY, RUNS, FIELD(verify), .env = "WASTE_VERIFY",
     .help = "check the checksum of each expert every time it is read (the default)"},
    {"no-verify", 0, OPT_CLEAR, GROUP_MEMORY, RUNS, FIELD(verify),
     .help = "do not: damage goes unseen"},
    {"numeric", 0, OPT_CHOICE, GROUP_MEMORY, RUNS | CMD_PLAN | CMD_DOCTOR, FIELD(numeric),
     .value = "f32|direct|i16|i8", .env = "WASTE_NUMERIC",
     .help = "arithmetic of the experts; not given: i16 with AVX-512 VBMI, else f32"},
    {NULL, 0, OPT_CPU, GROUP_MEMORY, RUNS | CMD_PLAN | CMD_DOCTOR, FIELD(cpu_level),
     .value = "c|avx2|avx512|neon", .env = "WASTE_CPU",
     .help = "highest kernel level used, of those this machine has"},
    {NULL, 0, OPT_TEXT, GROUP_MEMORY, RUNS, FIELD(route_trace), .value = "FILE",
     .env = "WASTE_DUMP_ROUTE", .help = "add to FILE which experts each token took"},
    {"learn", 0, OPT_SET, GROUP_MEMORY, RUNS, FIELD(learn),
     .help = "at the end, add the experts used to the hotlist, which the next run reads early "
             "(chat does)"},
    {"no-learn", 0, OPT_CLEAR, GROUP_MEMORY, RUNS, FIELD(learn), .help = "do not"},
    {"usage", 0, OPT_TEXT, GROUP_MEMORY, RUNS, FIELD(usage), .value = "PATH", .env = "WASTE_USAGE",
     .help = "the hotlist (usage.waste in MODEL; where that cannot be written, a file in the "
             "cache directory)"},
    {"exclusive-open", 0, OPT_SET, GROUP_MEMORY, RUNS | CMD_VERIFY, FIELD(exclusive),
     .help = "fail if another process has it open exclusively"},

    {"file", 0, OPT_TEXT, GROUP_TEXT, READS_INPUT, FIELD(file), .value = "FILE",
     .help = "read the prompt from FILE; - is standard input",
     .other = OTHER({CMD_TOKENIZE, "read the text from FILE, as it is; - is standard input"},
                    {CMD_DETOKENIZE, "read the ids from FILE; - is standard input"})},
    {"ids", 0, OPT_TEXT, GROUP_TEXT, CMD_RUN | CMD_EVAL, FIELD(ids), .value = "\"3 7 11\"",
     .help = "token ids instead of text"},
    {"content", 0, OPT_MODE, GROUP_TEXT, READS_TEXT, FIELD(markup), 0,
     .help = "control texts such as <|im_end|> are ordinary text (the default)",
     .other = OTHER({CMD_TOKENIZE, "control texts such as <|im_end|> are ordinary text"})},
    {"markup", 0, OPT_MODE, GROUP_TEXT, READS_TEXT, FIELD(markup), 1,
     .help = "control texts are their control tokens",
     .other = OTHER({CMD_TOKENIZE, "control texts are their control tokens (the default)"})},
    {"bos", 0, OPT_SET, GROUP_TEXT, READS_TEXT, FIELD(bos),
     .help = "put the id that begins a text in front"},

    {"image", 0, OPT_IMAGE, GROUP_TEXT, TALKS | CMD_PLAN, FIELD(image), .value = "FILE",
     .help = "a picture (JPEG, PNG, WebP) before the text, or where a --markup text says "
             "<|media_pad|>; up to " TEXT(WASTE_IMAGES_MAX),
     .other = OTHER({CMD_CHAT, "a picture (JPEG, PNG, WebP) with the first message; up to " TEXT(
                                   WASTE_IMAGES_MAX)},
                    {CMD_PLAN, "a picture (JPEG, PNG, WebP): what it will take; up to " TEXT(
                                   WASTE_IMAGES_MAX)})},
    {"vision", 0, OPT_SET, GROUP_MEMORY, TALKS | CMD_PLAN | CMD_SYNTH, FIELD(vision),
     .help = "load the vision tower, for pictures that come later; --image does, too",
     .other = OTHER({CMD_PLAN, "with the vision tower; --image does, too"},
                    {CMD_SYNTH, "with a vision tower, if the shape has one"})},
    {"free-vision", 0, OPT_SET, GROUP_MEMORY, TALKS, FIELD(free_vision),
     .help = "read the tower when a picture needs it, and give its memory back after that"},
    {"image-patches", 0, OPT_INT, GROUP_MEMORY, TALKS | CMD_PLAN | CMD_IMAGE, FIELD(image_patches),
     4, 65536, .value = "N",
     .help = "patches of 14 pixels square that a picture is shrunk to; the container says, mostly "
             "1024"},
    {NULL, 'n', OPT_INT, GROUP_CHOOSE, TALKS, FIELD(n_tokens), 1, UINT32_MAX, .value = "N",
     .help = "most tokens to generate (128)",
     .other = OTHER(
         {CMD_CHAT, "most tokens of an answer; as many as the context has room for if not given"})},
    {"temp", 0, OPT_F64, GROUP_CHOOSE, TALKS, FIELD(temp), 0, 1e6, .value = "F",
     .help = "temperature; 0 takes the likeliest token (0)"},
    {"top-p", 0, OPT_F64, GROUP_CHOOSE, TALKS, FIELD(top_p), 0, 1, true, .value = "F",
     .help = "keep the likeliest tokens that add up to F (1)"},
    {"top-k", 0, OPT_INT, GROUP_CHOOSE, RUNS | CMD_SYNTH, FIELD(top_k), 0, INT_MAX, .value = "N",
     .help = "keep the N likeliest tokens; 0 = all (0)",
     .other = OTHER({CMD_EVAL, "rows to print; 0 = all (10)"},
                    {CMD_SYNTH, "experts a token takes; 0 = as the shape has (0)"})},
    {"min-p", 0, OPT_F64, GROUP_CHOOSE, TALKS, FIELD(min_p), 0, 1, .value = "F",
     .help = "drop tokens less likely than F times the likeliest (0)"},
    {"seed", 0, OPT_SEED, GROUP_CHOOSE, TALKS | CMD_SYNTH, FIELD(seed), .value = "N",
     .help = "of random draws; with --temp above 0 one is drawn and shown if not given",
     .other = OTHER({CMD_SYNTH, "of the noise (0)"})},
    {"repeat-penalty", 0, OPT_F64, GROUP_CHOOSE, TALKS, FIELD(repeat_penalty), 0, 1e6, true,
     .value = "F", .help = "divide the logits of recent tokens by F (1)"},
    {"repeat-window", 0, OPT_INT, GROUP_CHOOSE, TALKS, FIELD(repeat_window), 0, UINT32_MAX,
     .value = "N", .help = "how many positions are recent (64)"},
    {"presence-penalty", 0, OPT_F64, GROUP_CHOOSE, TALKS, FIELD(presence_penalty), -1e6, 1e6,
     .value = "F", .help = "taken from the logit of each recent token (0)"},
    {"frequency-penalty", 0, OPT_F64, GROUP_CHOOSE, TALKS, FIELD(frequency_penalty), -1e6, 1e6,
     .value = "F", .help = "the same, once for each time it occurred (0)"},
    {"logit-bias", 0, OPT_BIAS, GROUP_CHOOSE, TALKS, FIELD(bias), .value = "ID=V",
     .help = "add V to the logit of token ID; repeatable"},
    {"stop", 0, OPT_STOP, GROUP_CHOOSE, TALKS, FIELD(stop), .value = "TEXT",
     .help = "end before TEXT; repeatable"},
    {"json-schema", 0, OPT_TEXT, GROUP_CHOOSE, CMD_RUN, FIELD(json_schema), .value = "FILE",
     .help = "the answer is JSON that satisfies the schema in FILE"},
    {"grammar", 0, OPT_TEXT, GROUP_CHOOSE, CMD_RUN, FIELD(grammar), .value = "FILE",
     .help = "the answer is a text of the grammar in FILE; see docs/CONSTRAINED.md"},
    {"tools", 0, OPT_TEXT, GROUP_CHOOSE, CMD_RUN, FIELD(tools), .value = "FILE",
     .help = "tools that the model may call, a JSON array; calls are printed as lines of JSON"},
    {"raw", 0, OPT_SET, GROUP_CHOOSE, CMD_RUN, FIELD(raw),
     .help = "continue the text as it is, without the model's chat format"},

    {"system", 0, OPT_TEXT, GROUP_TALK, TALKS, FIELD(system), .value = "TEXT",
     .help = "what the model is told before everything else"},
    {"think", 0, OPT_CHOICE, GROUP_TALK, TALKS, FIELD(think), .value = "none|low|high|max",
     .help = "how much to think before answering, where the model can (low)"},
    {"think-limit", 0, OPT_INT, GROUP_TALK, TALKS, FIELD(think_limit), 0, UINT32_MAX, .value = "N",
     .help = "most tokens of thinking; then it is closed and the answer begins"},
    {"hide-thinking", 0, OPT_SET, GROUP_TALK, TALKS, FIELD(hide_thinking),
     .help = "do not show what is thought"},
    {"verbose", 0, OPT_SET, GROUP_TALK, CMD_CHAT, FIELD(verbose),
     .help = "after each answer, what it took"},
    {"checkpoints", 0, OPT_INT, GROUP_TALK, TALKS, FIELD(checkpoints), 0, 4096, .value = "N",
     .help = "memory for so many states of a full context, to go back to (4, or fewer if there is "
             "no room for them)",
     .other =
         OTHER({CMD_RUN,
                "memory for so many states of a full context, to go on from (0; with --out 2)"})},
    {"state-dir", 0, OPT_TEXT, GROUP_TALK, TALKS, FIELD(state_dir), .value = "DIR",
     .help = "files with states, so that what was read once is not read again "
             "($XDG_CACHE_HOME/waste/states)",
     .other = OTHER({CMD_RUN, "files with states, so that what was read once is not read again"})},
    {"no-state-dir", 0, OPT_CLEAR, GROUP_TALK, CMD_CHAT, FIELD(states),
     .help = "no such files; lines that are typed are written all the same (--no-history)"},
    {"state-disk", 0, OPT_SIZE, GROUP_TALK, TALKS, FIELD(state_disk), .value = "SIZE",
     .help = "at most so many bytes of them; 0 = no limit (8G)"},
    {"no-history", 0, OPT_CLEAR, GROUP_TALK, CMD_CHAT, FIELD(history),
     .help = "do not remember the lines that are typed"},

    {"profile", 0, OPT_SET, GROUP_COMMAND, TALKS, FIELD(profile),
     .help = "at the end, where the time of a token went"},
    {"logits", 0, OPT_SET, GROUP_COMMAND, CMD_EVAL, FIELD(logits), .help = "every logit, too"},
    {"perplexity", 0, OPT_TEXT, GROUP_COMMAND, CMD_EVAL, FIELD(perplexity), .value = "FILE",
     .help = "how well FILE is predicted: bits per token and byte, perplexity"},
    {"drive", 0, OPT_RATE, GROUP_COMMAND, CMD_PLAN, FIELD(drive), .value = "RATE",
     .help = "expected tokens per second on a drive that reads this much, such as 7GB/s"},
    {"measure", 0, OPT_SET, GROUP_COMMAND, CMD_PLAN, FIELD(measure),
     .help = "the same, from reading the container's own records for a second"},
    {"ram", 0, OPT_RATE, GROUP_COMMAND, CMD_PLAN, FIELD(ram), .value = "RATE",
     .help = "rate of memory for that estimate; measured if not given"},
    {"headers", 0, OPT_SET, GROUP_COMMAND, CMD_VERIFY, FIELD(headers),
     .help = "headers and scales only: quick, and blind to flipped bits"},
    {"shape", 0, OPT_TEXT, GROUP_COMMAND, CMD_SYNTH, FIELD(shape), .value = "NAME",
     .help = "whose shape to make"},
    {"layers", 0, OPT_INT, GROUP_COMMAND, CMD_SYNTH, FIELD(layers), 1, 128, .value = "N",
     .help = "only so many layers"},
    {"experts", 0, OPT_INT, GROUP_COMMAND, CMD_SYNTH, FIELD(experts), 1, 65535, .value = "N",
     .help = "only so many experts a layer"},

    {"src", 0, OPT_TEXT, GROUP_COMMAND, CMD_CONVERT, FIELD(src), .value = "DIR",
     .help = "the checkpoint: config.json, safetensors, tokenizer"},
    {"out", 0, OPT_TEXT, GROUP_COMMAND, CMD_CONVERT | CMD_RUN | CMD_IMAGE, FIELD(out),
     .value = "PATH", .help = "the container to make",
     .other = OTHER({CMD_RUN, "the prompt is many requests, a JSON object a line: append an answer "
                              "to each to this file; the same command goes on after a crash"},
                    {CMD_IMAGE, "a file for what the model will see: *.png, else PPM"})},
    {"jobs", 0, OPT_INT, GROUP_COMMAND, CMD_CONVERT, FIELD(jobs), 0, 64, .value = "N",
     .help = "threads; 0 = one per core (0)"},
    {"format", 0, OPT_CHOICE, GROUP_COMMAND, CMD_CONVERT, FIELD(format), .value = "vq3r|vq2r|vq4p",
     .help = "of the experts: 3 or 2 codebooks of 256, 8 bits each for 8 weights; 4 of 64, 6 bits "
             "each (vq3r)"},
    {"stages", 0, OPT_CHOICE, GROUP_COMMAND, CMD_CONVERT, FIELD(stages), .value = "2|3",
     .help = "the same as --format vq2r or vq3r"},
    {"trunk-bits", 0, OPT_CHOICE, GROUP_COMMAND, CMD_CONVERT, FIELD(trunk_bits), .value = "4|8",
     .help = "width of what is always in memory (4)"},
    {"router-bits", 0, OPT_CHOICE, GROUP_COMMAND, CMD_CONVERT, FIELD(router_bits), .value = "8",
     .help = "the routers at 8 bits; as the trunk if not given"},
    {"against", 0, OPT_TEXT, GROUP_COMMAND, CMD_VERIFY, FIELD(against), .value = "DIR",
     .help = "compare with the checkpoint it was made from, instead"},
    {"sample", 0, OPT_INT, GROUP_COMMAND, CMD_CONVERT | CMD_VERIFY, FIELD(sample), 1, 65535,
     .value = "N", .help = "experts of a layer that codebooks are fitted on (12)",
     .other = OTHER({CMD_VERIFY, "experts of a layer that are compared with --against (4)"})},
    {"all", 0, OPT_SET, GROUP_COMMAND, CMD_VERIFY, FIELD(all),
     .help = "compare every expert and all of the trunk"},
    {"reclaim", 0, OPT_CHOICE, GROUP_COMMAND, CMD_CONVERT, FIELD(reclaim), .value = "dry|on",
     .help = "delete source shards as soon as they are converted; dry: say how many"},
    {"resume", 0, OPT_SET, GROUP_COMMAND, CMD_CONVERT, FIELD(resume),
     .help = "only go on with a conversion that was interrupted, begin none"},

    {"drives", 0, OPT_TEXT, GROUP_COMMAND, CMD_PLACE, FIELD(drives), .value = "DIR[=N],...",
     .help = "directories on other drives, with a share from 1 to 16 each; \".\" is the "
             "container's own (0: no part of it). Without shares all are measured"},
    {"gather", 0, OPT_SET, GROUP_COMMAND, CMD_PLACE, FIELD(gather),
     .help = "bring everything back into the container"},

    {"json", 0, OPT_SET, GROUP_OUTPUT, CMD_ALL & ~CMD_HELP, FIELD(json),
     .help = "one JSON object on standard output; an error is one on standard error",
     .other = OTHER({CMD_RUN, "a JSON object for each token on standard output, then one with all; "
                              "an error is one on standard error"},
                    {CMD_CHAT, "a JSON object for each answer on standard output; an error is one "
                               "on standard error"})},
    {"config", 0, OPT_TEXT, GROUP_OUTPUT, CMD_ALL & ~(CMD_HELP | CMD_VERSION), FIELD(config),
     .value = "FILE", .help = "options from here ($XDG_CONFIG_HOME/waste/config)"},
    {"no-config", 0, OPT_CLEAR, GROUP_OUTPUT, CMD_ALL & ~(CMD_HELP | CMD_VERSION),
     FIELD(configured), .help = "from no file"},
    {"quiet", 'q', OPT_SET, GROUP_OUTPUT, CMD_ALL, FIELD(quiet),
     .help = "nothing on standard error but errors"},
    {"color", 0, OPT_COLOR, GROUP_OUTPUT, CMD_ALL, FIELD(color), 1,
     .help = "colours even where they are not expected"},
    {"no-color", 0, OPT_COLOR, GROUP_OUTPUT, CMD_ALL, FIELD(color), 0,
     .help = "none (as with NO_COLOR set)"},
    {"help", 'h', OPT_SET, GROUP_OUTPUT, CMD_ALL, FIELD(help), .help = "this text"},
    {"version", 0, OPT_SET, GROUP_OUTPUT, CMD_VERSION, FIELD(version), .help = "as the command"},
};

const unsigned opts_rows = N_ELEMS(opts_table);
_Static_assert(N_ELEMS(opts_table) <= OPTS_ROWS_MAX, "struct opts has a flag per row");

static const char *const group_title[OPT_GROUPS] = {
    [GROUP_MEMORY] = "Memory, disk and processor",
    [GROUP_TEXT] = "Text in",
    [GROUP_TALK] = "Conversations",
    [GROUP_CHOOSE] = "Choosing tokens",
    [GROUP_COMMAND] = "This command",
    [GROUP_OUTPUT] = "Output",
};

enum { HELP_COLUMN = 27 };

static const char *help_of(const struct opt *opt, unsigned commands)
{
    for (const struct opt_help *x = opt->other; x && x->commands; x++) {
        if (x->commands & commands)
            return x->help;
    }
    return opt->help;
}

static void print_option(FILE *to, const struct opt *opt, unsigned commands)
{
    char left[64], right[256];
    int n;

    n = snprintf(left, sizeof(left), "  %s%.*s%s%s%s%s", opt->letter ? "-" : "",
                 opt->letter ? 1 : 0, &opt->letter, opt->letter && opt->name ? ", " : "",
                 opt->name ? "--" : "", opt->name ? opt->name : "", opt->value ? " " : "");
    if (opt->value)
        n += snprintf(left + n, sizeof(left) - (size_t)n, "%s", opt->value);
    snprintf(right, sizeof(right), "%s%s%s%s", help_of(opt, commands), opt->env ? " [" : "",
             opt->env ? opt->env : "", opt->env ? "]" : "");
    fputs(left, to);
    if (n > HELP_COLUMN - 2) {
        fputc('\n', to);
        n = 0;
    }
    fprintf(to, "%*s", HELP_COLUMN - 1 - n, "");
    print_wrapped(to, right, HELP_COLUMN - 1, HELP_COLUMN);
}

static bool shown(const struct opt *opt, unsigned commands)
{
    return (opt->commands & commands) && (opt->name || opt->letter);
}

void opts_help(FILE *to, unsigned commands)
{
    bool variables = false;

    for (int g = 0; g < OPT_GROUPS; g++) {
        bool title = false;

        for (unsigned i = 0; i < opts_rows; i++) {
            if (opts_table[i].group != (enum opt_group)g || !shown(&opts_table[i], commands))
                continue;
            if (!title)
                fprintf(to, "\n%s:\n", group_title[g]);
            title = true;
            print_option(to, &opts_table[i], commands);
        }
    }
    for (unsigned i = 0; i < opts_rows; i++) {
        if (!opts_table[i].env || shown(&opts_table[i], commands) ||
            !(opts_table[i].commands & commands))
            continue;
        if (!variables)
            fputs("\nVariables without an option:\n", to);
        variables = true;
        fprintf(to, "  %-*s", HELP_COLUMN - 3, opts_table[i].env);
        print_wrapped(to, opts_table[i].help, HELP_COLUMN - 1, HELP_COLUMN);
    }
}
