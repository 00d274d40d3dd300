"""What a document of HTML and one of SVG have in common: their size, their styles, their links."""

from __future__ import annotations

import re
from hashlib import blake2s
from html import unescape

from wasm_kernel.outputs import shape, terminal
from wasm_kernel.outputs.removals import STYLES, Refused, Removals
from wasm_kernel.outputs.stylesheet import CHARACTERS_MOST, clean_stylesheet

SCHEMES = {"http", "https", "mailto", "data"}
# In SVG one style sheet can hold another: what is left of the outer one then is its end alone.
_STYLE = re.compile(r"<style(?:\s[^>]*)?>(?P<css>.*?)</style>|</style>", re.DOTALL)


def checked(document: str) -> str:
    """A document that can be parsed in a time that stays in proportion to its size.

    Raises:
        Refused: it can't be.
    """
    if len(document) > shape.LARGEST:
        raise Refused(f"a document of more than {shape.LARGEST // 2**20} MiB")
    # A lone surrogate can't be sent; control characters act where HTML is printed. Both go before
    # the document is looked at: a sequence may hold a quote or a bracket.
    document = terminal.clean(document.encode("utf-8", "replace").decode("utf-8"))
    if len(document) <= shape.SMALL:
        return document
    if not shape.is_regular(document):
        raise Refused(f"a document of more than {shape.SMALL // 2**10} KiB with unclosed elements")
    return shape.in_short_runs(document)


def scope_of(document: str) -> str:
    """The class of the box that a document's content stands in."""
    return f"wk-{blake2s(document.encode(), digest_size=6).hexdigest()}"


def clean_styles(html: str, scope: str, removals: Removals, *, escaped: bool = False) -> str:
    """Well-formed HTML or SVG whose style sheets hold below the class `scope` alone.

    Args:
        html: As nh3 writes it: no `<` stands in an attribute.
        scope: The class of the element that the result will stand in.
        removals: Hears of what was taken out.
        escaped: Whether the style sheets' text is escaped, as it is in XML.
    """
    left = CHARACTERS_MOST

    def cleaned(found: re.Match[str]) -> str:
        nonlocal left
        css = found["css"]
        if css is None:
            return ""
        left -= len(css)
        if left < 0:
            removals.add(STYLES)
            return ""
        if escaped and "<" in css:  # what is left of these elements would be their ends
            raise Refused("an image with elements in its style sheet")
        clean = clean_stylesheet(unescape(css) if escaped else css, scope, removals)
        return f"<style>{clean}</style>"

    return _STYLE.sub(cleaned, html)
