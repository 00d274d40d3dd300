"""Values, fields and formats of `awk`.

A number is a float, and a text is a string. A text from outside is an `InputText`: it counts as a
number if it looks like one. A name without a value is `UNSET`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

from wasm_kernel_agent.shell_options import CLASSES

Value = Any

_PREFIX = re.compile(r"[ \t\n\r]*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_WORD = re.compile(r"[^ \t\n]+")
_NUMBER = re.compile(_PREFIX.pattern + r"[ \t\n\r]*")


class Failure(Exception):
    """The error of a wrong program, or of a step that can't be done; `str()` says why."""


class InputText(str):
    """A text from outside, such as a field."""

    __slots__ = ()


class _Unset(str):
    __slots__ = ()


UNSET = _Unset("")


def num(value: Value) -> float:
    """Returns a value as a number."""
    if type(value) is float:
        return value
    found = _PREFIX.match(value)
    return float(found[1]) if found else 0.0


def text(value: Value, form: str = "%.6g") -> str:
    """Returns a value as text."""
    if type(value) is not float:
        found: str = value
        return found
    if value.is_integer():
        return str(int(value))
    return form % value


def is_true(value: Value) -> bool:
    """Returns whether a value is neither 0 nor an empty text."""
    if type(value) is float:
        return value != 0
    number = _as_number(value)
    return value != "" if number is None else number != 0


def _as_number(value: Value) -> float | None:
    if type(value) is float:
        return value
    if type(value) is InputText:
        found = _NUMBER.fullmatch(value)
        return float(found[1]) if found else None
    return 0.0 if value is UNSET else None


def order(one: Value, other: Value) -> int:
    """Returns a number below, equal to or above 0, as one value is below or above another."""
    first, second = _as_number(one), _as_number(other)
    a, b = (text(one), text(other)) if first is None or second is None else (first, second)
    return (a > b) - (a < b)  # type: ignore[operator]


# -- arithmetic


def quotient(a: float, b: float) -> float:
    """Returns `a / b`."""
    if b == 0:
        raise Failure("division by zero")
    return a / b


def remainder(a: float, b: float) -> float:
    """Returns `a % b`, with the sign of `a`."""
    if b == 0:
        raise Failure("division by zero in %")
    return math.fmod(a, b)


def power(a: float, b: float) -> float:
    """Returns `a ^ b`."""
    return calculated(math.pow, a, b)


def whole(number: float) -> float:
    """Returns a number without its fraction."""
    return float(math.trunc(number)) if math.isfinite(number) else number


def calculated(function: Any, *numbers: float) -> float:
    """Returns a function's result; infinity or NaN in C's cases."""
    try:
        return float(function(*numbers))
    except OverflowError:
        return math.inf
    except ValueError:
        return -math.inf if function is math.log and numbers[0] == 0 else math.nan


# -- patterns

_SPECIAL = {"y": r"\b", "<": r"\b(?=\w)", ">": r"\b(?<=\w)", "/": "/", '"': '"', "&": "&"}
_CLASSES = {name: re.escape(letters) for name, letters in CLASSES.items()}
_TOKEN = re.compile(r"\\[\s\S]|\[\^?\]?(?:\[:\w+:\]|\\[\s\S]|[^\]])*\]|\{\d+(?:,\d*)?\}|[\s\S]")


def _escaped(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) > 1 else f"\\{found[0]}"


def _translated(token: str) -> str:
    if len(token) > 2 and token[0] == "[":
        begin = 2 if token[1] == "^" else 1
        inside = re.sub(r"\[:(\w+):\]", lambda found: f"\0{found[1]}\0", token[begin:-1])
        inside = re.sub(r"\\[\s\S]|[\[\]&]", _escaped, inside)
        inside = re.sub("\0(\\w+)\0", lambda found: _CLASSES.get(found[1], ""), inside)
        return f"{token[:begin]}{inside}]"
    if token[0] == "\\" and token[1:] in _SPECIAL:
        return _SPECIAL[token[1:]]
    return {"$": r"\Z", "{": r"\{", "}": r"\}"}.get(token, token)


_PART = re.compile(
    r"(?:\\[\s\S]|\[\^?\]?(?:\[:\w+:\]|\\[\s\S]|[^\]])*\]|[\s\S])(?:[*+?]|\{\d*,?\d*\})*"
)


def longest_first(source: str) -> str:
    """Puts alternatives that begin with others before them: the longest match counts."""
    if "|" not in source:
        return source
    levels: list[list[list[str]]] = [[[]]]
    for part in _PART.findall(source):
        if part == "|":
            levels[-1].append([])
        elif part == "(":
            levels.append([[]])
        elif part[0] == ")" and len(levels) > 1:
            inside = _arranged(levels.pop())
            levels[-1][-1].append(f"({inside}{part}")
        else:
            levels[-1][-1].append(part)
    return _arranged(levels[0]) if len(levels) == 1 else source


def _arranged(choices: list[list[str]]) -> str:
    if any(part.startswith("(") for each in choices for part in each):
        return "|".join(map("".join, choices))  # groups keep their numbers
    found: list[list[str]] = []
    for each in choices:
        shorter = (at for at, other in enumerate(found) if each[: len(other)] == other)
        found.insert(next(shorter, len(found)), each)
    return "|".join(map("".join, found))


@functools.lru_cache(maxsize=500)
def pattern(source: str) -> re.Pattern[str]:
    """Returns a compiled pattern."""
    try:
        tokens = _TOKEN.findall(longest_first(source))
        return re.compile("".join(map(_translated, tokens)), re.DOTALL)
    except re.error as problem:
        raise Failure(f"can't use the pattern /{source}/: {problem}") from None


def replaced(source: str, replacement: str, target: str, *, is_all: bool) -> tuple[str, int]:
    """Returns a text in which matches are replaced, and their number."""
    parts = re.findall(r"\\&|\\\\|[\s\S]", replacement)
    made, end, count = [], 0, 0
    for found in pattern(source).finditer(target):
        if found.end() == found.start() == end and count:
            continue  # behind another match
        made.append(target[end : found.start()])
        made += [_PARTS.get(part, part) if part != "&" else found[0] for part in parts]
        end, count = found.end(), count + 1
        if not is_all:
            break
    return "".join([*made, target[end:]]), count


_PARTS = {r"\&": "&", r"\\": "\\"}


def split(target: str, separator: str, *, is_pattern: bool = False) -> list[str]:
    """Returns the fields of a text."""
    if not target:
        return []
    if separator == " " and not is_pattern:
        return _WORD.findall(target)
    if separator == "":
        return [*target]
    if len(separator) == 1 and not is_pattern:
        return target.split(separator)
    fields, end = [], 0
    for found in pattern(separator).finditer(target):
        if found.end() > found.start():
            fields.append(target[end : found.start()])
            end = found.end()
    return [*fields, target[end:]]


# -- formats

_FORM = re.compile(r"%(%|([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?[hlLqjzt]*([a-zA-Z]))")


def _character(code: float) -> str:
    try:
        return chr(int(code))
    except (ValueError, OverflowError):
        raise Failure(f"no character has the number {text(code)}") from None


def formatted(form: str, values: Sequence[Value]) -> str:
    """Returns a text made by `printf`."""
    rest = iter(values)

    def given() -> Value:
        try:
            return next(rest)
        except StopIteration:
            raise Failure(f"not enough values for the format {form!r}") from None

    def one(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        flags, width, places, letter = found.groups()[1:]
        width = str(int(num(given()))) if width == "*" else width
        places = str(int(num(given()))) if places == "*" else places
        begin = f"%{flags}{width}" + ("" if places is None else f".{places or 0}")
        value = given()
        if letter == "s":
            return f"{begin}s" % text(value)
        if letter == "c":
            code = None if value is UNSET else _as_number(value)
            return f"%{flags}{width}s" % (value[:1] if code is None else _character(code))
        if letter not in "diouxXeEfFgG":
            raise Failure(f"the format {found[0]} is not known here")
        number = num(value)
        if letter == "o" and "#" in flags and math.isfinite(number):  # Python writes 0o17
            return f"%{flags.replace('#', '')}{width}s" % f"0{int(number):o}"
        if letter in "diouxX" and math.isfinite(number):
            return f"{begin}{letter.replace('i', 'd').replace('u', 'd')}" % int(number)
        return f"{begin}{'f' if letter in 'diouxX' else letter}" % number

    return _FORM.sub(one, form)
