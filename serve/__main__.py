"""python3 -m serve MODEL: options, start and stop, signals."""

import argparse
import asyncio
import ctypes
import errno
import functools
import json
import logging
import os
import pathlib
import re
import resource
import signal
import socket
import sys
import time

try:
    from aiohttp import web

    from serve import engine, keys, openai
    from serve.connection import Front
    from serve.notify import notify
    from serve.routes import Routes
    from serve.scheduler import CLOSED, FAILED, LOADING, Scheduler
except ModuleNotFoundError as e:
    sys.exit(f"waste serve: {sys.executable}: {e}; the server needs aiohttp and prometheus_client "
             "(Debian: python3-aiohttp, python3-prometheus-client), or in PYTHON an interpreter "
             "that has them")
except ImportError as e:
    sys.exit(f"waste serve: {e}")

M_MMAP_THRESHOLD = -3  # of malloc.h
FILES = 256  # descriptors beside those of connections: the model's files, states, the loop's own


def size(text):
    """46G, 512M, 1024: bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text.strip(), re.I)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 46G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def whole(least):
    """Of whole numbers, those from here on."""
    def number(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)
    return number


count, positive = whole(0), whole(1)


def patches(text):
    if text != "0" and not (text.isdecimal() and 4 <= int(text) <= 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor 4 to 65536")
    return int(text)


def within(low, high, what):
    """A finite number."""
    def number(text):
        try:
            value = float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what} of {low:g} to {high:g}")
        return value
    return number


seconds, some_seconds = within(0, 1e6, "number"), within(0.001, 1e6, "number")


def word(text):
    """Any text but the empty one, which is what a variable that nobody set leaves in a unit."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; leave the option out, or say what it is")
    return text


def port(text):
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults, where there is one to tell."""

    def _get_help_string(self, action):
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def arguments():
    p = argparse.ArgumentParser(prog="waste serve", description="Serve a model over HTTP.",
                                formatter_class=HelpFormatter)
    p.add_argument("model", metavar="MODEL", help="a container's directory, or the name of an installed one")
    g = p.add_argument_group("where")
    g.add_argument("--host", type=word, default="127.0.0.1", help="address to listen on")
    g.add_argument("--port", type=port, default=8000, help="0: any")
    g.add_argument("--unix", type=word, metavar="PATH",
                   help="listen on a Unix socket, and on nothing else")
    g.add_argument("--model-id", type=word,
                   help="name told to clients; the directory's without .waste")
    g = p.add_argument_group("memory and speed")
    g.add_argument("--budget", type=size, default=0, metavar="SIZE",
                   help="memory for everything the engine takes; 0: chosen")
    g.add_argument("--ctx", type=count, default=0, help="most positions of a conversation; 0: 4096")
    g.add_argument("--sessions", type=count, default=0, metavar="N",
                   help="conversations that are computed at once; 0: up to 4, as memory allows")
    g.add_argument("--threads", type=count, default=0)
    g.add_argument("--cpus", type=word, metavar="LIST")
    g.add_argument("--cache", choices=("nextuse", "lfru", "lru", "s3fifo"))
    g.add_argument("--io", choices=("io_uring", "libaio", "threads", "sync"))
    g.add_argument("--io-depth", type=count, default=0)
    g.add_argument("--numeric", choices=("f32", "direct", "i16", "i8"))
    g.add_argument("--max-rows", type=count, default=0, help="most prompt tokens in a pass; 0: 512")
    g.add_argument("--chunk", type=positive, default=64, help="the same while others are answered")
    g.add_argument("--no-direct-io", action="store_true")
    g.add_argument("--no-verify", action="store_true")
    g.add_argument("--exclusive-open", action="store_true")
    g.add_argument("--usage", type=word, metavar="PATH", help="the hotlist")
    g.add_argument("--learn", action="store_true",
                   help="at the end, add the experts used to the hotlist")
    g.add_argument("--vision", action="store_true",
                   help="load the vision tower, for images in conversations")
    g.add_argument("--free-vision", action="store_true",
                   help="read the tower when an image needs it, and give its memory back after that")
    g.add_argument("--image-patches", type=patches, default=0, metavar="N",
                   help="patches of 14 pixels square that an image is shrunk to; 0: the container "
                        "says, mostly 1024")
    g = p.add_argument_group("states of conversations")
    g.add_argument("--checkpoints", type=count, default=4, help="states of full contexts in memory")
    g.add_argument("--state-dir", type=word, metavar="DIR", help="keep them in files, too")
    g.add_argument("--state-bytes", type=size, default=32 << 30, help="at most so much of it")
    g.add_argument("--state-every", type=count, default=512, help="also at so many positions")
    g.add_argument("--isolate-keys", action="store_true",
                   help="states of one key are never found by another")
    g = p.add_argument_group("answers")
    g.add_argument("--max-tokens", type=positive, default=4096, help="when a request does not say")
    g.add_argument("--temperature", type=within(0, 2, "temperature"), default=0.0,
                   help="when a request does not say")
    g.add_argument("--think", type=word, default="low", metavar="EFFORT",
                   help="low, high, max or none, when a request does not say")
    g.add_argument("--reasoning", default="reasoning_content",
                   choices=tuple(openai.REASONING_MEMBERS),
                   help="member of chat messages that has the reasoning")
    g.add_argument("--lenient-effort", action="store_true",
                   help="medium is high, xhigh is max; refused otherwise")
    g = p.add_argument_group("who may ask")
    g.add_argument("--api-key", type=word, action="append", default=[], metavar="KEY",
                   help="may be repeated; better: --api-key-file, or WASTE_API_KEY")
    g.add_argument("--api-key-file", type=word, metavar="FILE", help="a key a line")
    g.add_argument("--cors-origin", type=word, action="append", metavar="ORIGIN",
                   help="pages that may use this server besides local ones; * is all")
    g = p.add_argument_group("limits")
    g.add_argument("--queue", type=count, default=64, help="requests that wait")
    g.add_argument("--per-key", type=count, default=0, help="requests of one key at a time; 0: any")
    g.add_argument("--timeout", type=seconds, default=0, metavar="SECONDS",
                   help="longest time for a request; 0: none")
    g.add_argument("--max-body", type=size, metavar="SIZE",
                   help="of a request; bodies that come, and images that wait, have four times that "
                        "of memory each (default: 8M, with --vision 32M)")
    g.add_argument("--head-timeout", type=some_seconds, default=15)
    g.add_argument("--body-timeout", type=some_seconds, default=60)
    g.add_argument("--write-timeout", type=some_seconds, default=120,
                   help="for clients that do not read")
    g.add_argument("--idle-timeout", type=some_seconds, default=75)
    g.add_argument("--connections", type=positive, default=512)
    g.add_argument("--keep-alive", type=some_seconds, default=10, metavar="SECONDS",
                   help="between comments in a stream that has nothing else to say")
    g.add_argument("--drain-timeout", type=seconds, default=60, metavar="SECONDS",
                   help="after SIGTERM, for answers that have begun")
    g = p.add_argument_group("log")
    g.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return p


class JsonLines(logging.Formatter):
    """A line an event. Texts of prompts and answers are not among what is logged."""

    plain = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record):
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
                + f".{int(record.msecs):03d}Z", "level": record.levelname.lower(),
                "event": record.getMessage()}
        line.update({k: v for k, v in vars(record).items()
                     if k not in self.plain and v is not None})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def open_log(level):
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("aiohttp.access").disabled = True
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    return logging.getLogger("serve")


class Model:
    """How a model is opened: by a plan first, then on the engine's thread."""

    def __init__(self, o, log):
        self.o, self.log, self.stop = o, log, False
        self.loading = None
        self.cfg, self.opts = engine.defaults()
        self._configure()
        self.opts.max_sessions = o.sessions or self._choose_sessions()
        self.plan = plan = engine.plan(o.model, self.cfg, self.opts)
        if not plan.fits:
            source = plan.usable_why.decode() if plan.budget_chosen else "--budget"
            raise engine.Failure(engine.E_RAM_BUDGET,
                                 f"needs {plan.mem.floor_bytes} bytes at least, and the "
                                 f"budget is {plan.budget_bytes} ({source}): "
                                 "a larger --budget, fewer --sessions or --checkpoints, or a "
                                 "smaller --ctx")

    def _configure(self):
        o, cfg, opts = self.o, self.cfg, self.opts
        cfg.ram_budget_bytes, cfg.ctx_tokens, cfg.n_threads = o.budget, o.ctx, o.threads
        cfg.cpu_list = o.cpus and o.cpus.encode()
        cfg.use_direct_io, cfg.verify_records = not o.no_direct_io, not o.no_verify
        cfg.usage_path, cfg.exclusive_open = o.usage and os.fsencode(o.usage), o.exclusive_open
        opts.io_engine, opts.numeric = o.io and o.io.encode(), o.numeric and o.numeric.encode()
        opts.policy, opts.io_depth = o.cache and o.cache.encode(), o.io_depth
        opts.checkpoints = o.checkpoints
        cfg.vision, opts.vision_free = o.vision, o.free_vision
        opts.image_patches = o.image_patches
        if o.max_rows:
            opts.max_rows = o.max_rows
        opts.progress, opts.log = engine.PROGRESS_FN(self._progress), engine.LOG_FN(self._say)

    def blind(self):
        """None, or why it sees no images, and what helps."""
        if self.o.vision:
            return None
        return "it was started without --vision" if self.plan.vision_tower \
            else "the model has no vision tower"

    def _choose_sessions(self):
        """Up to four, as long as those beyond the first take at most an eighth of memory."""
        self.opts.max_sessions = 1
        plan = engine.plan(self.o.model, self.cfg, self.opts)
        more = plan.usable_ram_bytes // 8 // max(plan.session_bytes, 1)
        return 1 + min(3, more)

    def _progress(self, progress, _user):
        p = progress.contents
        self.loading = (p.done, p.total) if p.phase == 1 else None
        return self.stop

    def _say(self, level, text, _user):
        self.log.log((40, 30, 20)[min(level, 2)], "engine", extra={"text": text.decode()})

    def open(self):
        ctx = engine.Context(self.o.model, self.cfg, self.opts)
        self.loading = None
        return ctx


def read_keys(o):
    given = list(o.api_key)
    if o.api_key_file:
        given += keys.read(o.api_key_file)
    if os.environ.get("WASTE_API_KEY"):
        given.append(os.environ["WASTE_API_KEY"])
    return keys.Keys(given)


def check_state_dir(path):
    """Before a model is read for minutes: is it a directory that can be used, or can it be made?"""
    try:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            os.listdir(path)
    except OSError as e:
        raise OSError(f"--state-dir {path}: {e.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise OSError(f"--state-dir {path}: nothing can be written there")


def clear_socket(path):
    """Make room for a Unix socket: one that nobody listens on is left over, anything else stays."""
    path = pathlib.Path(path)
    if not path.exists():
        return
    if not path.is_socket():
        raise OSError(f"{path}: is there, and no socket")
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(f"{path}: another server listens there")


def identity(path):
    """What tells a socket from another that has taken its place; None: nothing is there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def reason(error):
    """asyncio's own sentences repeat the address; a failed look-up has no errno of the system's."""
    known = error.errno in errno.errorcode
    return os.strerror(error.errno) if known else error.strerror or str(error)


def room_for(connections, log):
    """How many of these there are descriptors for. Where they run out, nobody is told anything."""
    soft, hard = (n if n != resource.RLIM_INFINITY else sys.maxsize
                  for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    need = connections + FILES
    if soft >= need:
        return connections
    if hard <= FILES:
        raise OSError(f"--connections {connections} needs {need} descriptors, and this process may "
                      f"have {hard}, of which {FILES} are for files: a higher limit (ulimit -n, "
                      "LimitNOFILE= of a unit)")
    resource.setrlimit(resource.RLIMIT_NOFILE,
                       (min(need, hard), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if hard < need:
        log.warning("fewer_connections", extra={
            "connections": hard - FILES, "why": f"--connections {connections} needs {need} "
            f"descriptors, and this process may have {hard} (ulimit -n, LimitNOFILE= of a unit)"})
    return min(connections, hard - FILES)


class Serving:
    """A server from its first listening socket to its last answer."""

    def __init__(self, o, log):
        self.o, self.log = o, log
        self.socket = None
        self.connections = room_for(o.connections, log)
        self.keys = read_keys(o)
        if o.state_dir:
            check_state_dir(o.state_dir)
        self.model = model = Model(o, log)
        self.tokenizer = engine.Tokenizer(o.model)
        chat, missing = None, None
        try:
            chat = engine.Chat(self.tokenizer, o.model, o.think, o.lenient_effort)
        except engine.Failure as e:
            if e.status not in (engine.E_UNSUPPORTED, engine.E_FORMAT, engine.E_IO, engine.E_LIMIT):
                raise
            missing = str(e)
        self.scheduler = Scheduler(
            model.open, sessions=model.opts.max_sessions, queue=o.queue, chunk=o.chunk,
            max_tokens=o.max_tokens, states=(o.state_dir, o.state_bytes, o.state_every), log=log,
            compiled=functools.partial(engine.Grammar, self.tokenizer), learn=o.learn)
        name = pathlib.Path(o.model).resolve().name
        self.routes = Routes(
            scheduler=self.scheduler, tokenizer=self.tokenizer, chat=chat, chat_missing=missing,
            loading=lambda: model.loading, blind=model.blind(), model_id=o.model_id or re.sub(r"\.waste$", "", name),
            keys=self.keys, options=o, log=log)

    async def _listen(self):
        """The address. Raises an OSError that says where it could not."""
        o = self.o
        front = Front(self.routes, connections=self.connections, head_seconds=o.head_timeout,
                      keepalive_timeout=o.idle_timeout, auto_decompress=False, access_log=None,
                      lingering_time=1.0)
        self.runner = web.ServerRunner(front)
        await self.runner.setup()
        return await (self._listen_at(o.unix) if o.unix else self._listen_on(o.host, o.port))

    async def _listen_at(self, path):
        clear_socket(path)
        try:
            await web.UnixSite(self.runner, path).start()
        except OSError as e:
            raise OSError(f"--unix {path}: {reason(e)}") from None
        self.socket = identity(path)
        return "unix:" + path

    async def _listen_on(self, host, port):
        try:
            await web.TCPSite(self.runner, host, port, backlog=512).start()
        except OSError as e:
            why = reason(e)
            if e.errno == errno.EADDRINUSE:
                why += "; another program listens there: a different --port, 0 for any"
            raise OSError(f"--host {host} --port {port}: {why}") from None
        host, port = self.runner.addresses[0][:2]
        if not self.keys and not host.startswith("127.") and host != "::1":
            self.log.warning("open_to_all", extra={
                "address": host, "why": "everybody who reaches this address can use the model: "
                                        "--api-key-file asks for keys"})
        return f"http://{'[%s]' % host if ':' in host else host}:{port}"

    async def run(self):
        """Until a signal. Returns an exit code."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        where = await self._listen()
        if sys.stderr.isatty() and not self.o.unix:
            print(f"{where} is the page, for a browser; Ctrl-C ends.", file=sys.stderr)
        self.log.info("listening", extra={"url": where, "model": self.routes.model_id})
        self.scheduler.start()
        failed = False
        while not stop.is_set():
            if self.scheduler.phase in (FAILED, CLOSED):
                failed = True
                if self.scheduler.failure:
                    self.log.error("cannot_open", extra={"why": str(self.scheduler.failure)})
                break
            if self.scheduler.phase != LOADING and where:
                self.log.info("ready", extra={"url": where, "sessions": self.scheduler.n_sessions})
                notify("READY=1", f"STATUS=Serving {self.routes.model_id} at {where}")
                where = None
            try:
                await asyncio.wait_for(stop.wait(), 0.1 if where else 1.0)
            except asyncio.TimeoutError:
                pass
        await self._stop(stop)
        return int(failed)

    async def _stop(self, stop):
        """Take no more, let answers end, then end them. A second signal ends them at once."""
        stop.clear()
        self.model.stop = self.scheduler.phase == LOADING
        self.scheduler.drain()
        self.log.info("draining")
        notify("STOPPING=1", "STATUS=Draining: answers that have begun are finished")
        until = time.monotonic() + self.o.drain_timeout
        while any(self.scheduler.counts()) and not stop.is_set() and time.monotonic() < until:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(self.scheduler.close)
        await asyncio.sleep(0.05)  # what the last jobs said is on its way to sockets
        await self.runner.cleanup()
        if self.o.unix and identity(self.o.unix) == self.socket:  # not a successor's
            pathlib.Path(self.o.unix).unlink(missing_ok=True)
        self.log.info("stopped")


def give_back_large_blocks():
    """What bodies and answers took goes back to the system when it is freed. glibc moves its
    threshold for that up to 32 MiB, and then they stay in heaps that never shrink."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 20)


def main():
    give_back_large_blocks()
    o = arguments().parse_args()
    if o.max_body is None:  # a large one takes long to parse, and only pictures need it
        o.max_body = (32 if o.vision else 8) << 20
    log = open_log(o.log_level)
    sys.setswitchinterval(0.001)  # a thread that works on a large body lets the loop go on
    try:
        serving = Serving(o, log)
        code = asyncio.run(serving.run())
    except (engine.Failure, OSError) as e:
        names_it = isinstance(e, OSError) or o.model in str(e)
        print("waste serve: " + ("" if names_it else f"{o.model}: ") + str(e), file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
