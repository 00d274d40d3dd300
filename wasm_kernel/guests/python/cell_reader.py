"""Reading a cell: the magics at top level, and their words. Pure.

The text is read by Python's own rules (strings, f-strings as of 3.12, comments, brackets, joined
lines) and by IPython's for its magics, so that a `%name` inside a string, a bracket, a nested block
or a function does not count. A text that both would refuse is read as far as it makes sense.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from textwrap import dedent

from msgspec import Struct

from wasm_kernel.guests.base import CommandLine

_ONE_CELL = frozenset({"capture", "limit", "prun", "time"})
"""Cell magics that run the text below them once, as a cell; `%time` runs its line."""

_NESTING_MOST = 8
_BLOCKS = {"async", "case", "class", "def", "elif", "else", "except", "finally", "for", "if"}
_BLOCKS |= {"match", "try", "while", "with"}
_ESCAPES = "%!?,;/"


def commands_in(code: str, names: Collection[str]) -> list[CommandLine]:
    """The magics among `names` that stand at top level in `code`, in their order.

    A line `%name words` counts, and so do `value = %name words`, `!name words`, a cell magic in the
    first line, `name words` alone in a cell, and all of these below `%%time` and similar magics.
    """
    found: list[CommandLine] = []
    waiting = [(code, 0)]
    while waiting:
        text, depth = waiting.pop(0)
        for command in _in_cell(text, names):
            inner = command.line if command.cell is None else command.cell
            if command.name in _ONE_CELL and depth < _NESTING_MOST:
                waiting.append((inner, depth + 1))
            if command.name in names:
                found.append(command)
    return found


def _in_cell(code: str, names: Collection[str]) -> Iterator[CommandLine]:
    """Yields the magics of one cell. Drops empty first lines and common indent, as IPython does."""
    text = dedent(re.sub(r"\A(?:[ \t\f]*\n)+", "", re.sub(r"\r\n?", "\n", code)))
    if text.startswith("%%") and not re.match(r"%%\w+\?", text):
        first, _, body = text.partition("\n")
        name, _, line = first[2:].rstrip().partition(" ")
        yield CommandLine(name, line.strip(), body.rstrip("\n"))
        return
    bare = re.fullmatch(r"(\w+)(?:[ \t]+([^\s!=()<>,+*/%^&|].*))?\n*", text)
    if bare is not None and bare[1] in names:
        yield CommandLine(bare[1], (bare[2] or "").strip())
        return
    yield from _Reader(text).commands()


_TOKEN = re.compile(
    r"""
      (?P<comment>\#[^\n]*)
    | (?P<quote>(?P<prefix>[bBfFrRtTuU]{0,2})(?P<mark>\"{3}|'{3}|\"|'))
    | (?P<word>\w+)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<joined>\\\n)
    | (?P<newline>\n)
    | (?P<operator>(?:\*\*|//|<<|>>|[!<>=:+\-*/%&|^@])=)
    | (?P<assign>=)
    | (?P<colon>:)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN = {
    '"': re.compile(r'(?:[^"\\\n]++|\\(?s:.))*+(?P<end>")?'),
    "'": re.compile(r"(?:[^'\\\n]++|\\(?s:.))*+(?P<end>')?"),
    '"""': re.compile(r'(?:[^"\\]++|\\(?s:.)|"(?!""))*+(?P<end>""")?'),
    "'''": re.compile(r"(?:[^'\\]++|\\(?s:.)|'(?!''))*+(?P<end>''')?"),
}
# The length of a character's name is bounded: otherwise each of many names that don't end would be
# searched to the line's end.
_LITERAL = re.compile(r"[^\\{}'\"\n]++|\\(?:N\{[^{}\n]{0,200}+\}|[^{}])|\{\{|\}\}|(?s:.)")
_LITERAL_RAW = re.compile(r"[^\\{}'\"\n]++|\\[^{}]|\{\{|\}\}|(?s:.)")
_START = re.compile(rf"([ \t\f]*)(?:([{re.escape(_ESCAPES)}])|(\w*))")
_PIP = re.compile(r"\A(?:pip3|(?:python3?|\{sys\.executable\}) +-m +pip)(?: |$)")
_BRACKET, _FIELD, _FORMAT = "bracket", "field", "format"


class _Formatted(Struct, frozen=True):
    """An f-string that the reader is inside of."""

    mark: str
    raw: bool


class _Reader:
    """Reads a text once, from start to end, with a stack of open brackets and f-strings."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._open: list[str | _Formatted] = []
        self._formatted: list[int] = []  # positions of f-strings in the stack, innermost last

    def commands(self) -> Iterator[CommandLine]:
        while self._at < len(self._text):
            start = _START.match(self._text, self._at)
            assert start is not None
            indent, escape, word = start.groups()
            if escape:
                self._at = start.start(2)
                found = _command(re.sub("^!!", "!", self._rest_of_line()))
            else:
                found = self._statement(word)
            if found is not None and not indent:
                yield found

    def _statement(self, first: str) -> CommandLine | None:
        """Reads one logical line; returns the magic whose value it assigns, or None."""
        begun, assigned, block = False, False, False
        while self._at < len(self._text):
            if self._open and self._open[-1] is not _BRACKET and self._open[-1] is not _FIELD:
                self._in_formatted()
                continue
            token = _TOKEN.match(self._text, self._at)
            assert token is not None
            self._at = token.end()
            kind = token.lastgroup
            if not begun and kind == "other" and token[0] in _ESCAPES:
                self._rest_of_line()  # a magic below a backslash, which IPython does not run
                return None
            begun = begun or not (kind == "joined" or token[0].isspace())
            if kind == "mark" or token["quote"]:
                self._string(token["prefix"].lower(), token["mark"])
            elif kind == "newline" and not self._open:
                return None
            elif kind in ("open", "close") or (kind == "colon" and self._open):
                self._nest(token[0])
            elif kind == "colon":
                block = first in _BLOCKS
            elif kind == "assign" and not self._open and not assigned:
                assigned = True
                if (magic := re.compile(r"[ \t]*(?=[%!])").match(self._text, self._at)) is not None:
                    self._at = magic.end()
                    found = _command(self._rest_of_line())
                    return None if block else found
        return None

    def _rest_of_line(self) -> str:
        """Reads to the end of the line, and of the lines that backslashes join to it."""
        pieces: list[str] = []
        while True:
            end = self._text.find("\n", self._at)
            end = len(self._text) if end < 0 else end
            piece = self._text[self._at : end]
            self._at = end + 1
            if not piece.endswith("\\") or self._at >= len(self._text):
                return " ".join([*pieces, piece.rstrip()])
            pieces.append(piece[:-1])

    def _string(self, prefix: str, mark: str) -> None:
        if "f" in prefix or "t" in prefix:
            self._formatted.append(len(self._open))
            self._open.append(_Formatted(mark, "r" in prefix))
            return
        string = _PLAIN[mark].match(self._text, self._at)
        assert string is not None
        self._at = string.end()

    def _nest(self, sign: str) -> None:
        inner = self._open[-1] if self._open else None
        if sign in "([{":
            self._open.append(_BRACKET)
        elif sign == ":":
            if inner is _FIELD:
                self._open.append(_FORMAT)
        elif inner is _BRACKET or (inner is _FIELD and sign == "}"):
            self._open.pop()

    def _in_formatted(self) -> None:
        """Reads a piece of the text of an f-string, or of the format behind a field's colon."""
        string, in_format = self._open[self._formatted[-1]], self._open[-1] is _FORMAT
        assert isinstance(string, _Formatted)
        if self._text.startswith(string.mark, self._at):
            self._at += len(string.mark)
            self._leave_formatted()
            return
        piece = (_LITERAL_RAW if string.raw else _LITERAL).match(self._text, self._at)
        assert piece is not None
        if piece[0] == "\n" and len(string.mark) == 1:
            self._leave_formatted()  # it never ends; the newline is read again outside
            return
        self._at = piece.end()
        if in_format and piece[0] in ("}}", "{{"):
            self._at -= 1
        if in_format and piece[0] in ("}", "}}"):
            del self._open[-2:]
        elif piece[0] == "{" or (in_format and piece[0] == "{{"):
            self._open.append(_FIELD)

    def _leave_formatted(self) -> None:
        del self._open[self._formatted.pop() :]


def _command(line: str) -> CommandLine | None:
    """Returns the magic of a line `%name words` or `!name words`; None if it asks for help."""
    if line[0] not in "%!" or line.startswith(("!!", "%%")) or _asks_for_help(line):
        return None
    if line[0] == "!":
        line = "!" + _PIP.sub("pip ", line[1:].lstrip(" "), count=1)
    name, _, words = line[1:].partition(" ")
    return CommandLine(name, words.strip())


def _asks_for_help(line: str) -> bool:
    """Returns whether one `?` or two follow a name or an item, by IPython's rule for help."""
    at = len(line.rstrip("?"))
    if len(line) - at not in (1, 2):
        return False
    while line[at - 1] == "]":
        bracket = line.rfind("[", 0, at)
        if bracket < 0 or not re.fullmatch("-?[0-9]+", line[bracket + 1 : at - 1]):
            return False
        at = bracket
    for sign in reversed(line[:at]):
        if not (sign.isalnum() or sign in "_*"):
            return False
        if not sign.isdecimal():
            return True
    return False
