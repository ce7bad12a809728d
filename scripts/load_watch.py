"""What scripts/load_server sees of a server from outside: latency of /health, memory, descriptors.

As a program (load_watch.py URL) it is the prober, a process of its own so that the load's work
does not count as latency: 20 times a second it asks for /health, every other time on a new
connection, and prints a line: seconds since its start, milliseconds of the answer, milliseconds
that a byte took to a process that does nothing else and back (what this machine gives to anybody at
that moment), status.
"""

import dataclasses
import http.client
import os
import socket
import statistics
import sys
import time
import urllib.parse

PERIOD = 0.05


def echo():
    """One end of a pair of sockets, whose other end returns every byte."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while byte := theirs.recv(1):
            theirs.send(byte)
        os._exit(0)
    theirs.close()
    return ours


def probe(url):
    at, kept, other = urllib.parse.urlsplit(url), None, echo()
    begun, n = time.monotonic(), 0
    while True:
        n += 1
        time.sleep(max(0.0, begun + n * PERIOD - time.monotonic()))
        asked = time.monotonic()
        if asked - begun > (n + 1) * PERIOD:  # not to catch up: that would be a load of its own
            n = int((asked - begun) / PERIOD)
        connection = kept if n % 2 and kept else http.client.HTTPConnection(at.hostname, at.port,
                                                                            timeout=60)
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            status = response.status
        except (OSError, http.client.HTTPException) as e:
            status, connection = type(e).__name__, None
        answered = time.monotonic()
        other.send(b"x")
        other.recv(1)
        print(f"{asked - begun:.3f} {(answered - asked) * 1e3:.3f} "
              f"{(time.monotonic() - answered) * 1e3:.3f} {status}", flush=True)
        if n % 2:
            kept = connection
        elif connection:
            connection.close()


@dataclasses.dataclass
class Sample:
    at: float
    rss: int
    fds: int
    threads: int
    cpu: float  # seconds so far


def sample(pid, begun):
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    with open(f"/proc/{pid}/stat") as f:
        stat = f.read().rsplit(")", 1)[1].split()
    return Sample(time.monotonic() - begun, int(fields["VmRSS"].split()[0]) * 1024,
                  len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]),
                  (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"))


def slope(points):
    """Theil and Sen: the median of the slopes of all pairs; single spikes do not move it."""
    slopes = [(y1 - y0) / (x1 - x0) for i, (x0, y0) in enumerate(points)
              for x1, y1 in points[i + 1:] if x1 > x0]
    return statistics.median(slopes) if slopes else 0.0


def floors(points, seconds):
    """The lowest point of each so many seconds."""
    lowest = {}
    for x, y in points:
        window = int(x // seconds)
        lowest[window] = min(lowest.get(window, (x, y)), (x, y), key=lambda p: p[1])
    return list(lowest.values())


def spread(values):
    """(median, 99th percentile, largest)"""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            ordered[-1])


if __name__ == "__main__":
    try:
        probe(sys.argv[1])
    except (KeyboardInterrupt, BrokenPipeError):
        pass
