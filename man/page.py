#!/usr/bin/env python3
"""page.py - a manual page: a template in scdoc's language, with what the program itself can say.

    page.py SCDOC VERSION PROGRAM SERVE HEADER TEMPLATE [COMMAND]

PROGRAM is `waste` or `waste-bench`, SERVE is serve/__main__.py, HEADER is waste.h. A line "@word@" of the
template stands for what the function of that name below writes. The page goes to standard output.
"""
import re
import subprocess
import sys

import reference

COMMON_EXITS = [("0", "done"), ("1", "failed"), ("2", "misused"),
                ("3", "does not fit in memory"), ("4", "a damaged container"),
                ("5", "somebody else holds it"), ("6", "not supported here"),
                ("130", "interrupted")]


def plain(text):
    """Text that nothing in it formats."""
    text = re.sub(r"([\\*_`#<>~+\[\]|])", r"\\\1", text)
    return re.sub(r"^([-.])", r"\\\1", text)


def upright(text):
    """The value of an option: names are underlined, choices and punctuation are not."""
    return "|".join(f"*{plain(choice)}*" for choice in text.split("|")) if "|" in text else \
        re.sub(r"[A-Za-z]+", r"_\g<0>_", text) if text.isalpha() else plain(text)


def definition(left, text):
    return [left, "\t" + plain(text), ""]


def option(o):
    names = ", ".join(f"*{plain(name)}*" for name in o.names)
    return definition(f"{names} {upright(o.value)}".strip(), o.text)


class Page:
    def __init__(self, version, program, serve, header, command):
        self.version, self.header = version, header
        self.program = program.rsplit("/", 1)[-1]
        self.all = (reference.everything(program, serve) if self.program == "waste"
                    else reference.commands(program))
        self.command = self.all.get(command)

    def title(self):
        return [f"{self.program}-{self.command.name}(1) \"waste {self.version}\" \"WASTE\"", "",
                "# NAME", "",
                f"{self.program}-{self.command.name} - {plain(self.command.summary)}", "",
                "# SYNOPSIS", "",
                f"*{self.program} {self.command.name}* {plain(self.command.arguments)} "
                "\\[OPTIONS\\]"]

    def text(self):
        return [plain(line) for line in self.command.text] or [plain(self.command.summary)]

    def options(self, level="##"):
        lines = []
        for title, rows in self.command.groups:
            lines += [f"{level} {title}", ""] if title and level else []
            for row in rows:
                lines += option(row)
        return lines

    def variables(self):
        """Of the command; or of all of them, each with what its option says."""
        found = {}
        for command in [self.command] if self.command else self.all.values():
            for name, text in command.variables:
                found[name] = text
            for o in command.options:
                variable = re.search(r" \[(WASTE_\w+)\]$", o.text)
                if variable:
                    found.setdefault(variable[1], f"as {o.names[-1]}: {o.text[:variable.start()]}")
        lines = ["# ENVIRONMENT", ""] if found else []
        for name, text in sorted(found.items()):
            lines += definition(f"*{plain(name)}*", text)
        return lines

    def examples(self):
        if not self.command.examples:
            return []
        return ["# EXAMPLES", "", "```", *self.command.examples, "```"]

    def exits(self):
        lines = ["# EXIT STATUS", ""]
        for code, text in COMMON_EXITS:
            lines += definition(f"*{code}*", text)
        return lines

    def commands(self):
        lines = []
        for command in self.all.values():
            page = f", *waste-{command.name}*(1)" if self.program == "waste" and \
                command.name not in ("help", "version") else ""
            lines += [f"*{command.name}* {plain(command.arguments)}".strip(),
                      "\t" + plain(command.summary) + page, ""]
        return lines

    def measurements(self):
        """Every command of waste-bench, with its options."""
        lines = []
        for self.command in self.all.values():
            lines += [f"# {self.program.upper()} {self.command.name.upper()}", "",
                      f"*{self.program} {self.command.name}* {plain(self.command.arguments)} "
                      "\\[OPTIONS\\]", "", *self.text(), "", *self.options(level="")]
            lines += ["```", *self.command.examples, "```", ""] if self.command.examples else []
        return lines

    def functions(self):
        """The functions of waste.h, by the section that they are in."""
        with open(self.header, encoding="utf-8") as file:
            text = file.read()
        lines = []
        for part in re.split(r"^/\* -{4} ", text, flags=re.M)[1:]:
            names = re.findall(r"^WASTE_API [^;(]*?\b(waste_\w+)\(", part, re.M)
            lines += [f"## {part[:part.index(' -')].capitalize()}", "",
                      ", ".join(f"*{plain(name)}*()" for name in names), ""]
        return lines

    def fill(self, template):
        lines = []
        for line in template.read().split("\n"):
            word = re.fullmatch(r"@(\w+)@", line)
            lines += getattr(self, word[1])() if word else [line.replace("@version@", self.version)]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


def main(scdoc, version, program, serve, header, template, command=None):
    with open(template, encoding="utf-8") as file:
        text = Page(version, program, serve, header, command).fill(file)
    return subprocess.run([scdoc], input=text.encode(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
