/* cli/waste.c - the command table, and main. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "cli/cmd.h"
#include "cli/config.h"
#include "cli/nearest.h"
#include "cli/places.h"

extern char **environ;

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static int cmd_help(struct cli *c);

static const struct command {
    const char *name;
    unsigned bit;
    int (*run)(struct cli *c);
    unsigned min_args, max_args; /* positionals after the name */
    const char *args, *summary, *text, *examples;
} commands[] = {
    {"run", CMD_RUN, cmd_run, 1, 2, "MODEL [PROMPT]", "answer a prompt, or continue a text",
     "A model that has a chat format answers in it; with --raw, and without a\n"
     "format, the text is continued. The prompt is an argument, --file, or what is\n"
     "piped in; newlines at the end of a file or of piped text are removed. The\n"
     "answer goes to standard output as it is made, everything else to standard\n"
     "error. Ctrl-C ends the answer, a second one the program. On a terminal,\n"
     "control characters of the answer become \\xNN. With --out the prompt is many\n"
     "requests, one JSON object a line.",
     "  waste run demo \"Once upon a time\" -n 60\n"
     "  waste run k3.waste --file question.txt --budget 46G --temp 0.7 --stop END\n"
     "  echo 2 + 2 = | waste run k3.waste --raw --json -n 4\n"
     "  waste run k3.waste --file prompts.jsonl --out answers.jsonl\n"},
    {"chat", CMD_CHAT, cmd_chat, 1, 1, "MODEL", "talk with a model",
     "A message is a line; \"\"\" begins and ends one of several lines, and a line\n"
     "that ends in \\ goes on. /help lists the commands: /retry, /edit, /undo,\n"
     "/save, /load ... Answers go to standard output, everything else to standard\n"
     "error. Ctrl-C stops an answer, and what there is of it stays; a second one\n"
     "leaves, as the end of input does. What the model has read is kept, in memory\n"
     "and in files for your eyes only (--no-state-dir: none), so that it is not read\n"
     "again.",
     "  waste chat kimi-linear.waste --system \"Answer briefly.\"\n"
     "  waste chat k3.waste --budget 46G --think high --temp 0.7\n"
     "  waste chat k3.waste --no-state-dir --no-history\n"},
    {"eval", CMD_EVAL, cmd_eval, 1, 2, "MODEL [PROMPT]", "what the model expects next",
     "The likeliest next tokens after a prompt, with logit and probability. The prompt\n"
     "is an argument, --file, or what is piped in; newlines at the end of a file or of\n"
     "piped text are removed.",
     "  waste eval demo \"The capital of France is\" --top-k 5\n"
     "  waste eval demo --ids \"3 7 11\" --json --logits\n"},
    {"tokenize", CMD_TOKENIZE, cmd_tokenize, 1, 2, "MODEL [TEXT]", "text to token ids",
     "Reads the tokenizer only, not the model. The text is an argument, --file, or\n"
     "what is piped in, and is taken exactly as it is: a newline at its end is part\n"
     "of it.",
     "  waste tokenize demo \"Hello\"\n"
     "  waste tokenize k3.waste --content --file user.txt\n"},
    {"detokenize", CMD_DETOKENIZE, cmd_detokenize, 1, ~0u, "MODEL [IDS]", "token ids to text",
     "Ids are separated by spaces, commas or newlines; one that stands for nothing is\n"
     "an error. Bytes come out as they are; on a terminal, control characters become\n"
     "\\xNN; under --json, what is not UTF-8 is replaced.",
     "  waste detokenize demo 402 1917\n"},
    {"plan", CMD_PLAN, cmd_plan, 1, 1, "MODEL", "what a model needs, before anything is loaded",
     "MODEL may also be a release's config.json, or its directory, before the rest is\n"
     "downloaded. Under --json the exit code is 3 if it does not fit.",
     "  waste plan k3.waste --budget 46G\n"
     "  waste plan config.json --ctx 32768 --drive 7GB/s\n"
     "  waste plan k3.waste --measure\n"},
    {"doctor", CMD_DOCTOR, cmd_doctor, 0, 1, "[MODEL]",
     "is this machine good for it, and what would be better",
     "Looks at kernel, processor, memory and its limits, at the file system and the\n"
     "drive below MODEL (or another directory; \".\" if not given), says what to do about\n"
     "each thing that could be better, reads the model's records for a second, and\n"
     "ends with what to expect. Nothing is changed. Exit code 3: the model does not fit.",
     "  waste doctor\n"
     "  waste doctor k3.waste --budget 46G\n"
     "  waste doctor /mnt/nvme --json\n"},
    {"image", CMD_IMAGE, cmd_image, 1, 2, "FILE [MODEL]", "what a model will see of a picture",
     "Size, patches and tokens of a JPEG, PNG or WebP, by MODEL's rule or the usual one.\n"
     "With --out, the picture as it is shown to the vision tower: turned upright, shrunk,\n"
     "on a chessboard where it is transparent, black where it is padded.",
     "  waste image photo.jpg\n"
     "  waste image photo.jpg k3.waste --out seen.png\n"},
    {"info", CMD_INFO, cmd_info, 1, 1, "MODEL", "what a container holds",
     "From the manifest and the sizes of files; nothing is loaded.", "  waste info k3.waste\n"},
    {"verify", CMD_VERIFY, cmd_verify, 1, 1, "MODEL", "check every byte that can be checked",
     "Header, scales and checksum of every expert; what opens a model: configuration,\n"
     "tensors, tokenizer. The trunk and the codebooks have no checksum in this format:\n"
     "their sizes, headers and finite values are checked, and no flipped bit in them\n"
     "is found. It goes on past what is missing or damaged, and names all of it.\n"
     "Exit code 4: damage was found; 1: something could not be read.",
     "  waste verify k3.waste\n"
     "  waste verify k3.waste --headers --json\n"
     "  waste verify k3.waste --against Kimi-K3 --sample 4\n"},
    {"convert", CMD_CONVERT, cmd_convert, 0, 0, "--src DIR --out DIR.waste",
     "make a container of a published checkpoint",
     "Reads safetensors of Kimi-Linear, Kimi K3, DeepSeek-V3/R1 and Kimi K2. Everything that\n"
     "can be missing is looked for first; an interrupted run is continued by the same\n"
     "command, and ends with the same bytes.",
     "  waste convert --src Kimi-Linear-48B-A3B-Instruct --out kimi-linear.waste\n"
     "  waste convert --src Kimi-K3 --out k3.waste --jobs 16 --reclaim dry\n"},
    {"place", CMD_PLACE, cmd_place, 1, 1, "MODEL",
     "spread a container's experts over several drives",
     "Each drive gets a part of every layer, so that a token's experts come from all of\n"
     "them at once. Nothing is kept twice. Layers move one by one; an interrupted move is\n"
     "continued by the same command, and the model runs at any stage of it. A drive that\n"
     "is missing later is an error that names it. Without options: where things are.\n"
     "Other programs read the container again after --gather.",
     "  waste place k3.waste --drives /mnt/b,/mnt/c\n"
     "  waste place k3.waste --drives /mnt/b=3,.=1\n"
     "  waste place k3.waste --gather\n"},
    {"synth", CMD_SYNTH, cmd_synth, 1, 1, "MODEL",
     "make a container of a real shape, filled with noise",
     "To measure a machine before a terabyte is downloaded. The same options give the\n"
     "same bytes. After an interrupt the same command goes on: finished files\n"
     "are kept; an unfinished one is begun anew.",
     "  waste synth demo-synth.waste --shape tiny-kimi\n"
     "  waste synth noise.waste --shape kimi-linear-48b --layers 4\n"},
    {"serve", 0, cmd_serve, 1, 1, "MODEL",
     "answer requests over HTTP, as OpenAI's and Anthropic's clients send them",
     "The server is Python with aiohttp and prometheus_client, on libwaste. Its options\n"
     "are its own: `waste serve --help`. The command comes first.",
     "  waste serve kimi-linear.waste --port 8000\n"
     "  waste serve k3.waste --budget 46G --state-dir ~/.cache/waste/states\n"},
    {"config", CMD_CONFIG, cmd_config, 1, 2, "show [MODEL]", "options in effect, and where from",
     "Options may stand in a file, $XDG_CONFIG_HOME/waste/config or --config FILE,\n"
     "in lines of \"option = value\": for everything or, below \"[model NAME]\", for\n"
     "one model. Flags beat variables, those beat the model's section, that the rest\n"
     "of the file.",
     "  waste config show\n"
     "  waste config show k3.waste --temp 0.7\n"},
    {"version", CMD_VERSION, cmd_version, 0, 0, "", "version and build", NULL, NULL},
    {"help", CMD_HELP, cmd_help, 0, 1, "[COMMAND]", "this text, or a command's", NULL, NULL},
};

static const struct command *command_named(const char *name)
{
    for (size_t i = 0; i < N_ELEMS(commands); i++) {
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    }
    return NULL;
}

static void print_usage(FILE *to)
{
    fputs("waste runs Mixture-of-Experts models whose experts stay on disk.\n\n"
          "Usage: waste COMMAND [OPTIONS] ...\n\n",
          to);
    for (size_t i = 0; i < N_ELEMS(commands); i++) {
        char left[40];

        snprintf(left, sizeof(left), "%s %s", commands[i].name,
                 commands[i].args[0] == '-' ? "" : commands[i].args);
        fprintf(to, "  %-22s %s\n", left, commands[i].summary);
    }
    fputs("\nMODEL is a container's directory, or the bare name of one that is installed; demo, a "
          "small\n"
          "one, comes along: `waste chat demo`.\n"
          "`waste help COMMAND` has the options and examples of a command; waste-bench measures.\n",
          to);
}

static void print_command(FILE *to, const struct command *k)
{
    fprintf(to, "Usage: waste %s %s%s[OPTIONS]\n\n%s\n", k->name, k->args, *k->args ? " " : "",
            k->text ? k->text : k->summary);
    opts_help(to, k->bit);
    if (k->examples)
        fprintf(to, "\nExamples:\n%s", k->examples);
    if (k->bit & (CMD_RUN | CMD_EVAL | CMD_CHAT))
        fputs("\nExit codes: 0 done, 1 failed, 2 misused, 3 does not fit in memory, 4 damaged\n"
              "container, 5 busy, 6 unsupported, 130 interrupted.\n",
              to);
}

static int unknown_command(struct cli *c, const char *name)
{
    const char *names[N_ELEMS(commands)], *near;

    if (!*name)
        return fail(c, EXIT_USAGE, "`waste help` lists the commands.", "waste",
                    "the command is empty");
    if (!strcmp(name, "bench"))
        return fail(c, EXIT_USAGE, "`waste-bench help` lists what it measures.", name,
                    "a program of its own: waste-bench");
    for (size_t i = 0; i < N_ELEMS(commands); i++)
        names[i] = commands[i].name;
    near = nearest_name(name, names, N_ELEMS(commands));
    return fail(c, EXIT_USAGE, "`waste help` lists the commands.", name, "unknown command%s%s%s",
                near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
}

static int cmd_help(struct cli *c)
{
    const struct command *k = NULL;

    if (c->opts.n_args > 1) {
        k = command_named(c->opts.arg[1]);
        if (!k)
            return unknown_command(c, c->opts.arg[1]);
    }
    if (k)
        print_command(stdout, k);
    else
        print_usage(stdout);
    return term_flush(&c->term) ? 0 : fail_output(c);
}

static int run_command(struct cli *c, const struct command *k)
{
    unsigned n = c->opts.n_args - 1;
    char hint[80];
    struct err e;

    c->command = k->name;
    if (c->opts.help) {
        print_command(stdout, k);
        return term_flush(&c->term) ? 0 : fail_output(c);
    }
    if (opts_apply(&c->opts, k->bit, k->name, &e))
        return fail_err(c, &e, k->name);
    if (n < k->min_args) {
        snprintf(hint, sizeof(hint), "`waste help %s` has the options and examples.", k->name);
        return fail(c, EXIT_USAGE, hint, k->name, "%.*s is missing; usage: waste %s %s",
                    (int)strcspn(k->args, " "), k->args, k->name, k->args);
    }
    if (n > k->max_args)
        return fail(c, EXIT_USAGE, NULL, k->name,
                    "\"%s\" is one argument too many; usage: waste %s%s%s",
                    c->opts.arg[1 + k->max_args], k->name, *k->args ? " " : "", k->args);
    return k->run(c);
}

static int dispatch(struct cli *c)
{
    const struct command *k;

    if (!c->opts.n_args && c->opts.version)
        c->opts.arg[c->opts.n_args++] = "version";
    if (!c->opts.n_args && c->opts.help)
        c->opts.arg[c->opts.n_args++] = "help";
    if (!c->opts.n_args && c->opts.json)
        return fail(c, EXIT_USAGE, "`waste help` lists the commands.", "waste",
                    "a command is missing");
    if (!c->opts.n_args) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(c->opts.arg[0], "help"))
        c->opts.help = false; /* `waste help run --help` asks once too often */
    k = command_named(c->opts.arg[0]);
    return k ? run_command(c, k) : unknown_command(c, c->opts.arg[0]);
}

/* Help and version read neither a file nor a variable. */
static bool needs_settings(const struct opts *o)
{
    return !o->help && strcmp(o->arg[0], "help") != 0 && strcmp(o->arg[0], "version") != 0;
}

/* The file, for what is asked: its command and model. */
static int read_config(struct cli *c, const struct opts *asked, struct config *config)
{
    const struct command *k = command_named(asked->arg[0]);
    const char *model = asked->n_args > 1 ? asked->arg[1] : NULL;
    struct err e;

    if (!k || !asked->configured)
        return 0;
    if (k->bit == CMD_CONFIG)
        model = asked->n_args > 2 ? asked->arg[2] : NULL;
    if (asked->config)
        snprintf(c->config_path, sizeof(c->config_path), "%s", asked->config);
    else if (!place_of(PLACE_CONFIG, "config", c->config_path) || access(c->config_path, F_OK))
        c->config_path[0] = '\0';
    if (!c->config_path[0])
        return 0;
    if (config_read(config, c->config_path, &e) ||
        config_apply(config, &c->opts, model, k->bit == CMD_CONFIG ? 0 : k->bit, &e))
        return fail_err(c, &e, "config");
    return 0;
}

static int fail_option(struct cli *c, const struct err *e)
{
    const struct command *k = c->opts.n_args ? command_named(c->opts.arg[0]) : NULL;
    char hint[80];

    snprintf(hint, sizeof(hint), "`waste help %s` has the options.", k ? k->name : "COMMAND");
    return fail(c, exit_of_err(e->code), hint, c->opts.n_args ? c->opts.arg[0] : "options", "%s",
                e->text);
}

/* The file, variables, flags: later ones win. The flags are read twice: what is asked decides what
 * of the file matters. */
static int read_options(struct cli *c, int argc, char **argv, struct config *config)
{
    struct err env = {0}, e;
    struct opts asked;
    int rc = 0;

    opts_init(&asked);
    if (!opts_parse(&asked, argc, argv, &e) && asked.n_args && needs_settings(&asked)) {
        c->opts.json = asked.json;
        term_color(&c->term, asked.color);
        rc = read_config(c, &asked, config);
        c->opts.json = false;
    }
    opts_release(&asked);
    if (rc)
        return rc;
    opts_env(&c->opts, environ, &env);
    if (opts_parse(&c->opts, argc, argv, &e)) {
        for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
            c->opts.json |= !strcmp(argv[i], "--json"); /* also behind what is wrong */
        return fail_option(c, &e);
    }
    term_color(&c->term, c->opts.color);
    return env.code && c->opts.n_args && needs_settings(&c->opts) ? fail_err(c, &env, "environment")
                                                                  : 0;
}

int main(int argc, char **argv)
{
    struct cli c = {.command = "waste"};
    struct config config = {0};
    struct err e;
    int rc;

    term_open(&c.term);
    opts_init(&c.opts);
    if (argc > 1 && !strcmp(argv[1], "serve")) {
        c.command = "serve";
        return serve_exec(&c, argc - 2, argv + 2);
    }
    rc = read_options(&c, argc, argv, &config);
    if (!rc && thread_main_stack(&e))
        rc = fail_err(&c, &e, "stack");
    bar_open(&c.bar, &c.term, c.opts.quiet, c.opts.json);
    if (!rc)
        rc = dispatch(&c);
    bar_end(&c.bar);
    opts_release(&c.opts);
    config_release(&config);
    return rc;
}
