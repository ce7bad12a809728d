"""The ladder where it has to step down: what is chosen, what is said of it, and that the bytes stay
the same. Conditions that this machine cannot make are skipped with the reason; some need root, and
none outlives its test."""
import functools
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PROBE = pathlib.Path(os.environ.get("WASTE_BUILD", "")).resolve() / "tests/ladder_probe"
IS_ROOT = os.geteuid() == 0
NO_URING = "io_uring: Operation not permitted (a seccomp filter, as of a container?)"
SYSCTL = pathlib.Path("/proc/sys/kernel/io_uring_disabled")
MIB = 1 << 20


class Result:
    def __init__(self, words, out):
        lines = [line.split(": ", 1) for line in words.splitlines() if ": " in line]
        self.access = [text for key, text in lines if key == "access"]
        said = dict(lines)
        self.engine, self.steps, self.note = (said.get(k) for k in ("engine", "steps", "note"))
        self.out = out


def finish(command, source, **how):
    """Run it to a Result whose bytes are the source's whole pages, or skip."""
    done = subprocess.run([*map(str, command)], capture_output=True, timeout=300, check=False,
                          **how)
    words = done.stderr.decode()
    if done.returncode == 77:
        pytest.skip(words.strip().splitlines()[-1] if words.strip() else "not possible here")
    assert done.returncode == 0, words
    # "steps: " with nothing behind it is still a line
    result = Result(words.replace(":\n", ": \n"), done.stdout)
    assert result.out == source[:len(source) & -4096]
    return result


@pytest.fixture(scope="module", name="source")
def make_source():
    state, out = 1, bytearray()
    while len(out) < 9 * MIB:  # not a whole number of pages
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out += state.to_bytes(8, "little") * 65 + b"."
    return bytes(out)


@pytest.fixture(name="file")
def make_file(tmp_path, source):
    path = tmp_path / "bank"
    path.write_bytes(source)
    path.chmod(0o644)
    return path


@pytest.fixture(name="direct_file")
def make_direct_file(file, source):
    """A file where direct reads work."""
    if finish([PROBE, file], source).access != ["direct"]:
        pytest.skip("no direct reads in the directory for temporary files")
    return file


def works(engine, file):
    return subprocess.run([PROBE, "--io", engine, file], capture_output=True,
                          check=False).returncode == 0


def blocks(*calls):
    return [word for call in calls for word in ("--block", call)]


UNSHARE = ["unshare", "-m", *([] if IS_ROOT else ["-r"])]


@functools.lru_cache
def namespaces():
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def isolated(script, *args):
    """A shell script in a mount namespace of its own: with root's rights there, if not here."""
    if not namespaces():
        pytest.skip("no mount namespaces for us here (in a chroot there are none)")
    return [*UNSHARE, "sh", "-euc", script, "sh", *args]


@pytest.mark.parametrize("access", [[], ["--buffered"]])
@pytest.mark.parametrize("engine", ["io_uring", "libaio", "threads", "sync"])
def test_every_rung_reads_the_same_bytes(file, source, engine, access):
    if not works(engine, file):
        pytest.skip(f"{engine} does not work here")
    got = finish([PROBE, "--io", engine, *access, file, file], source[:len(source) & -4096] * 2)
    assert (got.engine, got.steps) == (engine, "")
    if access:
        assert got.access == ["buffered: not asked for"] * 2
        if engine == "libaio":
            assert got.note == "reads of 2 of 2 files, not direct, are not asynchronous"


@pytest.mark.parametrize("error,words", [
    ("EPERM", "Operation not permitted (a seccomp filter, as of a container?)"),
    ("ENOSYS", "Function not implemented (a kernel without it, or a seccomp filter?)")])
def test_calls_that_a_filter_blocks_are_stepped_over_one_by_one(direct_file, source, error, words):
    if not works("libaio", direct_file):
        pytest.skip("libaio does not work here")
    uring, aio = f"io_uring_setup={error}", f"io_setup={error}"
    got = finish([PROBE, *blocks(uring), direct_file], source)
    assert (got.engine, got.steps) == ("libaio", f"io_uring: {words}")
    got = finish([PROBE, *blocks(uring, aio), direct_file], source)
    assert (got.engine, got.steps) == ("threads", f"io_uring: {words}; libaio: {words}")
    got = finish([PROBE, *blocks(uring, aio, "clone=EAGAIN", "clone3=EAGAIN"), direct_file], source)
    assert got.engine == "sync"
    assert got.steps == (f"io_uring: {words}; libaio: {words}; "
                         "threads: cannot start a thread: Resource temporarily unavailable")


def test_a_ring_that_cannot_be_entered_is_found_by_the_first_read(direct_file, source):
    if not works("io_uring", direct_file):
        pytest.skip("io_uring does not work here")
    got = finish([PROBE, *blocks("io_uring_enter=EPERM", "io_submit=EPERM"), "bank"], source,
                 cwd=direct_file.parent)
    assert got.engine == "threads"
    assert got.steps.split("; ") == [
        f"{engine}: a first read of bank: Operation not permitted"
        for engine in ("io_uring", "libaio")]


def test_without_registration_io_uring_is_only_slower(direct_file, source):
    if not works("io_uring", direct_file):
        pytest.skip("io_uring does not work here")
    got = finish([PROBE, *blocks("io_uring_register=EPERM"), direct_file], source)
    assert (got.engine, got.steps) == ("io_uring", "")
    assert got.note.startswith("pool memory not registered: Operation not permitted")


def test_the_ladder_leaves_libaio_out_where_a_file_is_not_direct(file, source):
    got = finish([PROBE, "--buffered", *blocks("io_uring_setup=EPERM"), "bank"], source,
                 cwd=file.parent)
    assert got.engine == "threads"
    assert got.steps == (f"{NO_URING}; libaio: bank is read through the page cache, where it would "
                         "wait for each read")


def test_a_reason_too_long_leaves_room_for_the_others(tmp_path, source):
    path = tmp_path / ("x" * 100) / ("y" * 100) / ("z" * 100)
    path.parent.mkdir(parents=True)
    path.write_bytes(source)
    got = finish([PROBE, "--buffered", *blocks("io_uring_setup=ENOSYS", "clone=EAGAIN",
                                               "clone3=EAGAIN"), path], source)
    uring, aio, threads = got.steps.split("; ")
    assert uring.startswith("io_uring: Function not implemented") and uring.endswith("?)")
    assert aio.startswith("libaio: /") and aio.endswith("...")
    assert threads == "threads: cannot start a thread: Resource temporarily unavailable"


@pytest.mark.parametrize("value", ["1", "2"])
def test_a_sysctl_that_forbids_io_uring_is_named(direct_file, source, tmp_path, value):
    """As the system would say it: another file lies over the real one, a filter says no."""
    (tmp_path / "sysctl").write_text(value + "\n")
    script = f'mount --bind "$1" {SYSCTL} || exit 77; shift; exec "$@"'
    got = finish(isolated(script, tmp_path / "sysctl", PROBE, *blocks("io_uring_setup=EPERM"),
                          direct_file), source)
    assert got.steps == ("io_uring: Operation not permitted "
                         f"(kernel.io_uring_disabled is {value})")


def test_the_sysctl_itself(direct_file, source):
    """It is the whole machine's, so only for who asks: WASTE_TEST_SYSCTL=1, and root."""
    if os.environ.get("WASTE_TEST_SYSCTL") != "1" or not IS_ROOT or not SYSCTL.exists():
        pytest.skip("changes kernel.io_uring_disabled for a moment: WASTE_TEST_SYSCTL=1, as root")
    before = SYSCTL.read_text()
    try:
        SYSCTL.write_text("1\n")  # for processes without rights
        got = finish([PROBE, "--drop", direct_file], source)
    finally:
        SYSCTL.write_text(before)
    assert (got.engine, got.steps) == (
        "libaio", "io_uring: Operation not permitted (kernel.io_uring_disabled is 1)")


@pytest.mark.parametrize("limit,arena,registered", [
    (64 << 10, 16 * MIB, False), (8 * MIB, 16 * MIB, False), (8 * MIB, 4 * MIB, True)])
def test_memory_that_cannot_be_locked_is_not_registered(direct_file, source, limit, arena,
                                                        registered):
    if not works("io_uring", direct_file):
        pytest.skip("io_uring does not work here")
    got = finish([PROBE, "--memlock", limit, "--arena", arena, "--drop", direct_file], source)
    if got.engine != "io_uring":  # older kernels count the ring too
        assert limit == 64 << 10 and "RLIMIT_MEMLOCK" in got.steps
    elif registered:
        assert got.note == "pool memory registered"
    else:
        assert got.note == (f"pool memory not registered: {arena >> 10} KiB, "
                            f"RLIMIT_MEMLOCK is {limit >> 10} KiB")


def test_what_a_container_forbids_by_default(direct_file, source):
    """io_uring blocked, 8 MiB of lockable memory, no root."""
    got = finish([PROBE, *blocks("io_uring_setup=EPERM", "io_uring_enter=EPERM",
                                 "io_uring_register=EPERM"), "--memlock", 8 * MIB, "--drop",
                  direct_file], source)
    assert (got.engine, got.steps) == ("libaio", NO_URING)


@pytest.mark.parametrize("kind", ["tmpfs", "overlay on tmpfs", "overlay"])
def test_file_systems_in_memory_or_in_layers(file, source, tmp_path, kind):
    """Some refuse direct access at open, some when reading, some have it: as they like."""
    for name in ("lower", "upper", "work", "mnt", "tmp"):
        (tmp_path / name).mkdir()
    script = {
        "tmpfs": "mount -t tmpfs t mnt",
        "overlay on tmpfs": "mount -t tmpfs t tmp; mkdir tmp/l tmp/u tmp/w; cp bank tmp/l;"
                            "mount -t overlay o -olowerdir=tmp/l,upperdir=tmp/u,workdir=tmp/w mnt",
        "overlay": "cp bank lower;"
                   "mount -t overlay o -olowerdir=lower,upperdir=upper,workdir=work mnt"}[kind]
    script = f'cd "$1"; ( {script} ) || exit 77; shift; test -e mnt/bank || cp bank mnt; exec "$@"'
    for engine in (None, "io_uring", "libaio", "threads", "sync"):
        if engine and not works(engine, file):
            continue
        got = finish(isolated(script, tmp_path, PROBE, *(["--io", engine] if engine else []),
                              "mnt/bank"), source)
        assert got.access[0] == "direct" or len(got.access[0]) > len("buffered: ")


@pytest.mark.parametrize("when,access", [
    ("open", "buffered: open with O_DIRECT: Invalid argument"),
    ("read", "buffered: a direct read failed: Invalid argument"),
    ("aligned", "buffered: a direct read failed: Invalid argument"), ("never", "direct")])
def test_a_fuse_that_refuses_direct_access(file, source, tmp_path, when, access):
    (tmp_path / "mnt").mkdir()
    got = finish(isolated('exec "$@"', sys.executable, HERE / "refusing_fuse.py", when, file,
                          tmp_path / "mnt", PROBE, tmp_path / "mnt/served"), source)
    assert got.access == [access]


LOOP = """
mkfs=$1 sector=$2 max=$3 dir=$4 mkargs=$5; shift 5
command -v losetup $mkfs >/dev/null || { echo "no losetup or $mkfs here" >&2; exit 77; }
truncate -s 400M "$dir/image"
loop=$(losetup -b $sector -f --show "$dir/image" 2>&1) || {
    echo "no loop device with sectors of $sector bytes: $loop" >&2; exit 77; }
trap 'status=$?; umount "$dir/mnt" 2>/dev/null || :; losetup -d $loop; exit $status' EXIT
$mkfs $mkargs $loop >/dev/null 2>&1 || { echo "$mkfs refuses $sector bytes" >&2; exit 77; }
mount $loop "$dir/mnt" 2>/dev/null || { echo "no mount with $sector bytes" >&2; exit 77; }
[ $max = 0 ] || echo $max >/sys/block/${loop#/dev/}/queue/max_sectors_kb
cp "$dir/bank" "$dir/mnt"
sync -f "$dir/mnt"
"$@" "$dir/mnt/bank"
"""


@pytest.mark.parametrize("mkfs,mkargs,sector,max_kb", [
    ("mkfs.ext4", "-q", 512, 4),  # requests of one page: the kernel cuts every extent
    ("mkfs.ext4", "-q", 4096, 0),
    ("mkfs.xfs", "-q -s size=16384 -b size=16384", 16384, 0)])
@pytest.mark.parametrize("engine", ["io_uring", "libaio", "threads", "sync"])
def test_devices_with_other_sectors_and_small_requests(file, source, tmp_path, engine, mkfs, mkargs,
                                                       sector, max_kb):
    if not IS_ROOT:
        pytest.skip("loop devices need root")
    if not works(engine, file):
        pytest.skip(f"{engine} does not work here")
    (tmp_path / "mnt").mkdir()
    got = finish(isolated(LOOP, mkfs, sector, max_kb, tmp_path, mkargs, PROBE, "--io", engine),
                 source)
    assert got.engine == engine
    if sector > 4096:  # how memory is to be aligned is the driver's business
        assert got.access[0].startswith("buffered: direct reads want multiples of ")
        assert got.access[0].endswith(f" in memory, {sector} in the file; we have 4096")
    else:
        assert got.access == ["direct"]
