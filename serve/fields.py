"""Members of a request: fetched by name, checked by type and range, refused by name.

null is the same as not being there, everywhere.
"""

import json
import math

from serve.errors import ApiError, invalid


COMMAS = 4 << 20  # in a body: of large ones, what takes memory and time is not bytes but values


def parse(body):
    """The object that a body is."""
    if body.count(b",") > COMMAS:
        raise ApiError(413, f"a body with more than {COMMAS} commas")

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
