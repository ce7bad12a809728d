#!/usr/bin/env python3
"""refusing_fuse WHEN FILE DIR COMMAND... - serve FILE as DIR/served through FUSE and refuse direct
access: `open` at open, `read` when it comes to reading, `aligned` to what is no multiple of 16 KiB,
`never` not. Run the command meanwhile and exit as it does; exit 77 where there is no FUSE. The
protocol is spoken here, in as much of it as one file needs, so that no library has to be there. To
be run in a mount namespace of its own."""
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import threading

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
BATCH_FORGET = 42
ROOT, SERVED = 1, 2


def attributes(node, size):
    mode, size = (stat.S_IFDIR | 0o755, 0) if node == ROOT else (stat.S_IFREG | 0o644, size)
    return struct.pack("<6Q10I", node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0,
                       0, 4096, 0)


def answer(when, source, size, opcode, node, body):
    """The body of a reply, or an error number."""
    if opcode == INIT:
        return struct.pack("<4I2H2I2HI7I", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, 0, *[0] * 7)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"served":
            return errno.ENOENT
        return struct.pack("<4Q2I", SERVED, 0, 1, 1, 0, 0) + attributes(SERVED, size)
    if opcode == GETATTR:
        return struct.pack("<Q2I", 1, 0, 0) + attributes(node, size)
    if opcode == OPEN:
        flags = struct.unpack_from("<I", body)[0]
        refuse = when == "open" and flags & os.O_DIRECT
        return errno.EINVAL if refuse else struct.pack("<Q2I", 0, 0, 0)
    if opcode == READ:
        _, offset, n, _, _, flags, _ = struct.unpack_from("<QQIIQII", body)
        refuse = flags & os.O_DIRECT and (
            when == "read" or (when == "aligned" and (offset | n) % 16384))
        return errno.EINVAL if refuse else os.pread(source, n, offset)
    if opcode in (RELEASE, FLUSH):
        return b""
    return errno.ENOSYS


def serve(device, when, source):
    size = os.fstat(source).st_size
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError:  # unmounted
            return
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode in (FORGET, BATCH_FORGET):
            continue
        reply = answer(when, source, size, opcode, node, request[40:])
        error, reply = (-reply, b"") if isinstance(reply, int) else (0, reply)
        os.write(device, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)


def main():
    when, path, place, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as no:
        print(no, file=sys.stderr)
        return 77
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"test", place.encode(), b"fuse", 0, options.encode()):
        print("mount fuse:", os.strerror(ctypes.get_errno()), file=sys.stderr)
        return 77
    source = os.open(path, os.O_RDONLY)
    threading.Thread(target=serve, args=(device, when, source), daemon=True).start()
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
