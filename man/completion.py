#!/usr/bin/env python3
"""completion.py - completions for bash and zsh, of what the commands themselves say.

    completion.py bash|zsh WASTE WASTE_BENCH SERVE

To standard output; both programs are in one file, for each shell loads by name (bash through a second
name for it). Commands, options and the choices of a value are complete; values that name a file, a
directory or a model are completed as paths; other values are left to whoever types.
"""
import re
import sys

import reference

FILES = {"FILE", "PATH"}
FOLDERS = {"DIR", "MODEL"}


def kind(value):
    """What completes a value: "files", "folders", "commands", its choices, or nothing."""
    name = value.strip("[].")
    if "|" in value:
        return value.split("|")
    if name == "show":
        return [name]
    if name in FILES or name == "TRACE":
        return "files"
    if name in FOLDERS:
        return "folders"
    return "commands" if name == "COMMAND" else ""


def positionals(command):
    """Kinds of the arguments that are no options, in their order, and whether the last repeats."""
    words = re.sub(r"--\w+ \S+", "", command.arguments).split()
    return [kind(word) for word in words], bool(words) and words[-1].endswith("...")


# ---- bash -------------------------------------------------------------------------------------

BASH_HEAD = """\
# Completion of waste and waste-bench for bash. Made by man/completion.py from the commands' own help.

# _waste_offer KIND [WORD...]: candidates for what is being typed.
_waste_offer()
{
    case $1 in
    words) mapfile -t COMPREPLY < <(compgen -W "${*:2}" -- "$cur") ;;
    files) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folders) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    *) COMPREPLY=() ;;
    esac
    if [[ $1 == files || $1 == folders ]]; then
        compopt -o filenames 2>/dev/null # which there is only while bash completes
    fi
    return 0
}

# _waste_typed: the command, and what is being typed: an option's value behind "--name value" or
# "--name=value" (where bash may have cut at the =), or the n-th argument.
_waste_typed()
{
    local i word
    cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]-} option='' argument=0
    (( COMP_CWORD == 1 )) && command=
    for (( i = 2; i < COMP_CWORD; i++ )); do
        word=${COMP_WORDS[i]}
        if [[ $word == = ]]; then
            option=${COMP_WORDS[i - 1]}
        elif [[ -n $option ]]; then
            option=
        elif [[ $word == -* ]]; then
            _waste_takes_value "$1" "$command" "$word" && option=$word
        else
            (( ++argument ))
        fi
    done
    if [[ $cur == = ]]; then
        option=${COMP_WORDS[COMP_CWORD - 1]} cur=
    elif [[ $cur == --*=* ]]; then
        option=${cur%%=*} cur=${cur#*=}
    fi
}
"""

BASH_MAIN = """
_waste()
{
    local cur command option argument
    COMPREPLY=()
    _waste_typed "${1##*/}"
    if [[ -z $command ]]; then
        _waste_offer words "$(_waste_commands "${1##*/}")"
    elif [[ -n $option ]]; then
        _waste_value "${1##*/}" "$command" "$option"
    elif [[ $cur == -* ]]; then
        _waste_offer words "$(_waste_options "${1##*/}" "$command")"
    else
        _waste_argument "${1##*/}" "$command" "$argument"
    fi
}
complete -F _waste waste waste-bench
"""


def offer(what, program):
    if what == "commands":
        return f'_waste_offer words "$(_waste_commands {program})"'
    if isinstance(what, list):
        return "_waste_offer words " + " ".join(what)
    return f"_waste_offer {what}" if what else ":"


def bash_function(name, case, rows, otherwise):
    body = "".join(f"    {pattern}) {action} ;;\n" for pattern, action in rows)
    return f"\n{name}()\n{{\n    case {case} in\n{body}    *) {otherwise} ;;\n    esac\n}}\n"


def named(program, command, options):
    return "|".join(f"{program}:{command}:{name}" for o in options for name in o.names)


def bash(programs):
    lists, options, takes, values, arguments = [], [], [], [], []
    for program, commands in programs.items():
        lists.append((program, f"echo {' '.join(commands)}"))
        for name, command in commands.items():
            at = f"{program}:{name}"
            options.append((at, "echo " + " ".join(n for o in command.options for n in o.names)))
            by_kind = {}
            for o in (o for o in command.options if o.value):
                by_kind.setdefault(offer(kind(o.value), program), []).append(o)
            for action, group in by_kind.items():
                values.append((named(program, name, group), action))
                takes.append((named(program, name, group), "return 0"))
            kinds, repeats = positionals(command)
            for i, what in enumerate(kinds):
                last = repeats and i == len(kinds) - 1
                arguments.append((f"{at}:*" if last else f"{at}:{i}", offer(what, program)))
    return (BASH_HEAD + bash_function("_waste_commands", "$1", lists, ":")
            + bash_function("_waste_options", "$1:$2", options, ":")
            + bash_function("_waste_takes_value", "$1:$2:$3", takes, "return 1")
            + bash_function("_waste_value", "$1:$2:$3", values, ":")
            + bash_function("_waste_argument", "$1:$2:$3", arguments, ":") + BASH_MAIN)


# ---- zsh --------------------------------------------------------------------------------------


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def described(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def zsh_action(what):
    if what == "commands":
        return "->commands"
    if isinstance(what, list):
        return f"({' '.join(what)})"
    return {"files": "_files", "folders": "_files -/", "": " "}[what]


def zsh_option(o):
    label = o.names[-1].lstrip("-") if "|" in o.value else described(o.value)
    message = f":{label}:{zsh_action(kind(o.value))}" if o.value else ""
    text = f"[{described(o.text)}]" if o.text else ""
    if len(o.names) == 1:
        return quoted(f"{'*' if o.repeats else ''}{o.names[0]}"
                      f"{'=' if o.value and o.names[0].startswith('--') else ''}{text}{message}")
    excluded = " ".join(o.names)
    return f"{quoted(f'({excluded})')}{{{','.join(o.names)}}}{quoted(text + message)}"


def zsh_command(command):
    specs = [zsh_option(o) for o in command.options]
    kinds, repeats = positionals(command)
    for i, what in enumerate(kinds):
        place = "*" if repeats and i == len(kinds) - 1 else str(i + 1)
        if what:  # a place without candidates would keep zsh from completing an option there
            specs.append(quoted(f"{place}:argument:{zsh_action(what)}"))
    return f"    {command.name})\n        _arguments -s \\\n            " + " \\\n            ".join(
        specs) + "\n        ;;\n"


def zsh_program(program, commands):
    function = "_" + program.replace("-", "_")
    names = "\n".join(f"        {quoted(described(c.name) + ':' + described(c.summary))}"
                      for c in commands.values())
    cases = "".join(zsh_command(c) for c in commands.values())
    return f"""\
{function}_commands()
{{
    local -a commands=(
{names}
    )
    _describe -t commands command commands
}}

{function}()
{{
    local curcontext=$curcontext state line
    typeset -A opt_args
    if (( CURRENT == 2 )); then
        {function}_commands
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
{cases}    esac
    [[ $state == commands ]] && {function}_commands
}}

"""


def zsh(programs):
    return ("#compdef waste waste-bench\n"
            "# Completion of waste and waste-bench for zsh. Made by man/completion.py from the\n"
            "# commands' own help.\n\n"
            + "".join(zsh_program(*program) for program in programs.items())
            + 'case $service in\nwaste-bench) _waste_bench "$@" ;;\n*) _waste "$@" ;;\nesac\n')


def main(shell, waste, waste_bench, serve):
    programs = {"waste": reference.everything(waste, serve),
                "waste-bench": reference.commands(waste_bench)}
    sys.stdout.write({"bash": bash, "zsh": zsh}[shell](programs))


if __name__ == "__main__":
    main(*sys.argv[1:])
