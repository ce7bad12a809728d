"""include/waste.h in Python: structures, prototypes, and one class per handle.

A failed call raises Failure with the library's own sentence. Sizes of structures are compared with
the library's when this module is imported, so that a mirror that has fallen behind cannot run.

Threads are as in waste.h: Context, Session and Store belong to the thread that opened them, except
where a method says otherwise; Tokenizer and Chat to any; a Reply, Stops or Utf8 to one at a time.
"""

import ctypes
import os
import pathlib
import types
from ctypes import (POINTER, Structure, addressof, byref, c_char, c_char_p, c_double, c_float,
                    c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p, sizeof)

OK, E_IO, E_FORMAT, E_RAM_BUDGET, E_OOM, E_ARG, E_UNSUPPORTED, E_CANCELLED, E_BUSY, E_CORRUPT, \
    E_LIMIT = range(0, -11, -1)

CONTENT, MARKUP = 0, 1
WANT_TOKEN = 1
STOP_ID, STOP_CONTEXT, STOP_GRAMMAR = 1, 2, 3
GRAMMAR_TEXT, GRAMMAR_JSON_SCHEMA = 0, 1
KEEP_LONG = 1
REASONING, RESPONSE, CALL_BEGIN, CALL_ARGUMENTS, CALL_END, CALL_CUT, MESSAGE_END = range(1, 8)


class Failure(Exception):
    """A waste_status that is not WASTE_OK, in the library's words."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status = status


# ---- structures, in the order of enum WASTE_ABI_* ------------------------------------------------


def _fields(kind, names):
    return [(name, kind) for name in names.split()]


class Cfg(Structure):
    _fields_ = [("ram_budget_bytes", c_uint64), ("ctx_tokens", c_uint32), ("n_threads", c_int),
                ("cpu_list", c_char_p), *_fields(c_int, "cache_policy use_direct_io vision "
                                                        "verify_records"),
                ("usage_path", c_char_p), ("exclusive_open", c_int)]


class Memplan(Structure):
    _fields_ = _fields(c_uint64, "trunk_bytes state_bytes scratch_bytes min_expert_cache "
                                 "floor_bytes recommended_bytes vision_bytes working_set_bytes")


class GenParams(Structure):
    _fields_ = [("temperature", c_float), ("top_p", c_float), ("top_k", c_int),
                ("seed", c_uint64), ("max_tokens", c_uint32), ("grammar", c_char_p),
                ("stop_tokens", c_void_p), ("n_stop", c_size_t)]


class TokenInfo(Structure):
    _fields_ = [("token_index", c_uint32), ("token", c_int32), ("logprob", c_float),
                ("experts_hit", c_uint32), ("experts_missed", c_uint32),
                ("bytes_read", c_uint64), ("ms_total", c_double), ("ms_io", c_double)]


class ModelInfo(Structure):
    _fields_ = [*_fields(c_uint32, "n_layers n_experts top_k hidden ctx_max"),
                *_fields(c_uint64, "params_total params_active"),
                *_fields(c_char_p, "arch quant_summary")]


class Stats(Structure):
    _fields_ = [*_fields(c_uint64, "tokens_generated experts_hit experts_missed bytes_read"),
                ("sec_total", c_double), ("sec_io", c_double), ("direct_io", c_int)]


class Progress(Structure):
    _fields_ = [("size", c_uint32), ("phase", c_uint32), *_fields(c_uint64, "done total bytes")]


PROGRESS_FN = ctypes.CFUNCTYPE(c_int, POINTER(Progress), c_void_p)
LOG_FN = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class Opts(Structure):
    _fields_ = [*_fields(c_uint32, "size max_sessions max_rows"), ("lookahead", c_int32),
                *_fields(c_char_p, "io_engine numeric cpu_level policy"),
                *_fields(c_uint32, "io_depth checkpoints"), ("route_trace", c_char_p),
                ("progress", PROGRESS_FN), ("log", LOG_FN), ("user", c_void_p),
                ("drive_notes", c_char_p), *_fields(c_uint32, "image_patches vision_free")]


class Plan(Structure):
    _fields_ = [*_fields(c_uint32, "size ctx_tokens max_sessions max_rows"), ("mem", Memplan),
                *_fields(c_uint64, "physical_ram_bytes usable_ram_bytes"),
                ("usable_why", c_char * 120), ("budget_bytes", c_uint64),
                *_fields(c_int32, "budget_chosen fits"),
                *_fields(c_uint64, "pool_bytes record_bytes expert_bytes disk_bytes "
                                   "trunk_file_bytes"),
                *_fields(c_uint32, "n_layers n_moe_layers n_experts top_k"),
                *_fields(c_uint64, "params_total params_active"), ("from_config", c_int32),
                ("arch", c_char * 64),
                *_fields(c_uint64, "scratch_growth_bytes checkpoint_bytes session_bytes "
                                   "state_fixed_bytes state_token_bytes"),
                *_fields(c_uint32, "vision_tower reserved0")]


class EngineInfo(Structure):
    _fields_ = [*_fields(c_uint32, "size n_threads n_frames io_depth lookahead max_rows"),
                *_fields(c_uint64, "frame_bytes budget_bytes"),
                *_fields(c_uint32, "n_banks n_banks_direct"),
                *_fields(c_char_p, "io_engine io_steps direct_why numeric kernels policy"),
                ("verify", c_int32), ("io_note", c_char_p),
                *_fields(c_uint32, "vocab n_preload"), ("usage", c_char_p),
                *_fields(c_uint32, "depth_from reserved0"), ("drive_bytes_per_s", c_uint64),
                ("placement", c_char_p)]


class Counters(Structure):
    _fields_ = [*_fields(c_uint32, "size reserved0"),
                *_fields(c_uint64, "prefill_tokens decode_tokens"),
                *_fields(c_double, "sec_prefill sec_decode sec_io"),
                *_fields(c_uint64, "hits_resident hits_prefetch misses bytes_read bytes_prefetch "
                                   "preloaded hits_preload late_prefetch late_misses guesses "
                                   "guesses_wasted guesses_refused reads_retried reads_failed "
                                   "records_refused"),
                *_fields(c_double, "sec_in_flight sec_mix sec_mlp sec_route sec_checks "
                                   "sec_experts sec_head sec_other"),
                ("images", c_uint64), ("sec_images", c_double)]


class Bias(Structure):
    _fields_ = [("id", c_int32), ("value", c_float)]


class Logprob(Structure):
    _fields_ = [("id", c_int32), ("logprob", c_float)]


class Sampling(Structure):
    _fields_ = [("size", c_uint32), *_fields(c_float, "temperature top_p"), ("top_k", c_int32),
                ("seed", c_uint64), ("stream", c_uint32), *_fields(c_float, "min_p repeat_penalty"),
                ("repeat_window", c_uint32),
                *_fields(c_float, "presence_penalty frequency_penalty"),
                ("logit_bias", POINTER(Bias)), ("n_logit_bias", c_size_t),
                ("stop_tokens", c_void_p), ("n_stop", c_size_t),
                *_fields(c_uint32, "n_logprobs reserved0"), ("grammar", c_char_p),
                *_fields(c_int32, "grammar_kind grammar_after"), ("close_ids", POINTER(c_int32)),
                *_fields(c_uint32, "n_close close_after"), ("compiled", c_void_p)]


class Item(Structure):
    _fields_ = [*_fields(c_uint32, "size want"), *_fields(c_void_p, "session ids"),
                *_fields(c_size_t, "n_ids n_done"), ("status", c_int), ("token", c_int32),
                ("logprob", c_float), ("stop", c_uint32), *_fields(c_void_p, "logits next_ids "
                                                                            "id_logprobs"),
                ("n_next", c_size_t), ("top", POINTER(Logprob)), ("n_top", c_size_t)]


class StateInfo(Structure):
    _fields_ = [*_fields(c_uint32, "size pos"), *_fields(c_uint64, "created bytes note_bytes"),
                ("arch", c_char * 64), ("numeric", c_char * 16), ("engine", c_char * 32)]


class StoreCfg(Structure):
    _fields_ = [*_fields(c_uint32, "size every"), ("dir", c_char_p), ("dir_bytes", c_uint64)]


class StoreInfo(Structure):
    _fields_ = [*_fields(c_uint32, "size n_memory n_files reserved0"),
                *_fields(c_uint64, "memory_bytes file_bytes kept dropped refused resumed "
                                   "positions_saved")]


class ChatOpts(Structure):
    _fields_ = [("size", c_uint32), ("lenient_effort", c_int32), ("effort", c_char_p),
                ("constrains", c_int32), ("reserved0", c_uint32)]


class ChatInfo(Structure):
    _fields_ = [*_fields(c_uint32, "size format"),
                *_fields(c_int32, "has_thinking has_tools has_images has_answer_formats end_id"),
                ("reserved0", c_uint32), ("name", c_char_p)]


class Segment(Structure):
    _fields_ = [("text", c_void_p), *_fields(c_size_t, "len first_id"), ("mode", c_int32),
                ("reserved0", c_uint32)]


class MessageEnd(Structure):
    _fields_ = [("n_ids", c_size_t), ("message", c_int32), ("reserved0", c_uint32)]


class ImagePlace(Structure):
    _fields_ = [("at", c_size_t), *_fields(c_uint32, "message part width height"),
                ("source", c_void_p), ("len", c_size_t)]


class Text(Structure):
    _fields_ = [("text", c_char_p), ("len", c_size_t)]


class PromptInfo(Structure):
    _fields_ = [*_fields(c_uint32, "size begins"), ("ids", c_void_p), ("n_ids", c_size_t),
                ("segments", POINTER(Segment)), ("n_segments", c_size_t),
                ("ends", POINTER(MessageEnd)), ("n_ends", c_size_t),
                ("images", POINTER(ImagePlace)), ("n_images", c_size_t),
                *_fields(c_char_p, "effort note"), *_fields(c_int32, "may_call must_call"),
                ("must_call_name", c_void_p), ("must_call_name_len", c_size_t),
                ("close_ids", POINTER(c_int32)), ("n_close", c_size_t)]


class Event(Structure):
    _fields_ = [*_fields(c_uint32, "kind call"), ("text", c_void_p), ("len", c_size_t),
                ("id", c_char_p), ("number", c_int32), ("complete", c_uint32)]


class LayerUse(Structure):
    _fields_ = [*_fields(c_uint32, "size n_experts"),
                *_fields(c_uint64, "hits_resident hits_prefetch misses"),
                *_fields(c_uint32, "n_resident n_reading")]


class Constraint(Structure):
    _fields_ = [("size", c_uint32), ("lenient", c_int32), *_fields(c_char_p, "schema grammar")]


class ImageInfo(Structure):
    _fields_ = [*_fields(c_uint32, "size width height fit_width fit_height padded_width "
                                   "padded_height patches_x patches_y n_rows max_patches "
                                   "side_patches reserved0 reserved1"),
                *_fields(c_uint64, "decode_bytes tower_macs"), ("format", c_char * 8)]


class Utf8State(Structure):
    _fields_ = [("held", c_uint8 * 4), ("n_held", c_uint32)]


MIRRORS = (Cfg, Memplan, GenParams, TokenInfo, ModelInfo, Stats, Opts, Plan, EngineInfo, Counters,
           Sampling, Item, Progress, StateInfo, StoreCfg, StoreInfo, ChatOpts, ChatInfo, Segment,
           MessageEnd, ImagePlace, PromptInfo, Event, LayerUse, Constraint, ImageInfo)

# ---- the library ---------------------------------------------------------------------------------

_PROTOTYPES = {
    # name: (result, arguments); a result of None is nothing, c_int a waste_status
    "waste_abi": (c_size_t, [c_int]),
    "waste_version": (c_char_p, []),
    "waste_build_info": (c_char_p, []),
    "waste_strerror": (c_char_p, [c_int]),
    "waste_error_detail": (c_char_p, [c_void_p]),
    "waste_cfg_init": (None, [POINTER(Cfg)]),
    "waste_opts_init": (None, [POINTER(Opts)]),
    "waste_plan_ex": (c_int, [c_char_p, POINTER(Cfg), POINTER(Opts), POINTER(Plan)]),
    "waste_open_ex": (c_int, [c_char_p, POINTER(Cfg), POINTER(Opts), POINTER(c_void_p)]),
    "waste_close": (None, [c_void_p]),
    "waste_model_get_info": (c_int, [c_void_p, POINTER(ModelInfo)]),
    "waste_engine_info": (c_int, [c_void_p, POINTER(EngineInfo)]),
    "waste_get_counters": (c_int, [c_void_p, POINTER(Counters)]),
    "waste_layer_get_use": (c_int, [c_void_p, c_uint32, POINTER(LayerUse), POINTER(c_uint8),
                                    c_size_t]),
    "waste_save_usage": (c_int, [c_void_p]),
    "waste_tokenizer_open": (c_int, [c_char_p, POINTER(c_void_p)]),
    "waste_tokenizer_close": (None, [c_void_p]),
    "waste_encode": (c_int, [c_void_p, c_int, c_char_p, c_size_t, POINTER(c_int32), c_size_t,
                             POINTER(c_size_t)]),
    "waste_decode": (c_int, [c_void_p, POINTER(c_int32), c_size_t, c_void_p, c_size_t,
                             POINTER(c_size_t)]),
    "waste_token_bytes": (c_int, [c_void_p, c_int32, POINTER(c_void_p), POINTER(c_size_t)]),
    "waste_token_is_control": (c_int, [c_void_p, c_int32]),
    "waste_utf8_feed": (c_size_t, [POINTER(Utf8State), c_char_p, c_size_t, c_int, c_void_p]),
    "waste_stops_open": (c_int, [POINTER(Text), c_size_t, POINTER(c_void_p)]),
    "waste_stops_close": (None, [c_void_p]),
    "waste_stops_room": (c_size_t, [c_void_p, c_size_t]),
    "waste_stops_feed": (c_size_t, [c_void_p, c_char_p, c_size_t, c_int, c_void_p,
                                    POINTER(c_int32)]),
    "waste_grammar_open": (c_int, [c_void_p, c_int32, c_char_p, c_int32, POINTER(c_void_p)]),
    "waste_grammar_bytes": (c_size_t, [c_void_p]),
    "waste_grammar_close": (None, [c_void_p]),
    "waste_sampling_init": (None, [POINTER(Sampling)]),
    "waste_session_open": (c_int, [c_void_p, POINTER(c_void_p)]),
    "waste_session_default": (c_void_p, [c_void_p]),
    "waste_session_reset": (c_int, [c_void_p]),
    "waste_session_pos": (c_size_t, [c_void_p]),
    "waste_session_sampling": (c_int, [c_void_p, POINTER(Sampling)]),
    "waste_session_cancel": (None, [c_void_p]),
    "waste_step": (c_int, [c_void_p, POINTER(Item), c_size_t]),
    "waste_checkpoint_take": (c_int, [c_void_p, POINTER(c_void_p)]),
    "waste_checkpoint_restore": (c_int, [c_void_p, c_void_p]),
    "waste_checkpoint_close": (None, [c_void_p]),
    "waste_store_cfg_init": (None, [POINTER(StoreCfg)]),
    "waste_store_open": (c_int, [c_void_p, POINTER(StoreCfg), POINTER(c_void_p)]),
    "waste_store_close": (None, [c_void_p]),
    "waste_store_keep": (c_int, [c_void_p, c_void_p, c_char_p, c_uint32]),
    "waste_store_resume": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_char_p,
                                   POINTER(c_size_t)]),
    "waste_store_find": (c_size_t, [c_void_p, c_void_p, c_void_p, c_size_t, c_char_p]),
    "waste_store_cut": (c_size_t, [c_void_p, c_size_t, POINTER(c_size_t), c_size_t, c_size_t]),
    "waste_store_get_info": (c_int, [c_void_p, POINTER(StoreInfo)]),
    "waste_chat_opts_init": (None, [POINTER(ChatOpts)]),
    "waste_chat_open": (c_int, [c_void_p, c_char_p, POINTER(ChatOpts), POINTER(c_void_p)]),
    "waste_chat_close": (None, [c_void_p]),
    "waste_chat_get_info": (c_int, [c_void_p, POINTER(ChatInfo)]),
    "waste_chat_render": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "waste_prompt_close": (None, [c_void_p]),
    "waste_prompt_get_info": (c_int, [c_void_p, POINTER(PromptInfo)]),
    "waste_constraint_init": (None, [POINTER(Constraint)]),
    "waste_prompt_grammar": (c_int, [c_void_p, POINTER(Constraint), POINTER(c_void_p),
                                     POINTER(c_size_t)]),
    "waste_reply_open": (c_int, [c_void_p, POINTER(c_void_p)]),
    "waste_reply_close": (None, [c_void_p]),
    "waste_reply_feed": (c_int, [c_void_p, c_int32, POINTER(POINTER(Event)), POINTER(c_size_t)]),
    "waste_reply_end": (c_int, [c_void_p, POINTER(POINTER(Event)), POINTER(c_size_t)]),
    "waste_image_look": (c_int, [c_char_p, c_uint32, c_char_p, c_size_t, POINTER(ImageInfo)]),
    "waste_session_image_add": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_uint32)]),
    "waste_session_image_ids": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "waste_session_image_clear": (c_int, [c_void_p]),
}


def _find():
    """WASTE_LIB, else the library of this source's build, else what the system has."""
    if os.environ.get("WASTE_LIB"):
        return os.environ["WASTE_LIB"]
    root = pathlib.Path(__file__).resolve().parents[1]
    built = sorted(root.glob("build/**/include/libwaste.so"), key=lambda p: p.stat().st_mtime)
    return str(built[-1]) if built else "libwaste.so.0"


def _load():
    path = _find()
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f"libwaste: {e} (build it, or say in WASTE_LIB where it is)") from None
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path}: no function {name}: another version of libwaste?") from None
        function.restype, function.argtypes = result, arguments
    for kind, mirror in enumerate(MIRRORS):
        if library.waste_abi(kind) != sizeof(mirror):
            raise ImportError(f"{path}: {mirror.__name__} has {library.waste_abi(kind)} bytes "
                              f"there and {sizeof(mirror)} here: another version of libwaste?")
    return library


lib = _load()


def check(status, ctx=None):
    """Raise what the library says of the call just made by this thread, unless it was WASTE_OK."""
    if status != OK:
        detail = lib.waste_error_detail(ctx) or lib.waste_strerror(status)
        raise Failure(status, detail.decode("utf-8", "replace"))


def version():
    return lib.waste_version().decode()


def build_info():
    return lib.waste_build_info().decode()


def sized(structure, **members):
    return structure(size=sizeof(structure), **members)


def text_of(address, length):
    return ctypes.string_at(address, length).decode("utf-8", "replace") if length else ""


def utf8(text):
    """Bytes of a text that came as JSON; half a surrogate pair is U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def ids_array(ids):
    return (c_int32 * len(ids))(*ids)


# ---- text ----------------------------------------------------------------------------------------


class Tokenizer:
    """Any thread."""

    def __init__(self, path):
        self.handle = c_void_p()
        check(lib.waste_tokenizer_open(os.fsencode(path), byref(self.handle)))

    def close(self):
        lib.waste_tokenizer_close(self.handle)
        self.handle = None

    def encode_array(self, text, mode=CONTENT):
        data, n = utf8(text), c_size_t()
        room = (c_int32 * (len(data) + 1))()
        check(lib.waste_encode(self.handle, mode, data, len(data), room, len(room), byref(n)))
        return (c_int32 * n.value).from_buffer_copy(room)

    def encode(self, text, mode=CONTENT):
        return list(self.encode_array(text, mode))

    def decode(self, ids):
        """Bytes; they may cut characters at both ends."""
        array, n = ids_array(ids), c_size_t()
        lib.waste_decode(self.handle, array, len(ids), None, 0, byref(n))
        room = ctypes.create_string_buffer(max(n.value, 1))
        check(lib.waste_decode(self.handle, array, len(ids), room, n.value, byref(n)))
        return room.raw[:n.value]

    def token_bytes(self, token):
        """b"" for an id that has none."""
        data, n = c_void_p(), c_size_t()
        if lib.waste_token_bytes(self.handle, token, byref(data), byref(n)) != OK:
            return b""
        return ctypes.string_at(data, n.value)

    def is_control(self, token):
        return bool(lib.waste_token_is_control(self.handle, token))


class Utf8:
    """Whole characters out of bytes that come in pieces."""

    def __init__(self):
        self.state = Utf8State()

    def feed(self, data, end=False):
        room = ctypes.create_string_buffer(3 * (len(data) + 3))
        n = lib.waste_utf8_feed(byref(self.state), data, len(data), end, room)
        return room.raw[:n].decode()


class Stops:
    """Several stop strings in a text that comes in pieces."""

    def __init__(self, strings):
        data = [utf8(s) for s in strings]
        texts = (Text * len(data))(*((d, len(d)) for d in data))
        self.handle = c_void_p()  # first: what failed to open is closed, too
        check(lib.waste_stops_open(texts, len(data), byref(self.handle)))

    def feed(self, text, end=False):
        """What can no longer belong to a stop string, and which one is complete, or -1."""
        data, matched = text.encode(), c_int32(-1)
        room = ctypes.create_string_buffer(lib.waste_stops_room(self.handle, len(data)) or 1)
        n = lib.waste_stops_feed(self.handle, data, len(data), end, room, byref(matched))
        return room.raw[:n].decode("utf-8", "replace"), matched.value

    def close(self):
        lib.waste_stops_close(self.handle)
        self.handle = None

    __del__ = close


class Grammar:
    """Compiled: what takes up to seconds of the thread that makes it. Any thread."""

    def __init__(self, tokenizer, text, kind):
        self.handle = c_void_p()  # first: what failed to open is closed, too
        check(lib.waste_grammar_open(tokenizer.handle, kind, text, -1, byref(self.handle)))
        self.n_bytes = lib.waste_grammar_bytes(self.handle)

    def close(self):
        lib.waste_grammar_close(self.handle)
        self.handle = None

    __del__ = close


# ---- conversations -------------------------------------------------------------------------------


class Chat:
    """The format of a container. Any thread."""

    def __init__(self, tokenizer, path, effort=None, lenient=False):
        opts = ChatOpts()
        lib.waste_chat_opts_init(byref(opts))
        opts.effort, opts.lenient_effort = effort and effort.encode(), lenient
        opts.constrains = 1
        self.handle = c_void_p()
        check(lib.waste_chat_open(tokenizer.handle, os.fsencode(path), byref(opts),
                                  byref(self.handle)))
        self.info = sized(ChatInfo)
        check(lib.waste_chat_get_info(self.handle, byref(self.info)))

    def close(self):
        lib.waste_chat_close(self.handle)
        self.handle = None

    def render(self, json_bytes):
        return Prompt(self, json_bytes)


class Prompt:
    """A rendered request; immutable. Any thread."""

    def __init__(self, chat, json_bytes):
        self.handle = c_void_p()
        check(lib.waste_chat_render(chat.handle, json_bytes, len(json_bytes), byref(self.handle)))
        self.info = info = sized(PromptInfo)
        check(lib.waste_prompt_get_info(self.handle, byref(info)))
        self.ids = (c_int32 * info.n_ids)()
        ctypes.memmove(self.ids, info.ids, sizeof(self.ids))
        self.ends = [(e.n_ids, e.message) for e in info.ends[:info.n_ends]]
        self.images_end = 0  # behind the last row of an image; `expand` sets it
        self.begins = info.begins
        self.close_ids = info.close_ids[:info.n_close]
        self.effort = info.effort.decode()
        self.note = info.note.decode()

    def grammar(self, response=None):
        """The grammar of the answers, as bytes; None: anything. response: a grammar of the response
        alone. One thread at a time."""
        c = Constraint()
        lib.waste_constraint_init(byref(c))
        c.grammar = response
        text, n = c_void_p(), c_size_t()
        check(lib.waste_prompt_grammar(self.handle, byref(c), byref(text), byref(n)))
        check(lib.waste_prompt_get_info(self.handle, byref(self.info)))
        self.note = self.info.note.decode()
        return ctypes.string_at(text, n.value) if text.value else None

    def text(self):
        """As it would be written, markup and content alike; for people."""
        return "".join(text_of(s.text, s.len) for s in self.info.segments[:self.info.n_segments])

    @property
    def places(self):
        """Of images: where in the ids as the library has them, and each one's address."""
        return [(p.at, text_of(p.source, p.len)) for p in self.info.images[:self.info.n_images]]

    def expand(self, rows):
        """Each image's place to as many as it has rows; message ends move along."""
        places = [(at, n - 1) for (at, _), n in zip(self.places, rows)]
        given, pieces, was = bytes(self.ids), [], 0
        for at, more in places:
            pieces += given[4 * was:4 * at], given[4 * at:4 * at + 4] * more
            was = at
        data = b"".join((*pieces, given[4 * was:]))
        self.ids = (c_int32 * (len(data) // 4)).from_buffer_copy(data)
        self.ends = [(n + sum(more for at, more in places if at < n), m) for n, m in self.ends]
        self.images_end = places[-1][0] + 1 + sum(m for _, m in places) if places else 0

    def close(self):
        lib.waste_prompt_close(self.handle)
        self.handle = None

    __del__ = close


class Reply:
    """A reply as it comes: ids in, (kind, text, call, id, complete) out."""

    def __init__(self, prompt):
        self.handle = c_void_p()
        check(lib.waste_reply_open(prompt.handle, byref(self.handle)))

    def _events(self, call, *args):
        events, n = POINTER(Event)(), c_size_t()
        check(call(self.handle, *args, byref(events), byref(n)))
        return [(e.kind, text_of(e.text, e.len), e.call, e.id and e.id.decode(), bool(e.complete))
                for e in events[:n.value]]

    def feed(self, token):
        return self._events(lib.waste_reply_feed, token)

    def end(self):
        return self._events(lib.waste_reply_end)

    def close(self):
        lib.waste_reply_close(self.handle)
        self.handle = None

    __del__ = close


# ---- the model -----------------------------------------------------------------------------------


class Session:
    """One conversation's memory in a context."""

    def __init__(self, ctx, handle):
        self.ctx, self.handle = ctx, handle

    @property
    def pos(self):
        return lib.waste_session_pos(self.handle)

    def reset(self):
        check(lib.waste_session_reset(self.handle), self.ctx.handle)

    def sampling(self, settings):
        check(lib.waste_session_sampling(self.handle, byref(settings)), self.ctx.handle)

    def cancel(self):
        """Any thread."""
        lib.waste_session_cancel(self.handle)

    def add_image(self, data):
        """Behind those that wait for their places. How many rows it has."""
        n = c_uint32()
        check(lib.waste_session_image_add(self.handle, data, len(data), byref(n)), self.ctx.handle)
        return n.value

    def image_ids(self, ids):
        """ids, with the rows of the images that wait by their names."""
        named = (c_int32 * len(ids))()
        check(lib.waste_session_image_ids(self.handle, ids, len(ids), named), self.ctx.handle)
        return named

    def clear_images(self):
        check(lib.waste_session_image_clear(self.handle), self.ctx.handle)


class Checkpoint:
    """A copy of what a session has committed, in memory that was planned for it."""

    def __init__(self, session):
        self.handle = c_void_p()
        check(lib.waste_checkpoint_take(session.handle, byref(self.handle)), session.ctx.handle)

    def restore(self, session):
        check(lib.waste_checkpoint_restore(self.handle, session.handle), session.ctx.handle)

    def close(self):
        lib.waste_checkpoint_close(self.handle)
        self.handle = None


class Store:
    """States of prompts, in memory and in files."""

    def __init__(self, ctx, directory=None, directory_bytes=0, every=None):
        cfg = StoreCfg()
        lib.waste_store_cfg_init(byref(cfg))
        cfg.dir = os.fsencode(directory) if directory else None
        cfg.dir_bytes = directory_bytes
        if every is not None:
            cfg.every = every
        self.ctx, self.handle = ctx, c_void_p()
        check(lib.waste_store_open(ctx.handle, byref(cfg), byref(self.handle)), ctx.handle)

    def keep(self, session, tag, long=False):
        check(lib.waste_store_keep(self.handle, session.handle, tag, KEEP_LONG if long else 0),
              self.ctx.handle)

    def find(self, session, ids, tag):
        return lib.waste_store_find(self.handle, session.handle, addressof(ids), len(ids), tag)

    def resume(self, session, ids, tag):
        n = c_size_t()
        check(lib.waste_store_resume(self.handle, session.handle, addressof(ids), len(ids), tag,
                                     byref(n)), self.ctx.handle)
        return n.value

    def cut(self, pos, ends, n):
        return lib.waste_store_cut(self.handle, pos, ends, len(ends), n)

    def info(self):
        info = sized(StoreInfo)
        check(lib.waste_store_get_info(self.handle, byref(info)), self.ctx.handle)
        return info

    def close(self):
        lib.waste_store_close(self.handle)
        self.handle = None


def _copied(structure):
    """With texts of our own: those of the library go with the context, and others still ask."""
    return types.SimpleNamespace(**{name: getattr(structure, name)
                                    for name, *_ in structure._fields_})


_DIGITS = bytes((b + ord("0")) % 256 for b in range(256))


class Context:
    """An open model. Belongs to the thread that opened it."""

    def __init__(self, path, cfg, opts):
        self.handle = c_void_p()
        self._callbacks = opts.progress, opts.log  # the library keeps their addresses
        check(lib.waste_open_ex(os.fsencode(path), byref(cfg), byref(opts), byref(self.handle)))
        model, about = ModelInfo(), sized(EngineInfo)
        check(lib.waste_model_get_info(self.handle, byref(model)), self.handle)
        check(lib.waste_engine_info(self.handle, byref(about)), self.handle)
        self.model, self.engine = _copied(model), _copied(about)

    def sessions(self, n):
        """n of them: the default one, and others."""
        found = [Session(self, lib.waste_session_default(self.handle))]
        while len(found) < n:
            handle = c_void_p()
            check(lib.waste_session_open(self.handle, byref(handle)), self.handle)
            found.append(Session(self, handle))
        return found

    def step(self, items, n):
        """One pass. Returns (status, sentence); nothing is raised, the items say the rest."""
        status = lib.waste_step(self.handle, items, n)
        if status == OK:
            return OK, ""
        detail = lib.waste_error_detail(self.handle) or lib.waste_strerror(status)
        return status, detail.decode("utf-8", "replace")

    def counters(self):
        counters = sized(Counters)
        check(lib.waste_get_counters(self.handle, byref(counters)), self.handle)
        return counters

    def layer_use(self, layer):
        """A LayerUse, and where each expert is: a digit each, 0 on disk, 1 being read, 2 here."""
        use, room = sized(LayerUse), (c_uint8 * self.model.n_experts)()
        check(lib.waste_layer_get_use(self.handle, layer, byref(use), room, len(room)), self.handle)
        return use, ctypes.string_at(room, use.n_experts).translate(_DIGITS).decode()

    def save_usage(self):
        check(lib.waste_save_usage(self.handle), self.handle)

    def close(self):
        lib.waste_close(self.handle)
        self.handle = None


def image_look(container, data, most_patches=0):
    """What the model will see of a picture, by its head alone: an ImageInfo. Any thread."""
    info = sized(ImageInfo)
    check(lib.waste_image_look(os.fsencode(container), most_patches, data, len(data), byref(info)))
    return info


def plan(path, cfg, opts):
    out = sized(Plan)
    check(lib.waste_plan_ex(os.fsencode(path), byref(cfg), byref(opts), byref(out)))
    return out


def defaults():
    """A Cfg and an Opts as the library initialises them."""
    cfg, opts = Cfg(), Opts()
    lib.waste_cfg_init(byref(cfg))
    lib.waste_opts_init(byref(opts))
    return cfg, opts
