"""Answers about code that does not run: completion, inspection, completeness, history.

IPython finds the matches of a completion. Their kinds, for which ipykernel asks jedi, are read off
the living objects here, without running any code of theirs that would not run anyway.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from IPython.core.completer import (
    Completion,
    completions_sorting_key,
    not_found,
    provisionalcompleter,
    rectify_completions,
)
from IPython.utils.tokenutil import token_at_cursor

from wasm_kernel_agent.cell_names import names_in_cell

_TYPES = "_jupyter_types_experimental"
_MOST_MATCHES = 5_000
_SIGNATURE_SECONDS = 0.15  # the time for the signatures of all matches
_NAMES = {"attribute", "magic", "param", "variable", "<unknown>", None}
_NAMES_OF_CODE = {"attribute", "magic", "param", "variable"}
_MISSING = object()
_CHAIN = re.compile(r"\s*\n\s*(?=\.(?:[^\W\d]|$))")  # the break in a line before `.method()`
_key: Any = completions_sorting_key

Reply = dict[str, Any]


class ObjectBeforeDot:
    """Remembers the object before the last dot, as IPython's completer found it."""

    def __init__(self, completer: Any) -> None:
        self._evaluate = completer._evaluate_expr
        self.value: Any = _MISSING
        completer._evaluate_expr = self._remember

    def _remember(self, expression: str) -> Any:
        value = self._evaluate(expression)
        if value is None and "\n" in expression:
            value = not_found  # IPython sees no value in a function; it tries the last line next
        self.value = value
        return value

    def take(self) -> Any:
        """Returns the object and forgets it; `_MISSING` if nothing was evaluated."""
        value, self.value = self.value, _MISSING
        return value


@dataclass(frozen=True)
class CursorContext:
    """The line up to the cursor, the object before its last dot, and the user's variables."""

    line: str
    subject: Any
    names: dict[str, Any]

    @property
    def is_import(self) -> bool:
        """True if names of modules, or names in a module, are asked for."""
        return self.line.split()[:1] in (["import"], ["from"])

    def find(self, match: Any) -> Any:
        """Returns the object that a match names; `_MISSING` if it is not known."""
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
    """Returns the reply to `complete`, with the types that JupyterLab shows beside the matches."""
    whole, cursor = request["code"], request["cursor_pos"]
    if cursor is None:
        cursor = len(whole)
    before = _CHAIN.sub("", whole[:cursor])
    moved, code = cursor - len(before), before + whole[cursor:]
    cursor -= moved
    line = before.rpartition("\n")[2]
    before_dot: ObjectBeforeDot = shell.object_before_dot
    names = names_in_cell(before, shell.user_ns, shell.Completer.evaluation)
    with provisionalcompleter(), shell.builtin_trap:
        shell.Completer.namespace = names
        try:
            raw = list(shell.Completer.completions(code, cursor))
        finally:
            shell.Completer.namespace = shell.user_ns
        context = CursorContext(line, before_dot.take(), names)
        if _is_text(shell.Completer, line):
            raw = [each for each in raw if each.type not in _NAMES_OF_CODE]
        wanted = _ordered([_without_dot(each) for each in raw if _is_wanted(each, code, line)])
        found = list(rectify_completions(code, wanted[:_MOST_MATCHES]))
    types = _described(wanted, found, context)
    for each in types:
        each["start"] += moved
        each["end"] += moved
    return {
        "status": "ok",
        "matches": [each["text"] for each in types],
        "cursor_start": types[0]["start"] if types else cursor + moved,
        "cursor_end": types[0]["end"] if types else cursor + moved,
        "metadata": {_TYPES: types},
    }


def _is_text(completer: Any, line: str) -> bool:
    """Returns true if the cursor is in a string, a comment or a shell command."""
    if line.lstrip().startswith(("!", "%")):
        return line.lstrip().startswith("!")
    is_string, is_in_expression = completer._is_in_string_or_comment(line)
    return is_string and not is_in_expression


def _is_wanted(match: Any, code: str, line: str) -> bool:
    if not match.text:
        return False
    begun = code[match.start : match.end]
    if match.type == "magic":  # in the middle of a line only if a magic was begun
        before = code[: match.start].rpartition("\n")[2]
        return begun.startswith("%") or not before.strip()
    if line.split()[:1] in (["import"], ["from"]):
        return "." in begun or "." not in match.text  # `import nump` means numpy, not its parts
    return True


def _without_dot(match: Any) -> Any:
    """Returns the completer's `.head` as `head`, the form that a front end shows."""
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
    """Names in alphabetical order, regardless of case, private ones last; files and keys as found.

    IPython puts capitals first, and lists modules as their folders do.
    """
    if any(each.type not in _NAMES for each in matches):
        return matches
    return sorted(matches, key=_rank)


def _rank(match: Any) -> tuple[int, str, int]:
    privacy, name, percents = _key(match.text)
    return privacy, name.lower(), percents


def _described(wanted: list[Any], found: list[Any], context: CursorContext) -> list[Reply]:
    end = time.monotonic() + _SIGNATURE_SECONDS
    rows = []
    for match, rectified in zip(wanted, found, strict=True):
        kind, signature = match.type or "<unknown>", match.signature or ""
        if kind in ("attribute", "variable", "<unknown>"):
            value = context.find(match)
            kind = _kind(value, match.text, context)
            if kind == "function" and time.monotonic() < end:
                signature = _signature(value, context.subject)
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


def _kind(value: Any, name: str, context: CursorContext) -> str:
    """The name that jedi would give to the kind of `value`."""
    if value is _MISSING:
        named = "keyword" if keyword.iskeyword(name) else "instance"
        return "module" if context.is_import else named
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
    """The signature as one would call it; empty if it is not known."""
    try:
        if isinstance(value, staticmethod):
            return str(inspect.signature(value.__func__))
        if isinstance(value, classmethod):
            return _unbound(value.__func__)
        through = subject is not _MISSING and not isinstance(subject, type | ModuleType)
        if through and (inspect.isfunction(value) or inspect.ismethoddescriptor(value)):
            return _unbound(value)
        return str(inspect.signature(value))
    except Exception:  # built-in functions have no signature, and objects may raise anything
        return ""


def _unbound(function: Any) -> str:
    """The signature without its first parameter."""
    signature = inspect.signature(function)
    rest = list(signature.parameters.values())[1:]
    return str(signature.replace(parameters=rest))


def inspect_name(shell: Any, request: Reply) -> Reply:
    """Returns the reply to `inspect`: what is known about the name at the cursor."""
    name = token_at_cursor(request["code"], request["cursor_pos"])
    reply: Reply = {"status": "ok", "found": False, "data": {}, "metadata": {}}
    try:
        bundle = shell.object_inspect_mime(
            name,
            detail_level=request.get("detail_level", 0),
            omit_sections=tuple(request.get("omit_sections", ())),
        )
    except KeyError:
        return reply
    # as ipykernel: the HTML form makes a heading of each field, which fills a tooltip
    plain = {mime: text for mime, text in bundle.items() if mime != "text/html"}
    reply["data"] = {mime: text for mime, text in plain.items() if isinstance(text, str)}
    reply["found"] = True
    return reply


def is_complete(shell: Any, request: Reply) -> Reply:
    """Returns the reply to `is_complete`: should Enter run the code, or continue it?"""
    status, indent = shell.input_transformer_manager.check_complete(request["code"])
    reply: Reply = {"status": status}
    if status == "incomplete":
        reply["indent"] = " " * (indent or 0)
    return reply


def history(shell: Any, request: Reply) -> Reply:
    """Returns the reply to `history`: inputs of this session, by range, tail or pattern."""
    manager = shell.history_manager
    kind = request.get("hist_access_type")
    raw, output = bool(request.get("raw", True)), bool(request.get("output", False))
    found: Any = ()
    if kind == "tail":
        found = manager.get_tail(request.get("n"), raw=raw, output=output, include_latest=True)
    elif kind == "range":
        session, start = request.get("session") or 0, request.get("start") or 0
        lines = manager.get_range(session, start, request.get("stop"), raw=raw, output=output)
        number = manager.session_number  # IPython calls the current session 0 here, but not in tail
        found = [(number, line, text) for _, line, text in lines]
    elif kind == "search":
        manager.writeout_cache()
        found = manager.search(
            request.get("pattern") or "*",
            raw=raw,
            output=output,
            n=request.get("n"),
            unique=bool(request.get("unique")),
        )
    return {"status": "ok", "history": list(found)}


EMPTY: dict[str, Reply] = {
    "complete": {"status": "ok", "matches": [], "cursor_start": 0, "cursor_end": 0, "metadata": {}},
    "inspect": {"status": "ok", "found": False, "data": {}, "metadata": {}},
    "is_complete": {"status": "unknown"},
    "history": {"status": "ok", "history": []},
}
"""The replies to queries that failed or were interrupted: there is nothing to show."""

ANSWERS = {
    "complete": complete,
    "inspect": inspect_name,
    "is_complete": is_complete,
    "history": history,
}
