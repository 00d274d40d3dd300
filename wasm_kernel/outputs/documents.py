"""Limits on documents: the host's time to parse one, and a browser's time to draw it.

A large document must be regular enough to be parsed in time proportional to its size
(`is_regular`). An SVG image may not become much larger by repeating its own parts
(`check_repetition`).
"""

from __future__ import annotations

import re
from collections import defaultdict

from wasm_kernel.outputs.limits import stoppable
from wasm_kernel.outputs.removals import NotShowable, words

# -- the shape of a document

SMALL_DOCUMENT, DOCUMENT_MOST = 32 * 1024, 16 * 1024 * 1024  # characters
NESTING_MOST = 200
ATTRIBUTES_MOST = 100
ELEMENTS_MOST = 250_000
STYLE_MOST = 16 * 1024  # characters of a style sheet in SVG that is written with entities
TEXT_RUN = 1024  # characters of a long text between two breaks

_VOID = words("area base br col embed hr img input link meta source track wbr")
_TABLE = frozenset({"table", "thead", "tbody", "tfoot", "tr", "colgroup"})
_IN_TABLE = words("caption colgroup col thead tbody tfoot tr td th style script template")
# Elements that end the SVG around them, as the standard lists them; then those that hold HTML.
_BREAKING = words("""
    b big blockquote body br center code dd div dl dt em embed font h1 h2 h3 h4 h5 h6 head hr i img
    li listing menu meta nobr ol p pre ruby s small span strong strike sub sup table tt u ul var
    """)
_HOLDING = frozenset({"title", "desc", "foreignobject"})
_STRANGE = frozenset({"math", "select", "template", "frameset", "plaintext"})
_NAME = r"[A-Za-z][A-Za-z0-9:_-]*"
_VALUE = r"\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+"
_ATTRIBUTE = rf"\s++[A-Za-z_:@][A-Za-z0-9_:.@-]*+(?:\s*+=\s*+(?:{_VALUE}))?+"
_TOKEN = re.compile(
    r"(?P<text>[^<]++|<(?![A-Za-z/!?]))"
    rf"|</(?P<end>{_NAME})\s*+>"
    rf"|<(?P<raw>script|style)(?:{_ATTRIBUTE}){{0,{ATTRIBUTES_MOST}}}+\s*+>"
    r"(?P<body>[^<]*+(?:<(?!/|!--)[^<]*+)*+)</(?P=raw)\s*+>"
    rf"|<(?P<start>{_NAME})(?:{_ATTRIBUTE}){{0,{ATTRIBUTES_MOST}}}+\s*+(?P<closed>/?)>"
    r"|<!--(?!-?>)(?:[^-]|-(?!-))*+-->"
    r"|<!DOCTYPE[^>\[]*+>|<\?xml[^<>]*+>|<!\[CDATA\[[^<>\]]*+\]\]>",
    re.IGNORECASE,
)


def is_regular(document: str) -> bool:
    """Returns whether each element is closed where it was opened, and none is nested too deep.

    A standard HTML parser takes time that grows with the square of an irregular document: with
    elements that are never closed, text between cells of a table, a thousand attributes. Small
    documents may have any shape. In a regular one no search of a parser goes deeper than
    `NESTING_MOST`, as a parser has the same elements open as the walk below, and a few of its own.
    """
    walk = _OpenElements()
    at = 0
    for token in stoppable(_TOKEN.finditer(document)):
        if token.start() != at or not walk.takes(token):
            return False
        at = token.end()
    return at == len(document) and not walk.open


_SPECIAL = re.compile(r"[&\xa0]")
_EMPTY_COMMENT = "<!---->"


def in_short_runs(document: str) -> str:
    """A regular document with empty comments in its long texts; a parser drops them.

    nh3 searches the rest of a text at each `&` and each no-break space that it writes.
    """
    if not _SPECIAL.search(document):
        return document
    return "".join(
        token[0] if token["text"] is None else _broken(token[0])
        for token in stoppable(_TOKEN.finditer(document))
    )


def _broken(text: str) -> str:
    if len(text) <= TEXT_RUN:
        return text
    parts, at = [], 0
    for special in stoppable(_SPECIAL.finditer(text)):
        if special.start() - at >= TEXT_RUN:
            parts.append(text[at : special.start()])
            at = special.start()
    return _EMPTY_COMMENT.join([*parts, text[at:]])


def _is_short(sheet: str) -> bool:
    """Returns whether a style sheet in SVG, which is read like any text, is cheap to write."""
    return "<" not in sheet and (len(sheet) <= STYLE_MOST or not _SPECIAL.search(sheet))


class _OpenElements:
    """The elements that are open, from the outermost in."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self._elements = 0
        self._foreign = 0  # the number of SVG's among them

    def takes(self, token: re.Match[str]) -> bool:
        """Takes the next token; returns whether the document is regular up to it."""
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
        if self._elements > ELEMENTS_MOST:
            raise NotShowable(f"a document of more than {ELEMENTS_MOST:,} elements")
        if self._innermost in _TABLE and name not in _IN_TABLE:
            return False
        if self._foreign and (name in _BREAKING or self._innermost in _HOLDING):
            return False
        foreign = self._foreign > 0 or name == "svg"
        if closed if foreign else name in _VOID:
            return True
        self.open.append(name)
        self._foreign += foreign
        return len(self.open) <= NESTING_MOST and name not in _STRANGE


# -- repeated parts

GROWTH_MOST = 10  # times
SMALL_DRAWING = 20_000  # drawn elements; a document may always have as many
DRAWN_MOST = SMALL_DRAWING**2
REFERENCES_MOST = 100  # nested references

_DRAWN_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z][\w:-]*)(?P<attributes>[^>]*)>")
_DRAWN_ID = re.compile(r'\sid="(?P<id>[^"]+)"')
_REFERENCE = re.compile(r'(?:\s(?:xlink:)?href="|url\()#(?P<id>[\w.:-]+)')
_REPEATING = "an image whose parts repeat each other"


def check_repetition(text: str) -> None:
    """Refuses a document that becomes much larger when it is drawn.

    A few lines can use a part ten times, which uses another part ten times, and so on: more than
    any browser can draw, so that the page never answers again. A document that uses a part of
    another output is refused as well. The text must be nh3's: no `>` stands in an attribute.
    """
    if "<use" not in text and "url(" not in text:
        return
    parts = _DocumentParts()
    for tag in stoppable(_DRAWN_TAG.finditer(text)):
        parts.handle(tag)
    if not parts.used <= parts.sizes.keys():
        raise NotShowable("an image that is made of parts of another one")
    if parts.drawn("", 0) > max(SMALL_DRAWING, GROWTH_MOST * sum(parts.sizes.values())):
        raise NotShowable(_REPEATING)


class _DocumentParts:
    """The parts of one document: the elements with an id, and the whole, whose id is empty."""

    def __init__(self) -> None:
        self.sizes: defaultdict[str, int] = defaultdict(int)  # elements outside inner parts
        self.used: set[str] = set()
        # inner parts, and parts that are referred to
        self._holds: defaultdict[str, list[str]] = defaultdict(list)
        self._drawn: dict[str, int] = {}
        self._open = [""]  # the part that each open element stands in

    def handle(self, tag: re.Match[str]) -> None:
        if tag["end"]:
            if len(self._open) > 1:
                self._open.pop()
            return
        part, attributes = self._open[-1], tag["attributes"]
        named = _DRAWN_ID.search(attributes)
        if named and named["id"] not in self.sizes:  # the first element of an id counts
            self._holds[part].append(named["id"])
            part = named["id"]
        self.sizes[part] += 1
        for found in _REFERENCE.finditer(attributes):
            if tag["name"] == "use":
                self.used.add(found["id"])
            if tag["name"] != "a":
                self._holds[part].append(found["id"])
        if tag["name"] not in _VOID:
            self._open.append(part)

    def drawn(self, part: str, depth: int) -> int:
        """Returns how many elements a part becomes when it is drawn; at most `DRAWN_MOST`."""
        if depth > REFERENCES_MOST:
            raise NotShowable(_REPEATING)
        if part not in self._drawn:
            self._drawn[part] = DRAWN_MOST  # a part that holds itself is too large
            inner = sum(self.drawn(each, depth + 1) for each in self._holds.get(part, ()))
            self._drawn[part] = min(self.sizes.get(part, 0) + inner, DRAWN_MOST)
        return self._drawn[part]
