"""Whether a large document is built so plainly that parsing it takes time as its size does.

An HTML parser as the standard describes it can be made to take time that grows with the square of
the input: elements that are never closed, text between the cells of a table, a thousand attributes.
Small documents may be anything. Large ones are parsed only where each element is closed where it
was opened, as those are that programs write.
"""

from __future__ import annotations

import re

from wasm_kernel.outputs.patience import patiently
from wasm_kernel.outputs.removals import Refused
from wasm_kernel.outputs.words import words

SMALL = 32 * 1024
LARGEST = 16 * 1024 * 1024
DEPTH = 200
ATTRIBUTES = 100
ELEMENTS = 250_000
RAW = 16 * 1024  # characters of a style sheet in SVG that is written with entities
RUN = 1024  # characters of a long text between two breaks

_VOID = words("area base br col embed hr img input link meta source track wbr")
_TABLE = frozenset({"table", "thead", "tbody", "tfoot", "tr", "colgroup"})
_IN_TABLE = words("caption colgroup col thead tbody tfoot tr td th style script template")
# What ends SVG where it stands in it, as the standard lists it, and what holds HTML inside SVG.
_BREAKING = words(
    """
    b big blockquote body br center code dd div dl dt em embed font h1 h2 h3 h4 h5 h6 head hr i img
    li listing menu meta nobr ol p pre ruby s small span strong strike sub sup table tt u ul var
    """
)
_HOLDING = frozenset({"title", "desc", "foreignobject"})
_STRANGE = frozenset({"math", "select", "template", "frameset", "plaintext"})
_NAME = r"[A-Za-z][A-Za-z0-9:_-]*"
_VALUE = r"\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+"
_ATTRIBUTE = rf"\s++[A-Za-z_:@][A-Za-z0-9_:.@-]*+(?:\s*+=\s*+(?:{_VALUE}))?+"
_TOKEN = re.compile(
    r"(?P<text>[^<]++|<(?![A-Za-z/!?]))"
    rf"|</(?P<end>{_NAME})\s*+>"
    rf"|<(?P<raw>script|style)(?:{_ATTRIBUTE}){{0,{ATTRIBUTES}}}+\s*+>"
    r"(?P<body>[^<]*+(?:<(?!/|!--)[^<]*+)*+)</(?P=raw)\s*+>"
    rf"|<(?P<start>{_NAME})(?:{_ATTRIBUTE}){{0,{ATTRIBUTES}}}+\s*+(?P<closed>/?)>"
    r"|<!--(?!-?>)(?:[^-]|-(?!-))*+-->"
    r"|<!DOCTYPE[^>\[]*+>|<\?xml[^<>]*+>|<!\[CDATA\[[^<>\]]*+\]\]>",
    re.IGNORECASE,
)


def is_regular(document: str) -> bool:
    """Whether each element of a document is closed where it was opened, and none lies too deep.

    Where this says yes, an HTML parser sees the same elements open as the walk below, give or take
    those that it adds itself; so no search of its own goes deeper than `DEPTH`.

    Raises:
        Refused: it has too many elements for any page.
    """
    walk = _Walk()
    at = 0
    for token in patiently(_TOKEN.finditer(document)):
        if token.start() != at or not walk.takes(token):
            return False
        at = token.end()
    return at == len(document) and not walk.open


_SPECIAL = re.compile(r"[&\xa0]")
_BREAK = "<!---->"


def in_short_runs(document: str) -> str:
    """A regular document with empty comments in its long texts; a parser leaves them out.

    nh3 looks through the rest of a text at each `&` and each no-break space that it writes.
    """
    if not _SPECIAL.search(document):
        return document
    return "".join(
        token[0] if token["text"] is None else _broken(token[0])
        for token in patiently(_TOKEN.finditer(document))
    )


def _broken(text: str) -> str:
    if len(text) <= RUN:
        return text
    parts, at = [], 0
    for special in patiently(_SPECIAL.finditer(text)):
        if special.start() - at >= RUN:
            parts.append(text[at : special.start()])
            at = special.start()
    return _BREAK.join([*parts, text[at:]])


def _is_short(sheet: str) -> bool:
    """Whether a style sheet in SVG, which is read like any text, holds nothing that costs."""
    return "<" not in sheet and (len(sheet) <= RAW or not _SPECIAL.search(sheet))


class _Walk:
    """The elements that are open, from the outermost in."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self._elements = 0
        self._foreign = 0  # how many of them are SVG's

    def takes(self, token: re.Match[str]) -> bool:
        """Go on by one token; false where the document is not plainly built."""
        if token["text"] is not None:
            return self._innermost not in _TABLE or token["text"].isspace()
        if token["end"] is not None:
            self._foreign = max(0, self._foreign - 1)
            return bool(self.open) and self.open.pop() == token["end"].lower()
        if token["raw"] is not None:
            return not self._foreign or _is_short(token["body"])
        if token["start"] is not None:
            return self._opens(token["start"].lower(), bool(token["closed"]))
        return True

    @property
    def _innermost(self) -> str:
        return self.open[-1] if self.open else ""

    def _opens(self, name: str, closed: bool) -> bool:
        self._elements += 1
        if self._elements > ELEMENTS:
            raise Refused(f"a document of more than {ELEMENTS:,} elements")
        if self._innermost in _TABLE and name not in _IN_TABLE:
            return False
        if self._foreign and (name in _BREAKING or self._innermost in _HOLDING):
            return False
        foreign = self._foreign > 0 or name == "svg"
        if closed if foreign else name in _VOID:
            return True
        self.open.append(name)
        self._foreign += foreign
        return len(self.open) <= DEPTH and name not in _STRANGE
