"""How large an SVG image becomes where it is drawn: its parts may be repeated, and those again.

A few lines that use a part ten times, which uses another one ten times, and so on, are more than
any browser can draw; the page that shows them never answers again.
"""

from __future__ import annotations

import re
from collections import defaultdict

from wasm_kernel.outputs.patience import patiently
from wasm_kernel.outputs.removals import Refused
from wasm_kernel.outputs.words import words

FACTOR = 10
SMALL = 20_000
DEPTH = 100

_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z][\w:-]*)(?P<attributes>[^>]*)>")
_ID = re.compile(r'\sid="(?P<id>[^"]+)"')
_REFERENCE = re.compile(r'(?:\s(?:xlink:)?href="|url\()#(?P<id>[\w.:-]+)')
_VOID = words("br col hr img input source wbr")
_REPEATING = "an image whose parts repeat each other"


def check_repetition(text: str) -> None:
    """Refuse a document that becomes much larger than it is.

    Args:
        text: As nh3 writes it: no `>` stands in an attribute.

    Raises:
        Refused: it does, or it would repeat what stands in another output.
    """
    if "<use" not in text and "url(" not in text:
        return
    parts = _Parts()
    for tag in patiently(_TAG.finditer(text)):
        parts.take(tag)
    if not parts.used <= parts.sizes.keys():
        raise Refused("an image that is made of parts of another one")
    if parts.drawn("", 0) > max(SMALL, FACTOR * sum(parts.sizes.values())):
        raise Refused(_REPEATING)


class _Parts:
    """The parts of one document: the elements with an id, and the whole, whose id is empty."""

    def __init__(self) -> None:
        self.sizes: defaultdict[str, int] = defaultdict(int)  # elements that no inner part holds
        self.used: set[str] = set()
        self._holds: defaultdict[str, list[str]] = defaultdict(
            list
        )  # parts inside, and referred to
        self._drawn: dict[str, int] = {}
        self._open = [""]  # the part that each open element stands in

    def take(self, tag: re.Match[str]) -> None:
        """Go on by one tag."""
        if tag["end"]:
            if len(self._open) > 1:
                self._open.pop()
            return
        part, attributes = self._open[-1], tag["attributes"]
        named = _ID.search(attributes)
        if named and named["id"] not in self.sizes:  # of several with one id, the first counts
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
        """How many elements a part becomes."""
        if depth > DEPTH:
            raise Refused(_REPEATING)
        if part not in self._drawn:
            self._drawn[part] = SMALL * SMALL  # a part that holds itself is too large
            inner = sum(self.drawn(each, depth + 1) for each in self._holds.get(part, ()))
            self._drawn[part] = min(self.sizes.get(part, 0) + inner, SMALL * SMALL)
        return self._drawn[part]
