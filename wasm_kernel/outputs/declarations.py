"""CSS declarations: which properties an output may set, and the text of those it sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from wasm_kernel.outputs.removals import STYLES, Removals
from wasm_kernel.outputs.selectors import ID_PREFIX
from wasm_kernel.outputs.values import written
from wasm_kernel.outputs.words import words

ATTRIBUTE_CHARACTERS = 20_000
DECLARATIONS_MOST = 200
REMEMBERED = 500  # characters of an attribute that is kept for the next element

# Looks and layout of what is inside the output's own box, which clips and holds what is in it.
# Missing on purpose: what names things for the whole page (animation, counter-set, anchor-name,
# container, view-transition-name), what only makes sense with a fetched file (src), and `contain`
# itself.
_BOX = """
align-content align-items align-self aspect-ratio block-size border border-block border-block-end
border-block-start border-bottom border-bottom-color border-bottom-left-radius
border-bottom-right-radius border-bottom-style border-bottom-width border-collapse border-color
border-inline border-inline-end border-inline-start border-left border-left-color
border-left-style border-left-width border-radius border-right border-right-color
border-right-style border-right-width border-spacing border-style border-top border-top-color
border-top-left-radius border-top-right-radius border-top-style border-top-width border-width
bottom box-shadow box-sizing caption-side clear clip clip-path column-count column-fill column-gap
column-rule column-span column-width columns display empty-cells flex flex-basis flex-direction
flex-flow flex-grow flex-shrink flex-wrap float gap grid grid-area grid-auto-columns
grid-auto-flow grid-auto-rows grid-column grid-column-end grid-column-gap grid-column-start
grid-gap grid-row grid-row-end grid-row-gap grid-row-start grid-template grid-template-areas
grid-template-columns grid-template-rows height inline-size inset inset-block inset-inline
isolation justify-content justify-items justify-self left margin margin-block margin-block-end
margin-block-start margin-bottom margin-inline margin-inline-end margin-inline-start margin-left
margin-right margin-top max-block-size max-height max-inline-size max-width min-block-size
min-height min-inline-size min-width object-fit object-position order outline outline-color
outline-offset outline-style outline-width overflow overflow-wrap overflow-x overflow-y padding
padding-block padding-block-end padding-block-start padding-bottom padding-inline
padding-inline-end padding-inline-start padding-left padding-right padding-top place-content
place-items place-self position right row-gap table-layout top transform transform-origin
vertical-align visibility width writing-mode z-index zoom
"""
_LOOK = """
accent-color appearance background background-attachment background-blend-mode background-clip
background-color background-image background-origin background-position background-position-x
background-position-y background-repeat background-size backface-visibility color color-scheme
content cursor direction filter font font-family font-feature-settings font-kerning font-size
font-size-adjust font-stretch font-style font-variant font-variant-caps font-variant-numeric
font-weight hyphens letter-spacing line-break line-height list-style list-style-image
list-style-position list-style-type mix-blend-mode opacity orphans page-break-after
page-break-before page-break-inside pointer-events quotes resize ruby-position scrollbar-color
scrollbar-gutter scrollbar-width tab-size text-align text-align-last text-decoration
text-decoration-color text-decoration-line text-decoration-style text-decoration-thickness
text-emphasis text-indent text-justify text-orientation text-overflow text-rendering text-shadow
text-transform text-underline-offset text-underline-position text-wrap transition
transition-delay transition-duration transition-property transition-timing-function unicode-bidi
user-select white-space white-space-collapse widows word-break word-spacing word-wrap
"""
_SVG = """
alignment-baseline baseline-shift clip-rule color-interpolation dominant-baseline fill
fill-opacity fill-rule image-rendering paint-order shape-rendering stop-color stop-opacity stroke
stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity
stroke-width text-anchor vector-effect
"""
PROPERTIES = words(f"{_BOX} {_LOOK} {_SVG}")
POSITIONS = frozenset({"static", "relative", "absolute", "sticky", "inherit", "initial", "unset"})
# What these name by `url()` is a part of a document: one of the output's own loads nothing. For
# other properties it is a picture, which a browser may ask the page's own address for.
_PAINTS = frozenset({"fill", "stroke", "clip-path"})
_FRAGMENT = re.compile(r"#[A-Za-z0-9_.-]{1,200}\Z")
_CUSTOM = re.compile(r"--[A-Za-z0-9_-]{1,200}\Z")


def declared(
    nodes: Sequence[Any], removals: Removals, *, custom_only: bool = False, painting: bool = False
) -> str:
    """The declarations among tinycss2's nodes that may stand, as CSS text.

    Args:
        nodes: What stands between the braces of a rule, or in a `style` attribute.
        removals: Hears of what was taken out and could be missed.
        custom_only: Keep custom properties (`--x`) and nothing else.
        painting: Keep what paints with a part of the same document.
    """
    kept = []
    for node in nodes[:DECLARATIONS_MOST]:
        if node.type != "declaration":
            continue
        name = node.lower_name
        custom = node.name.startswith("--")
        if custom:
            name = node.name
        if not (_CUSTOM.match(name) if custom else name in PROPERTIES and not custom_only):
            continue
        own = _own_part(name, node.value) if painting else None
        value = own or written(node.value, removals)
        if value is None or (not value and not custom):
            continue
        if name == "position" and value.lower() not in POSITIONS:
            removals.add(STYLES)
            continue
        kept.append(f"{name}: {value}{' !important' if node.important else ''}")
    return "; ".join(kept)


def _own_part(name: str, tokens: Sequence[Any]) -> str | None:
    """The value of a property that paints with a part of the same output, such as a pattern."""
    parts = [token for token in tokens if token.type not in ("whitespace", "comment")]
    if name not in _PAINTS or len(parts) != 1:
        return None
    only = parts[0]
    if only.type == "function" and only.lower_name == "url" and len(only.arguments) == 1:
        only = only.arguments[0]
    if only.type not in ("url", "string") or not _FRAGMENT.match(only.value):
        return None
    return f"url(#{ID_PREFIX}{only.value[1:]})"


def style_attribute(text: str, removals: Removals) -> str:
    """The content of a `style` attribute, as it may stand."""
    if len(text) > ATTRIBUTE_CHARACTERS:
        removals.add(STYLES)
        return ""
    cleaned = _cleaned if len(text) <= REMEMBERED else _cleaned.__wrapped__
    css, phrases = cleaned(text)
    removals.update(phrases)
    return css


@lru_cache(maxsize=4096)
def _cleaned(text: str) -> tuple[str, tuple[str, ...]]:
    # a table says the same thing in each of its cells
    import tinycss2

    removals = Removals()
    nodes = tinycss2.parse_blocks_contents(text, skip_comments=True, skip_whitespace=True)
    return declared(nodes, removals, painting=True), removals.phrases
