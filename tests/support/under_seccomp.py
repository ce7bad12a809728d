"""under_seccomp.py PROFILE [--without PREFIX] COMMAND... - run a command under a container's seccomp profile.

Reads the JSON that container runtimes read, as they do: calls that are named are allowed, where arguments
are given only with them, every other call fails with the profile's error. Names that this architecture has
not are passed over. --without leaves out calls whose names begin so.
"""
import json
import os
import sys

import seccomp

OPERATIONS = {"SCMP_CMP_EQ": lambda a: seccomp.Arg(a["index"], seccomp.EQ, a["value"]),
              "SCMP_CMP_MASKED_EQ": lambda a: seccomp.Arg(a["index"], seccomp.MASKED_EQ, a["value"],
                                                          a.get("valueTwo", 0))}


def known(name):
    try:
        return seccomp.resolve_syscall(seccomp.Arch(), name) >= 0
    except (RuntimeError, ValueError):
        return False


def load(path, without):
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    rules = seccomp.SyscallFilter(seccomp.ERRNO(profile["defaultErrnoRet"]))
    for entry in profile["syscalls"]:
        assert entry["action"] == "SCMP_ACT_ALLOW"
        for name in entry["names"]:
            if known(name) and not (without and name.startswith(without)):
                rules.add_rule(seccomp.ALLOW, name,
                               *(OPERATIONS[a["op"]](a) for a in entry.get("args", [])))
    rules.load()


def main(profile, *command):
    without = None
    if command[0] == "--without":
        without, command = command[1], command[2:]
    load(profile, without)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
