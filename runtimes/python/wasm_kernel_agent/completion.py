"""Completion: what could stand at the cursor, each match with its kind and its signature.

IPython finds the matches. Their kinds, for which ipykernel asks jedi, are read off the living
objects here, without running any code of theirs that would not run anyway.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from IPython.core.completer import (
    Completion,
    completions_sorting_key,
    provisionalcompleter,
    rectify_completions,
)

_TYPES = "_jupyter_types_experimental"
_MOST_MATCHES = 5_000
_SIGNATURE_SECONDS = 0.15  # for the signatures of all matches together
_NAMES = {"attribute", "magic", "param", "variable", "<unknown>", None}
_MISSING = object()
_key: Any = completions_sorting_key

Reply = dict[str, Any]


class Subject:
    """Remembers the object that stands before the dot, as IPython's completer found it."""

    def __init__(self, completer: Any) -> None:
        self._evaluate = completer._evaluate_expr
        self.value: Any = _MISSING
        completer._evaluate_expr = self._remember

    def _remember(self, expression: str) -> Any:
        self.value = self._evaluate(expression)
        return self.value

    def take(self) -> Any:
        """The object, which is then forgotten; `_MISSING` where nothing was evaluated."""
        value, self.value = self.value, _MISSING
        return value


@dataclass(frozen=True)
class Place:
    """Where the cursor is: the line up to it, and the object before its last dot."""

    line: str
    subject: Any
    names: dict[str, Any]

    @property
    def is_import(self) -> bool:
        """Whether names of modules, or names in one, are asked for."""
        return self.line.split()[:1] in (["import"], ["from"])

    def find(self, match: Any) -> Any:
        """The object that a match names; `_MISSING` where none is known."""
        name: str = match.text
        if self.is_import:
            return self._imported(name)
        if match.type == "attribute":
            return _attribute(self.subject, name)
        if match.type == "variable":
            return self.names.get(name, vars(builtins).get(name, _MISSING))
        return _MISSING

    def _imported(self, name: str) -> Any:
        words = self.line.split()
        if words[0] == "from" and "import" in words:
            return _attribute(sys.modules.get(words[1], _MISSING), name)
        return sys.modules.get(name, _MISSING)


def complete(shell: Any, request: Reply) -> Reply:
    """The reply to `complete`, with the types that JupyterLab shows beside the matches."""
    code, cursor = request["code"], request["cursor_pos"]
    if cursor is None:
        cursor = len(code)
    line = code[:cursor].rpartition("\n")[2]
    subject: Subject = shell.subject
    with provisionalcompleter(), shell.builtin_trap:
        raw = list(shell.Completer.completions(code, cursor))
        place = Place(line, subject.take(), shell.user_ns)
        wanted = _ordered([_without_dot(each) for each in raw if _is_wanted(each, code, line)])
        found = list(rectify_completions(code, wanted[:_MOST_MATCHES]))
    types = _described(wanted, found, place)
    return {
        "status": "ok",
        "matches": [each["text"] for each in types],
        "cursor_start": types[0]["start"] if types else cursor,
        "cursor_end": types[0]["end"] if types else cursor,
        "metadata": {_TYPES: types},
    }


def _is_wanted(match: Any, code: str, line: str) -> bool:
    if not match.text:
        return False
    begun = code[match.start : match.end]
    if match.type == "magic":  # in the midst of a line only where a magic was begun
        before = code[: match.start].rpartition("\n")[2]
        return begun.startswith("%") or not before.strip()
    if line.split()[:1] in (["import"], ["from"]):
        return "." in begun or "." not in match.text  # `import nump` means numpy, none of its parts
    return True


def _without_dot(match: Any) -> Any:
    """`.head` of the completer as `head`, which is what a front end shows."""
    if match.type != "attribute" or not match.text.startswith("."):
        return match
    return Completion(
        match.start + 1,
        match.end,
        match.text[1:],
        type=match.type,
        signature=match.signature,
        _origin=match._origin,
    )


def _ordered(matches: list[Any]) -> list[Any]:
    """Names in alphabetical order, whatever their case, private ones last; files and keys as found.

    IPython puts capitals first, and lists modules as their folders do.
    """
    if any(each.type not in _NAMES for each in matches):
        return matches
    return sorted(matches, key=_rank)


def _rank(match: Any) -> tuple[int, str, int]:
    privacy, name, percents = _key(match.text)
    return privacy, name.lower(), percents


def _described(wanted: list[Any], found: list[Any], place: Place) -> list[Reply]:
    end = time.monotonic() + _SIGNATURE_SECONDS
    rows = []
    for match, rectified in zip(wanted, found, strict=True):
        kind, signature = match.type or "<unknown>", match.signature or ""
        if kind in ("attribute", "variable", "<unknown>"):
            value = place.find(match)
            kind = _kind(value, match.text, place)
            if kind == "function" and time.monotonic() < end:
                signature = _signature(value, place.subject)
        row = {"start": rectified.start, "end": rectified.end, "text": rectified.text}
        rows.append(row | {"type": kind, "signature": signature})
    return rows


def _attribute(owner: Any, name: str) -> Any:
    if owner is _MISSING:
        return _MISSING
    try:
        return inspect.getattr_static(owner, name)
    except Exception:  # an object may raise anything, even here
        return _MISSING


def _kind(value: Any, name: str, place: Place) -> str:
    """What jedi would call `value`."""
    if value is _MISSING:
        named = "keyword" if keyword.iskeyword(name) else "instance"
        return "module" if place.is_import else named
    return next(kind for kind, holds in _KINDS if holds(value))


_KINDS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("module", inspect.ismodule),
    ("class", inspect.isclass),
    ("function", lambda value: isinstance(value, staticmethod | classmethod)),
    ("function", inspect.isroutine),
    ("property", inspect.isdatadescriptor),
    ("function", callable),
    ("instance", lambda _: True),
)


def _signature(value: Any, subject: Any) -> str:
    """The signature as one would call it; empty where none is known."""
    try:
        if isinstance(value, staticmethod):
            return str(inspect.signature(value.__func__))
        if isinstance(value, classmethod):
            return _unbound(value.__func__)
        through = subject is not _MISSING and not isinstance(subject, type | ModuleType)
        if through and (inspect.isfunction(value) or inspect.ismethoddescriptor(value)):
            return _unbound(value)
        return str(inspect.signature(value))
    except Exception:  # built-in functions without one, and whatever objects raise
        return ""


def _unbound(function: Any) -> str:
    """The signature without its first parameter."""
    signature = inspect.signature(function)
    rest = list(signature.parameters.values())[1:]
    return str(signature.replace(parameters=rest))
