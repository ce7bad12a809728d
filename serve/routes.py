"""Paths, who may use them, and what becomes of a request."""

import asyncio
import dataclasses
import ipaddress
import logging
import os
import time
import urllib.parse

from aiohttp import HttpVersion11, web

from serve import anthropic, constrain, engine, openai, page, responses
from serve.budget import Budget, Share
from serve.connection import DROP_BYTES, check_head, is_last, json_response, list_response
from serve.errors import ApiError, busy, invalid, no_images
from serve.fields import Fields, parse
from serve.images import Pictures
from serve.live import Live
from serve.metrics import Metrics
from serve.reading import ChatReader, TextReader
from serve.replays import GRACE, Replays
from serve.scheduler import READY, Full, Job
from serve.stream import Exchange, Sse, at_once, streamed

ALLOWED_HEADERS = ("Authorization, Content-Type, X-Api-Key, Idempotency-Key, Anthropic-Version, "
                   "Anthropic-Beta, OpenAI-Organization, OpenAI-Project, X-Conversation-Id")
WATCHED = ("/live", "/metrics")  # what tells of others' requests
LARGE = 1 << 16  # bytes of a body; what has more is worked on beside the loop, one at a time
BODIES = PICTURES = 4  # times the largest body: bodies that are read, pictures that wait
GRAMMARS = 64 << 20  # bytes of the texts of grammars; a tool's is a few thousand
OUT_OF_SCOPE = {"/v1/embeddings": "embeddings", "/v1/rerank": "reranking",
                "/v1/images/generations": "making images", "/v1/audio/speech": "audio",
                "/v1/audio/transcriptions": "audio", "/v1/moderations": "moderation",
                "/v1/fine_tuning/jobs": "fine-tuning"}


class Request:
    """What a handler gets: aiohttp's request, its body once read, and whose it is."""

    def __init__(self, http):
        self.http, self.key = http, None
        self.body, self.id = b"", "req_" + os.urandom(9).hex()
        self.parsed = {}
        self.fingerprint = None  # of its body: replays.py
        self.note = {}  # for the log
        self.read = None  # the Share of its body
        self.pictures = None  # images.Pictures, until an exchange has them
        self.grammar = None  # the Share of its text, the same

    def fields(self):
        """The body, parsed. It lives until `forget`, too."""
        self.parsed = parse(self.body)
        return Fields(self.parsed)

    def forget(self):
        """Once it is known what is asked. An answer may take an hour."""
        self.body = b""
        self.parsed.clear()
        if self.read:
            self.read.release()

    def close(self):
        self.forget()
        for held in (self.pictures, self.grammar):
            if held:
                held.release()

    @property
    def path(self):
        return self.http.path


@dataclasses.dataclass
class Rendered:
    """What a chat request is for the engine. system: the last of the messages it begins with that
    are the system's, or -1."""
    prompt: engine.Prompt
    pictures: list
    constraint: dict
    system: int


class Routes:
    """The application: one model behind HTTP."""

    def __init__(self, *, scheduler, tokenizer, chat, chat_missing, model_id, keys, options, log,
                 loading, blind):
        """blind: None, or why no images are seen, and what helps."""
        self.loading, self.blind = loading, blind
        self.scheduler, self.tokenizer, self.chat = scheduler, tokenizer, chat
        self.chat_missing, self.model_id, self.keys = chat_missing, model_id, keys
        self.options, self.log = options, log
        self.metrics = Metrics(scheduler)
        scheduler.observe = self.metrics.answer
        self.created = int(time.time())
        self.replays = Replays()
        self.bodies = Budget("bodies", BODIES * options.max_body)
        self.pictures = Budget("images", PICTURES * options.max_body)
        self.grammars = Budget("schemas and grammars", GRAMMARS)
        self.large = asyncio.Semaphore(1)
        self.in_flight = {}  # requests being worked on, by key
        self.table = {
            "/health": {"GET": self.health},
            "/v1/models": {"GET": self.models},
            "/v1/models/{id}": {"GET": self.model},
            "/v1/chat/completions": {"POST": self.chat_completions},
            "/v1/completions": {"POST": self.completions},
            "/v1/responses": {"POST": self.responses},
            "/v1/messages": {"POST": self.messages},
            "/v1/messages/count_tokens": {"POST": self.count_tokens},
            "/metrics": {"GET": self.metrics_text},
            "/tokenize": {"POST": self.tokenize},
            "/detokenize": {"POST": self.detokenize},
            "/apply-template": {"POST": self.apply_template},
            "/live": {"GET": Live(scheduler, options.write_timeout)},
        }
        files = page.table()
        self.table.update(files)
        self.open_paths = {"/health", *files}  # those that need no key

    # ---- every request ---------------------------------------------------------------------------

    async def __call__(self, http):
        connection = http.protocol
        connection.begin()
        try:
            response = await self._logged(Request(http))
            if response.prepared:
                return response
            if is_last(http) or not http.content.is_eof():
                response.force_close()
            if not http.content.is_eof():
                await response.prepare(http)
                await response.write_eof()
                await connection.drop(http.content, max(DROP_BYTES, 2 * self.options.max_body))
            return response
        except ConnectionError:
            return web.Response(status=499)  # to nobody
        finally:
            connection.end()

    async def _logged(self, request):
        begun, status = time.monotonic(), 499
        try:
            response = await self._answer(request)
            status = response.status
            return response
        except ConnectionError as e:
            request.note["error"] = str(e)
            raise
        finally:
            request.close()
            self._log(request, status, time.monotonic() - begun)

    async def _answer(self, request):
        dialect = "anthropic" if "/messages" in request.path else "openai"
        try:
            check_head(request.http)  # before anything is answered, and the connection kept
            headers = self._cors(request.http)
            handler = self._route(request.http)
            if request.http.method == "OPTIONS":
                return web.Response(status=204, headers={**headers, **handler})
            if self._known(request.path) in WATCHED:
                self._check_host(request.http)
            self._authenticate(request)
            if request.http.method == "POST":
                request.read = Share(self.bodies)
                request.body = await self._read(request.http, request.read)
            request.http.protocol.body_is_read()
            response = await handler(request)
        except ApiError as e:
            self._note(request, e)
            response = json_response(e.body(dialect), e.status, e.headers)
            if "Connection" in e.headers:
                response.force_close()
        if not response.prepared:
            response.headers.update(self._headers(request))
        return response

    def _note(self, request, error):
        """For the log. What is wrong with a request may quote it: that is told when debugging."""
        quotes = error.status == 400 and not self.log.isEnabledFor(logging.DEBUG)
        request.note["error"] = (error.code or "invalid_request") if quotes else error.message
        request.note["param"] = error.param

    def _headers(self, request):
        return {"X-Request-Id": request.id, **self._cors(request.http, refuse=False)}

    def _log(self, request, status, seconds):
        http = request.http
        self.metrics.request(self._known(http.path), status, seconds)
        quiet = http.path in ("/health", "/metrics") and status == 200
        self.log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={
            "id": request.id, "method": http.method, "path": http.path, "status": status,
            "ms": round(seconds * 1e3, 1), "key": request.key, **request.note})

    def _known(self, path):
        """A path of the table, whichever way it was written, or "other"."""
        path = path.rstrip("/") or "/"
        path = path if path in self.table else "/v1" + path
        if path.removeprefix("/v1").startswith("/v1/models/"):
            path = path.removeprefix("/v1")
        if path.startswith("/v1/models/"):
            return "/v1/models/{id}"
        return path if path in self.table else "other"

    def _route(self, http):
        path = http.path.rstrip("/")
        methods = self.table.get(self._known(http.path))
        if not methods:
            if path in OUT_OF_SCOPE:
                raise ApiError(501, f"{OUT_OF_SCOPE[path]}: not what this server does")
            raise ApiError(404, f"there is nothing at {http.path}")
        allow = ", ".join(sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}))
        if http.method == "OPTIONS":
            return {"Allow": allow, "Access-Control-Allow-Methods": allow}
        method = "GET" if http.method == "HEAD" else http.method
        if method not in methods:
            raise ApiError(405, f"{http.path} does not know {http.method}",
                           headers={"Allow": allow})
        return methods[method]

    # ---- who may ask -----------------------------------------------------------------------------

    def _cors(self, http, refuse=True):
        """Headers for a browser. A page of an origin that is not allowed is not answered at all:
        without this, any page a user opens could put this machine to work."""
        origin = http.headers.get("Origin")
        if not origin:
            return {}
        if not self._allowed(origin, http.headers.get("Host", "")):
            if refuse:
                raise ApiError(403, f"pages of {origin} may not use this server "
                                    "(--cors-origin allows them)")
            return {}
        allow = {"Access-Control-Allow-Origin": origin, "Vary": "Origin",
                 "Access-Control-Allow-Headers": ALLOWED_HEADERS,
                 "Access-Control-Expose-Headers": "Retry-After, X-Request-Id",
                 "Access-Control-Max-Age": "600"}
        asked = http.headers.get("Access-Control-Request-Headers")
        if asked:  # clients of pages bring more than anybody can list: X-Stainless-*, ...
            allow["Access-Control-Allow-Headers"] += ", " + asked
        if http.headers.get("Access-Control-Request-Private-Network") == "true":
            allow["Access-Control-Allow-Private-Network"] = "true"
        return allow

    def _allowed(self, origin, host):
        allowed = self.options.cors_origin or []
        if "*" in allowed or origin in allowed:
            return True
        url = _split(origin)
        if url.scheme not in ("http", "https") or not url.hostname:
            return False
        if url.hostname == "localhost" or _is_address(url.hostname, loopback=True):
            return True
        own = url.netloc.lower() == host.lower()  # our own page, under a name nobody can rebind
        return own and (_is_address(url.hostname) or bool(self.keys))

    def _check_host(self, http):
        """A browser sends no Origin with what a page gets from its own host. If that host's name was
        made to lead here, the page is a stranger's all the same, and may not watch."""
        here = http.transport and http.transport.get_extra_info("sockname")
        loopback = isinstance(here, tuple) and _is_address(here[0], loopback=True)
        host = http.headers.get("Host", "")
        name = _split("//" + host).hostname or ""
        if not loopback or self.keys or http.headers.get("Origin") or "." not in name \
                or _is_address(name) or name.endswith(".localhost"):
            return
        if not any(self._allowed(f"{scheme}://{host}", host) for scheme in ("http", "https")):
            raise ApiError(403, f"{http.path} is not told under the name {name} without a key "
                                f"(--cors-origin http://{host} allows it)")

    def _authenticate(self, request):
        if not self.keys or self._known(request.path) in self.open_paths:
            return
        request.key = self.keys.find(request.http.headers)
        if request.key is None:
            raise ApiError(401, "a key is needed: Authorization: Bearer KEY",
                           code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    async def _read(self, http, share):
        """A body, within limits of size and time."""
        codings = http.headers.getall("Content-Encoding", ())
        if any(coding.lower() != "identity" for coding in codings):
            raise ApiError(415, "bodies have to come as they are, without Content-Encoding")
        most = self.options.max_body
        if (http.content_length or 0) > most:
            raise ApiError(413, f"a body of {http.content_length} bytes, at most {most}")
        if http.version == HttpVersion11 and \
                http.headers.get("Expect", "").lower() == "100-continue":
            http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            return await asyncio.wait_for(self._read_all(http, most, share),
                                          self.options.body_timeout)
        except asyncio.TimeoutError:
            raise ApiError(408, "the body did not come in "
                                f"{self.options.body_timeout:g} s") from None

    async def _read_all(self, http, most, share):
        parts = []
        try:
            async for part in http.content.iter_any():
                parts.append(part)
                share.grow(len(part))
                if share.n > most:
                    raise ApiError(413, f"a body of more than {most} bytes")
        except web.RequestPayloadError as e:
            raise ApiError(400, f"the body is cut or malformed: {e}") from None
        return b"".join(parts)

    # ---- what is here ----------------------------------------------------------------------------

    async def health(self, request):
        s = self.scheduler
        queued, feeding, speaking = s.counts()
        value = {"status": "ok" if s.phase == READY else s.phase, "phase": s.phase,
                 "model": self.model_id, "engine": engine.build_info(),
                 "uptime_s": int(time.time()) - self.created,
                 "queued": queued, "prefilling": feeding, "answering": speaking}
        if s.failure:
            value["error"] = str(s.failure)
        if self.loading():
            value["loading"] = dict(zip(("done", "total"), self.loading()))
        if s.phase == READY:
            return json_response(value)
        return json_response(value, 503, {"Retry-After": "5"})

    def _model(self):
        o = self.options
        value = {"id": self.model_id, "object": "model", "created": self.created,
                 "owned_by": "waste", "defaults": {"temperature": o.temperature,
                                                   "max_tokens": o.max_tokens}}
        ctx = self.scheduler.ctx if self.scheduler.phase == READY else None
        if ctx:
            m = ctx.model
            value.update(context_length=m.ctx_max, max_model_len=m.ctx_max,
                         meta={"n_ctx_train": m.ctx_max, "n_ctx": m.ctx_max,
                               "n_params": m.params_total, "n_embd": m.hidden,
                               "n_vocab": ctx.engine.vocab})
            value["waste"] = {n: getattr(m, n) for n in
                              ("n_layers", "n_experts", "top_k", "hidden", "ctx_max",
                               "params_total", "params_active")}
            value["waste"].update(arch=m.arch.decode(), quant_summary=m.quant_summary.decode())
        value["waste_chat"] = self.chat and self._conversations()
        return value

    def _conversations(self):
        """What a conversation may have. no_images: why it may not have those."""
        info = self.chat.info
        value = {"format": info.name.decode(), "thinking": bool(info.has_thinking),
                 "tools": bool(info.has_tools), "images": bool(info.has_images) and not self.blind}
        if not value["images"]:
            value["no_images"] = self.blind or "the model's chat format has no place for them"
        return value

    async def metrics_text(self, request):
        text, kind = self.metrics.text()
        return web.Response(body=text, headers={"Content-Type": kind})

    async def models(self, request):
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request):
        name = urllib.parse.unquote(request.path.split("/models/", 1)[1].rstrip("/"))
        if name != self.model_id:
            raise ApiError(404, f"there is no model {name!r} here, only {self.model_id!r}", "model",
                           "model_not_found")
        return json_response(self._model())

    # ---- text ------------------------------------------------------------------------------------

    async def tokenize(self, request):
        return await self._apart(request, self._tokenize, request)

    def _tokenize(self, request):
        f = request.fields()
        text = f.string("content", f.string("prompt", f.string("text")))
        if text is None:
            raise invalid("content", "content has to be a string")
        mode = engine.MARKUP if f.boolean("parse_special") else engine.CONTENT
        ids = self.tokenizer.encode_array(text, mode)
        made = None
        if f.boolean("with_pieces"):
            def made(t):
                return {"id": t, "piece": openai.token_text(self.tokenizer, t)}
        return list_response("tokens", ids, made, count=len(ids))

    async def detokenize(self, request):
        return await self._apart(request, self._detokenize, request)

    def _detokenize(self, request):
        ids = request.fields().array("tokens")
        if ids is None or not all(type(t) is int for t in ids):
            raise invalid("tokens", "tokens has to be an array of token ids")
        self._check_vocabulary(ids, "tokens")
        return json_response({"content": engine_text(self.tokenizer, ids)})

    def _check_vocabulary(self, ids, member):
        if not self.scheduler.ctx:
            raise busy("the server is loading", 5)
        vocab = self.scheduler.ctx.engine.vocab
        if not all(0 <= t < vocab for t in ids):
            raise invalid(member, f"{member}: token ids are 0 to {vocab - 1}")

    async def apply_template(self, request):
        f = await self._fields(request)
        prompt = (await self._render(request, f, as_it_came=True)).prompt

        def shown():
            return list_response("tokens", prompt.ids, prompt=prompt.text(), count=len(prompt.ids),
                                 reasoning_effort=prompt.effort)

        try:
            return await self._apart(request, shown)
        finally:
            prompt.close()

    # ---- answers ---------------------------------------------------------------------------------

    async def _apart(self, request, work, *args):
        """work(*args); in a thread of its own, and alone, if there is much to work on."""
        if len(request.body) < LARGE:
            return work(*args)
        async with self.large:
            return await asyncio.to_thread(work, *args)

    async def _fields(self, request, conversation=None):
        """The request, or what conversation(request) makes of it."""
        def fields():
            f = request.fields()
            return (f, Fields(conversation(f))) if conversation else f

        return await self._apart(request, fields)

    def _chat(self):
        if not self.chat:
            raise ApiError(400, self.chat_missing, "messages", "unsupported_chat_format")
        return self.chat

    async def _render(self, request, f, as_it_came=False):
        """f: what the chat format is asked. Bytes that came as it has them go to the library as
        they are: it knows JSON that Python does not."""
        chat, messages = self._chat(), openai.check_messages(f)
        pictures = Pictures(messages)
        if pictures:
            if self.blind:
                raise no_images(pictures.first_path, self.blind)
            request.pictures = pictures
            pictures.hold(self.pictures)
        raw = request.body if as_it_came and not pictures else None

        def render():
            pictures.read(self.options.model, self.options.image_patches)
            prompt = chat.render(f.bytes() if raw is None else raw)
            return Rendered(prompt, pictures.placed(prompt), constrain.of_prompt(prompt, f),
                            openai.leading_system(messages))

        try:
            return await asyncio.to_thread(render)
        except engine.Failure as e:
            raise constrain.refusal(e, f.value) from None

    async def chat_completions(self, request):
        f = await self._fields(request)
        options = openai.chat_options(f, self.options.temperature)

        def answer(prompt):
            return openai.ChatAnswer(self.model_id, self.tokenizer, options, prompt.effort,
                                     self.options.reasoning)

        return await self._converse(request, options, f, answer, Sse(),
                                    as_it_came=True)

    def _anthropic(self, f):
        return anthropic.conversation(f, bool(self._chat().info.has_thinking))

    async def messages(self, request):
        f, body = await self._fields(request, self._anthropic)
        options = anthropic.options(f)
        options.settings = openai.sampling(f, self.options.temperature)

        def answer(prompt):
            return anthropic.MessagesAnswer(self.model_id, options, len(prompt.ids), prompt.effort)

        return await self._converse(request, options, body, answer, anthropic.MessagesSse())

    async def count_tokens(self, request):
        _, body = await self._fields(request, self._anthropic)
        return json_response({
            "input_tokens": len((await self._render(request, body)).prompt.ids)})

    async def responses(self, request):
        f, body = await self._fields(request, responses.conversation)
        options = responses.options(f, self.options.temperature)

        def answer(prompt):
            return responses.ResponsesAnswer(self.model_id, f.value, options, len(prompt.ids),
                                             prompt.effort)

        return await self._converse(request, options, body, answer, responses.ResponsesSse())

    async def _converse(self, request, options, f, answer, sse, as_it_came=False):
        """f, as_it_came: see _render. answer(prompt): how it is told."""
        self._check_room(request)
        r = await self._render(request, f, as_it_came)
        options.settings.update(r.constraint)
        if options.thinking_budget is not None:
            options.settings.update(close_ids=r.prompt.close_ids,
                                    close_after=options.thinking_budget)
        request.note.update(note=r.prompt.note or None, images=len(r.pictures) or None)
        options.limited_by = constrain.limited_by(f.value)
        answer = answer(r.prompt)
        f.value.clear()
        return await self._chat_answer(request, options, r, answer, sse)

    async def _chat_answer(self, request, options, r, answer, sse):
        prompt = r.prompt
        try:
            ends = [n for n, _ in prompt.ends]
            long = max((n for n, m in prompt.ends if -1 < m <= r.system), default=0)
            readers = [ChatReader(self.tokenizer, prompt, options.stops,
                                  options.logprobs is not None) for _ in range(options.n)]
            return await self._run(request, options, prompt.ids, readers, answer, sse=sse,
                                   ends=ends, system_end=long, pictures=r.pictures,
                                   pictures_end=prompt.images_end)
        finally:
            prompt.close()

    async def completions(self, request):
        f = await self._fields(request)
        options = openai.completion_options(f, self.options.temperature)
        if options.max_tokens is None:
            options.max_tokens = 16  # what OpenAI's clients expect of this endpoint
        options.settings.update(constrain.of_text(f))
        options.limited_by = "json_schema" if f.get("json_schema") else "grammar"
        self._check_room(request)
        ids, text = await self._text_prompt(f)
        readers = [TextReader(self.tokenizer, options.stops, options.logprobs is not None)
                   for _ in range(options.n)]
        echo = ""
        if f.boolean("echo"):
            echo = engine_text(self.tokenizer, ids) if text is None else text
        return await self._run(request, options, ids, readers,
                               openai.CompletionAnswer(self.model_id, self.tokenizer, options,
                                                       echo))

    async def _text_prompt(self, f):
        prompt = f.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        if isinstance(prompt, str) and prompt:
            return await asyncio.to_thread(self.tokenizer.encode_array, prompt), prompt
        if isinstance(prompt, list) and prompt:
            self._check_length(prompt, "prompt")
        if isinstance(prompt, list) and prompt and all(type(t) is int for t in prompt):
            self._check_vocabulary(prompt, "prompt")
            return engine.ids_array(prompt), None
        raise invalid("prompt", "prompt has to be one text that is not empty, or one array of ids")

    def _check_room(self, request):
        """Before anything is rendered. Who asks again may be joined to an answer in the making."""
        if self.replays.name(request) and self.scheduler.phase == READY:
            return
        try:
            self.scheduler.check_room()
        except Full as e:
            raise busy(str(e), e.retry_after) from None

    def _check_length(self, ids, member):
        ctx_max = self.scheduler.ctx.model.ctx_max
        if len(ids) >= ctx_max:
            raise invalid(member, f"the prompt has {len(ids)} tokens, and the context {ctx_max}",
                          "context_length_exceeded")

    def _enter(self, request):
        most = self.options.per_key
        n = self.in_flight.get(request.key, 0)
        if most and n >= most:
            raise ApiError(429, f"{n} requests of this key are being worked on, at most {most}",
                           code="rate_limit_exceeded", headers={"Retry-After": "5"})
        self.in_flight[request.key] = n + 1

    async def _run(self, request, options, ids, readers, answer, *, sse=None, **more):
        """Jobs, from submission to the last byte. more: of each job."""
        self._check_length(ids, "messages" if "ends" in more else "prompt")
        name = self.replays.name(request)
        request.forget()
        earlier = name and self.replays.get(name, request)
        if earlier:
            request.close()  # its own pictures are not needed
            return await self._deliver(request, options, earlier, sse)
        request.grammar = Share(self.grammars)
        request.grammar.grow(len(options.settings.get("grammar") or b""))
        exchange = Exchange(answer, cancel=self.scheduler.cancel, grace=name and GRACE,
                            pictures=request.pictures, grammar=request.grammar)
        self._enter(request)
        try:
            jobs = self._jobs(request, options, ids, readers, exchange, more)
            try:
                self.scheduler.submit(*jobs)
            except Full as e:
                raise busy(str(e), e.retry_after) from None
            request.pictures = request.grammar = None
            exchange.start(jobs, min(
                (s for s in (options.timeout, self.options.timeout) if s), default=None))
            if name:
                self.replays.put(name, request, exchange)
            return await self._deliver(request, options, exchange, sse)
        finally:
            self.in_flight[request.key] -= 1

    def _jobs(self, request, options, ids, readers, exchange, more):
        o = self.options
        settings = dict(options.settings, n_logprobs=options.logprobs or 0)
        options.settings.pop("grammar", None)  # the jobs' alone: the answer may be kept
        if "logit_bias" in settings:
            settings["logit_bias"] = [engine.Bias(t, v) for t, v in settings["logit_bias"]]
        tag = self.keys.tag(request.key) if o.isolate_keys and request.key is not None else None
        jobs = []
        for i, reader in enumerate(readers):
            jobs.append(Job(ids, reader, exchange.sink(i), settings=dict(settings, stream=i),
                            max_tokens=options.max_tokens, tag=tag,
                            after=jobs[0] if jobs else None,
                            forks=len(readers) > 1 and not jobs, **more))
        return jobs

    async def _deliver(self, request, options, exchange, sse):
        """To this client, whoever else may be listening."""
        listener = exchange.attach()
        request.http.protocol.on_gone = listener.gone
        if request.http.transport is None:
            listener.gone()
        try:
            if not options.stream:
                return await at_once(exchange, listener)
            return await streamed(exchange, listener, request.http, sse=sse or Sse(),
                                  headers=self._headers(request),
                                  keep_alive=self.options.keep_alive,
                                  write_seconds=self.options.write_timeout)
        finally:
            exchange.detach(listener)
            request.note.update(_sums(exchange.answer.ended))
            if exchange.error:  # of a stream that has begun the status says nothing
                self._note(request, exchange.error)


def engine_text(tokenizer, ids):
    return tokenizer.decode(ids).decode("utf-8", "replace")


def _sums(ended):
    """What a request took, for the log."""
    ended = [e for e in ended if e]
    if not ended:
        return {}
    u = [e.usage for e in ended]
    return {"prompt_tokens": u[0].prompt, "cached_tokens": u[0].cached,
            "completion_tokens": sum(x.generated for x in u), "reason": ended[0].reason,
            "queued_ms": round(u[0].queued_ms, 1), "prefill_ms": round(u[0].prefill_ms, 1),
            "decode_ms": round(u[0].decode_ms, 1)}


def _split(url):
    try:
        return urllib.parse.urlsplit(url)
    except ValueError:  # http://[
        return urllib.parse.urlsplit("")


def _is_address(host, loopback=False):
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or not loopback
