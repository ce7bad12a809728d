"""What leaves the tree: a static build, Debian packages, the profile for containers.

Both builds are made here from nothing, which takes most of this file's time.
"""
import json
import os
import pathlib
import re
import socket
import subprocess
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = os.environ.get("WASTE_BIN", "waste")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}
DEMO = ROOT / "share/demo.waste"
OPENING = "She looked out of the window and"
PYTHON = "/usr/bin/python3"


def run(*command, **kwargs):
    kwargs.setdefault("env", ENV)
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **kwargs)


def output(*command, **kwargs):
    done = run(*command, **kwargs)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def writes(program, *more):
    return output(program, "run", DEMO, "--raw", OPENING, "-n", "8", "-q", *more)


def test_a_static_build_needs_the_c_library_only_and_writes_the_same(tmp_path):
    output(ROOT / "scripts/build_static", tmp_path / "static")
    program = tmp_path / "static/cli/waste"
    needed = {line.split()[0].rsplit("/", 1)[-1] for line in output("ldd", program).split("\n") if line}
    assert {name.split(".")[0] for name in needed} <= {"linux-vdso", "ld-linux-x86-64",
                                                       "ld-linux-aarch64", "libc", "libm"}
    version = output(program, "version")
    assert "io_uring libaio" in version
    assert writes(program) == writes(BINARY)
    # A host of the library, from a tree without a shared one.
    output("meson", "install", "-C", tmp_path / "static", "--no-rebuild", "--destdir", tmp_path / "root")
    prefix = tmp_path / "root/usr/local"
    config = next(prefix.rglob("waste.pc"))
    assert not list(prefix.rglob("libwaste.so*"))
    flags = output("pkg-config", f"--define-variable=prefix={prefix}", "--static", "--cflags", "--libs",
                   "waste", env={**ENV, "PKG_CONFIG_PATH": str(config.parent)}).split()
    output("gcc", "-std=c11", ROOT / "examples/text.c", "-o", tmp_path / "text", *flags)
    assert output(tmp_path / "text", DEMO, OPENING, "8") == writes(BINARY)


# ---- Debian -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """scripts/build_deb's folder: the packages, and `root` with all of them unpacked."""
    if run(ROOT / "scripts/deps", "--check", "--deb").returncode:
        pytest.skip("debhelper is not here")
    folder = tmp_path_factory.mktemp("deb")
    (folder / "notes").write_text("somebody's\n")
    output(ROOT / "scripts/build_deb", folder)
    return folder


def contents(package):
    return {line.split()[5].lstrip(".") for line in output("dpkg-deb", "-c", package).split("\n") if line}


def test_the_packages_have_one_version(packages):
    version = re.search(r"project\('waste'.*version: '([\d.]+)'", (ROOT / "meson.build").read_text())[1]
    for package in packages.glob("*.deb"):
        assert output("dpkg-deb", "-f", package, "Version").strip() == version
    assert f'"{version}"' in (ROOT / "include/waste.h").read_text()


def test_what_was_unpacked_works(packages):
    """Nothing is installed: the programs find what belongs to them beside themselves."""
    program = packages / "root/usr/bin/waste"
    assert output(program, "run", "demo", "--raw", OPENING, "-n", "8", "-q", cwd="/") == writes(BINARY)
    assert "--api-key-file" in output(program, "serve", "--help", cwd="/")
    assert "kernels" in output(packages / "root/usr/bin/waste-bench", "help")


def test_the_unit_names_the_program_of_the_package(packages):
    unit = (packages / "root/usr/share/doc/waste/examples/waste-serve.service").read_text()
    program = re.search(r"^ExecStart=(\S+) serve ", unit, re.M)[1]
    assert program == "/usr/bin/waste" and os.access(packages / "root" / program[1:], os.X_OK)


def test_what_else_is_in_the_directory_stays(packages):
    assert (packages / "notes").read_text() == "somebody's\n"


def test_each_package_has_its_part(packages):
    files = {package.name.split("_")[0]: contents(package) for package in packages.glob("*.deb")}
    assert {"waste", "libwaste0", "libwaste-dev", "waste-demo"} <= set(files)
    for package, wanted in {
            "waste": ["/usr/bin/waste", "/usr/bin/waste-bench", "/usr/share/man/man1/waste-run.1.gz",
                      "/usr/share/bash-completion/completions/waste-bench",
                      "/usr/share/zsh/vendor-completions/_waste", "/usr/share/waste/serve/__main__.py",
                      "/usr/share/doc/waste/examples/containers/seccomp.json",
                      "/usr/share/waste/fio-profiles/expert-random.fio"],
            "libwaste-dev": ["/usr/include/waste.h", "/usr/share/man/man3/libwaste.3.gz",
                             "/usr/share/doc/libwaste-dev/examples/plan.c"],
            "waste-demo": ["/usr/share/waste/demo.waste/trunk.bin"]}.items():
        assert set(wanted) <= files[package], package
    names = [name for part in files.values() for name in part if not name.endswith("/")]
    assert len(names) == len(set(names)), "two packages have the same file"
    assert any(re.fullmatch(r"/usr/lib/.*/libwaste\.so\.0", name) for name in files["libwaste0"])


def test_a_package_asks_for_what_it_is_linked_with(packages):
    """Also of what is loaded by its name: the server's library."""
    package = next(packages.glob("waste_*.deb"))
    depends, recommends = (output("dpkg-deb", "-f", package, field) for field in ("Depends", "Recommends"))
    for library in ("liburing", "libaio", "libjansson", "libpcre2", "libdeflate", "libhwloc", "libc6"):
        assert library in depends
    for name in ("libwaste0 (=", "python3-aiohttp", "python3-prometheus-client", "waste-demo"):
        assert name in recommends


# ---- containers -------------------------------------------------------------------------------

PROFILE = ROOT / "share/containers/seccomp.json"
CONFINED = [PYTHON, ROOT / "tests/support/under_seccomp.py", PROFILE]


@pytest.fixture
def confined():
    if run(PYTHON, "-c", "import seccomp").returncode:
        pytest.skip("python3-seccomp is not here")
    return CONFINED


def test_the_profile_is_well_formed():
    profile = json.loads(PROFILE.read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO" and profile["defaultErrnoRet"] == 38
    names = [name for entry in profile["syscalls"] for name in entry["names"] if "args" not in entry]
    assert len(names) == len(set(names))
    assert {"io_uring_setup", "io_uring_enter", "io_uring_register", "execve"} <= set(names)
    assert not {"mount", "ptrace", "bpf", "unshare", "setns", "clone3", "keyctl", "init_module"} & set(names)


@pytest.mark.parametrize("engine", ["io_uring", "libaio", "threads", "sync"])
def test_a_model_runs_under_the_profile_with_each_engine(confined, engine, tmp_path):
    done = run(*confined, BINARY, "run", DEMO, "--raw", OPENING, "-n", "8", "--io", engine, "--usage",
               tmp_path / "usage", "--learn", "--state-dir", tmp_path / "states")
    assert done.returncode == 0 and done.stdout.strip("\n") == writes(BINARY).strip("\n")
    assert re.search(rf"^reads +{engine},", done.stderr, re.M), done.stderr


def test_without_io_uring_in_it_the_next_engine_is_taken(confined):
    """What a runtime's own profile does; so the test above would notice if a name were missing."""
    done = run(*CONFINED, "--without", "io_uring", BINARY, "run", DEMO, "--raw", OPENING, "-n", "8")
    assert done.returncode == 0 and re.search(r"^reads +libaio,", done.stderr, re.M)


def test_the_other_commands_run_under_the_profile(confined, tmp_path):
    model = tmp_path / "tiny.waste"
    (tmp_path / "other").mkdir()
    for words in (["synth", model, "--shape", "tiny-k3"], ["verify", model], ["plan", model, "--measure"],
                  ["info", model], ["eval", DEMO, OPENING], ["tokenize", DEMO, OPENING],
                  ["place", model, "--drives", f"{tmp_path}/other=1,.=1"], ["place", model, "--gather"],
                  ["config", "show"], ["version"], ["doctor", DEMO]):
        done = run(*confined, BINARY, *words, "-q")
        assert done.returncode == 0, f"{words}: {done.stderr}"


def test_forbidden_calls_fail_as_if_the_kernel_had_none(confined):
    for words in (["unshare", "--user", "true"], ["mount", "-t", "tmpfs", "none", "/mnt"]):
        done = run(*confined, *words)
        assert done.returncode and "Function not implemented" in done.stderr, words


def test_the_server_answers_under_the_profile(confined, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([*confined, BINARY, "serve", DEMO, "--port", str(port), "--state-dir",
                               str(tmp_path / "states")], stderr=subprocess.PIPE, text=True, env=ENV)
    try:
        lines = iter(server.stderr.readline, "")
        assert any('"ready"' in line for line in lines)
        body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/chat/completions", body.encode(),
                                    timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] > 0
    finally:
        server.terminate()
        assert server.wait(60) == 0


def test_compose_and_dockerfile_name_what_there_is():
    """Neither is run here: no container runtime. What they refer to exists, in the form it has."""
    folder = ROOT / "share/containers"
    yaml = pytest.importorskip("yaml")
    service = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["waste"]
    profiles = [o.split("=", 1)[1] for o in service["security_opt"] if o.startswith("seccomp=")]
    assert [(folder / name).resolve() for name in profiles] == [PROFILE]
    told = output(BINARY, "serve", "--help")
    for word in service["command"]:
        assert not word.startswith("--") or word in told, word
    assert (folder / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    text = (folder / "Dockerfile").read_text()
    assert os.access(ROOT / re.search(r"RUN (scripts/\w+)", text)[1], os.X_OK)
    built = {path.name for path in (ROOT / "packaging/debian").glob("*.install")}
    assert {f"{name}.install" for name in re.findall(r"/packages/([\w-]+)_\*\.deb", text)} <= built
