"""reference.py - what the commands understand, read off their own help, which is printed from the option
tables (cli/opts_table.c, cli/bench): pages and completions that are made of it cannot say otherwise.

The server's options are its own, in serve/__main__.py; that file is parsed and not run, so that a build
needs none of the server's packages.
"""
import ast
import dataclasses
import os
import re
import subprocess


@dataclasses.dataclass
class Option:
    """`names` as typed, "-q" and "--quiet"; `value` what follows, "SIZE" or "a|b|c", or ""."""
    names: list
    value: str
    text: str
    repeats: bool = False


@dataclasses.dataclass
class Command:
    name: str
    summary: str = ""
    arguments: str = ""  # "MODEL [PROMPT]"
    text: list = dataclasses.field(default_factory=list)  # lines
    groups: list = dataclasses.field(default_factory=list)  # (title or "", [Option])
    variables: list = dataclasses.field(default_factory=list)  # (name, text), those without an option
    examples: list = dataclasses.field(default_factory=list)  # lines

    @property
    def options(self):
        return [option for _, options in self.groups for option in options]


def ask(program, *words):
    """Standard output of a help command. No variable of the builder's is about it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}
    return subprocess.run([program, *words], stdout=subprocess.PIPE, check=True, env=env,
                          text=True).stdout


COLUMN = 27  # where the help prints what an option is


def entries(lines):
    """Rows of a help table, (left, right): the text starts in that column, below a left side that is too
    long, and goes on below itself."""
    found = []
    for line in lines:
        if line[2] == " ":
            found[-1][1] += " " + line.strip()
        elif len(line) > COLUMN and line[COLUMN - 1] == " ":
            found.append([line[:COLUMN].strip(), line[COLUMN:].strip()])
        else:
            found.append([line.strip(), ""])
    return [(left, right.strip()) for left, right in found]


def option_of(left, right):
    names = re.findall(r"(?:^|, )(--?[\w-]+)", left)
    value = re.sub(r"^--?[\w-]+(, --?[\w-]+)* ?", "", left)
    return Option(names, value, right, bool(re.search(r"repeatable|up to \d", right)))


def read_help(name, help_text):
    """A command from its help."""
    blocks = help_text.rstrip("\n").split("\n\n")
    usage = re.match(r"Usage: [\w-]+ [\w-]+ ?(.*)", blocks[0])[1]
    command = Command(name, arguments=usage.replace("[OPTIONS]", "").strip())
    for block in blocks[1:]:
        lines = block.split("\n")
        if lines[0] == "Examples:":
            command.examples = [line[2:] for line in lines[1:]]
        elif lines[0].startswith("Exit codes:"):
            continue  # the pages have a table of their own
        elif lines[0] == "Variables without an option:":
            command.variables = entries(lines[1:])
        elif re.fullmatch(r"[A-Z][\w ,]+:", lines[0]) and lines[1].startswith("  "):
            command.groups.append((lines[0][:-1], [option_of(*e) for e in entries(lines[1:])]))
        elif lines[0].startswith("  --"):
            command.groups.append(("", [option_of(*e) for e in entries(lines)]))
        else:
            command.text += lines
    return command


def commands(program):
    """What a program's help lists, in its order, as {name: Command}."""
    found = {}
    for line in ask(program, "help").split("\n"):
        row = re.match(r"  (\w+) ?(.*)", line)
        if row:
            name, rest = row.groups()
            command = read_help(name, ask(program, "help", name))
            command.summary = rest.removeprefix(command.arguments).strip()
            found[name] = command
    return found


def served(source):
    """Groups of options of `waste serve`, from the calls of its argument parser."""
    with open(source, encoding="utf-8") as file:
        calls = [node for node in ast.walk(ast.parse(file.read()))
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    groups = []
    for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset)):
        if call.func.attr == "add_argument_group":
            groups.append((call.args[0].value.capitalize(), []))
        elif call.func.attr == "add_argument" and call.args[0].value.startswith("-"):
            groups[-1][1].append(served_option(call))
    return groups


def value_of(node):
    """A literal's value; that of "8 << 20"; of a name, the name."""
    try:
        return eval(compile(ast.Expression(node), "serve", "eval"), {"__builtins__": {}})
    except NameError:
        return ast.unparse(node)


VALUES = {"size": "SIZE", "count": "N", "positive": "N", "port": "N", "float": "N"}  # by type


def served_option(call):
    given = {keyword.arg: value_of(keyword.value) for keyword in call.keywords
             if keyword.arg != "type" or isinstance(keyword.value, ast.Name)}
    name, choices, default = call.args[0].value, given.get("choices"), given.get("default")
    if given.get("action") == "store_true":
        value = ""
    elif isinstance(choices, tuple):
        value = "|".join(choices)
    else:
        value = given.get("metavar") or VALUES.get(given.get("type"), "TEXT")
    text = given.get("help", "")
    if default not in (None, [], False):
        text += f"{' ' if text else ''}({in_units(default)})"
    return Option([name], value, text, given.get("action") == "append")


def in_units(value):
    """34359738368 as 32G, which is how it is typed."""
    for shift, unit in ((30, "G"), (20, "M")):
        if isinstance(value, int) and value and value % (1 << shift) == 0:
            return f"{value >> shift}{unit}"
    return value


def everything(waste, serve_main):
    """All commands of `waste`, the server's options among them."""
    found = commands(waste)
    found["serve"].groups = served(serve_main) + [("", [Option(["-h", "--help"], "", "this text")])]
    return found
