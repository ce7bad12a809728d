"""Members of a request: fetched by name, checked by type and range, refused by name.

null is the same as not being there, everywhere.
"""

import json
import math

from serve.errors import ApiError, invalid

# Of one body. What takes memory and time is not bytes but values, and Python's parser lets nobody
# else run until it is done; these are some 30 ms.
MOST_VALUES, MOST_STRINGS, MOST_CONTAINERS = 1 << 20, 1 << 17, 1 << 16
_SLICE = 1 << 16


def parse(body):
    """The object that a body is."""
    _check_amount(body)

    def constant(name):
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(body, parse_constant=constant)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as e:  # also: not UTF-8, an integer of thousands of digits
        raise ApiError(400, f"the body is not JSON: {e}" if body else "the body is empty") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is {kind(value)}, not an object")
    return value


def _check_amount(body):
    """Refuse what would take long to parse. What is in strings counts only where it might matter:
    a text may have any number of commas."""
    amounts = (_count(body, b","), _count(body, b'"') // 2, _count(body, b"[{"))
    if _is_too_much(amounts):
        amounts = _amounts_outside_strings(body)
    if _is_too_much(amounts):
        raise ApiError(413, f"the body has more than {MOST_VALUES} values, {MOST_STRINGS} strings, "
                            f"or {MOST_CONTAINERS} arrays and objects")


def _is_too_much(amounts):
    return any(n > most for n, most in zip(amounts, (MOST_VALUES, MOST_STRINGS, MOST_CONTAINERS)))


def _count(body, which, start=0, end=None):
    """How many of these bytes; in slices, between which other threads run."""
    end = len(body) if end is None else end
    return sum(body.count(byte, at, min(at + _SLICE, end))
               for at in range(start, end, _SLICE) for byte in which)


def _amounts_outside_strings(body):
    """Commas, strings, and brackets that open something; no further than to too much."""
    commas = strings = containers = at = 0
    while not _is_too_much((commas, strings, containers)):
        quote = body.find(b'"', at)
        end = len(body) if quote < 0 else quote
        commas += _count(body, b",", at, end)
        containers += _count(body, b"[{", at, end)
        if quote < 0:
            break
        strings, at = strings + 1, _end_of_string(body, quote)
    return commas, strings, containers


def _end_of_string(body, quote):
    while (quote := body.find(b'"', quote + 1)) >= 0:
        before = quote
        while body[before - 1] == 0x5c:
            before -= 1
        if (quote - before) % 2 == 0:  # no backslash, or each has its own
            return quote + 1
    return len(body)


def kind(value):
    if isinstance(value, bool):
        return "a boolean"
    return {dict: "an object", list: "an array", str: "a string", int: "a number",
            float: "a number", type(None): "null"}[type(value)]


class Fields:
    """An object of a request, and where it stands in it."""

    def __init__(self, value, path=""):
        if not isinstance(value, dict):
            raise invalid(path, f"is {kind(value)}, not an object")
        self.value, self.path = value, path

    def name(self, member):
        return f"{self.path}.{member}" if self.path else member

    def get(self, member):
        return self.value.get(member)

    def bytes(self):
        """The object as JSON, for the library; it reads escapes of half surrogate pairs."""
        return json.dumps(self.value).encode()

    def _typed(self, member, types, what):
        value = self.value.get(member)
        if value is None:
            return None
        if not isinstance(value, types) or isinstance(value, bool) and bool not in types:
            raise invalid(self.name(member), f"{self.name(member)} is {kind(value)}, not {what}")
        return value

    def boolean(self, member, default=False):
        value = self._typed(member, (bool,), "a boolean")
        return default if value is None else value

    def string(self, member, default=None):
        value = self._typed(member, (str,), "a string")
        return default if value is None else value

    def array(self, member):
        return self._typed(member, (list,), "an array")

    def object(self, member):
        value = self._typed(member, (dict,), "an object")
        return None if value is None else Fields(value, self.name(member))

    def number(self, member, low, high, default=None):
        value = self._typed(member, (int, float), "a number")
        if value is None:
            return default
        if not (low <= value <= high and math.isfinite(value)):
            raise invalid(self.name(member),
                          f"{self.name(member)} is {value}, not between {low} and {high}")
        return float(value)

    def integer(self, member, low, high, default=None):
        value = self._typed(member, (int, float), "an integer")
        if value is None:
            return default
        if value != value or abs(value) == math.inf or value != int(value):
            raise invalid(self.name(member), f"{self.name(member)} is {value}, not an integer")
        if not low <= value <= high:
            raise invalid(self.name(member),
                          f"{self.name(member)} is {value}, not between {low} and {high}")
        return int(value)

    def one_of(self, member, allowed, default=None):
        value = self.string(member, default)
        if value is not None and value not in allowed:
            raise invalid(self.name(member), f"{self.name(member)} is {value!r}, not one of "
                          + ", ".join(allowed))
        return value
