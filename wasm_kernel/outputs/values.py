"""The values of CSS declarations: written anew from tokens that are known to be harmless.

Nothing is passed through as it came. What comes out holds no comment, no `<` and no `&`, so that it
means the same in a style sheet, in an attribute, in HTML and in XML; and no function that fetches,
so that it can be shown without asking anybody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from wasm_kernel.outputs.removals import FETCHED_STYLE, Removals
from wasm_kernel.outputs.words import words

DEPTH = 8

_COLOURS = "rgb rgba hsl hsla hwb lab lch oklab oklch color color-mix light-dark"
_GRADIENTS = "linear-gradient radial-gradient conic-gradient repeating-linear-gradient"
_NUMBERS = "calc min max clamp round abs var minmax repeat fit-content"
_MOVES = "translate translatex translatey translate3d rotate scale scalex scaley skew skewx skewy"
_SHAPES = "matrix inset circle ellipse polygon cubic-bezier steps counter"
_LOOKS = "grayscale opacity brightness contrast saturate sepia invert hue-rotate blur"
FUNCTIONS = words(
    f"{_COLOURS} {_GRADIENTS} repeating-radial-gradient {_NUMBERS} {_MOVES} {_SHAPES} {_LOOKS}"
)
_FETCHING = frozenset({"url", "image", "image-set", "-webkit-image-set", "cross-fade", "src"})
_LITERALS = frozenset(",/+-*")

IDENTIFIER = re.compile(r"-{0,2}[A-Za-z_][A-Za-z0-9_-]{0,200}\Z|--[A-Za-z0-9_-]{1,200}\Z")
_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?\Z")
_UNIT = re.compile(r"[A-Za-z]{1,12}\Z")
_COLOUR = re.compile(r"[0-9A-Fa-f]{3,8}\Z")
# Letters, digits and what has no meaning to CSS, HTML or XML; every other character is escaped.
_SPECIAL = re.compile(r"""[^ \w!#$%'()*+,./:;=?@\[\]^`{|}~\u00a0-\ud7ff\ue000-\ufffd-]""")


def written(tokens: Sequence[Any], removals: Removals, depth: int = 0) -> str | None:
    """The CSS text of a value; None where it holds anything that is not known to be harmless.

    Args:
        tokens: tinycss2's component values.
        removals: Hears of what would have been fetched.
        depth: How many functions and brackets stand around.
    """
    if depth > DEPTH:
        return None
    parts = []
    for token in tokens:
        part = _part(token, removals, depth)
        if part is None:
            return None
        parts.append(part)
    return "".join(parts).strip()


def _part(token: Any, removals: Removals, depth: int) -> str | None:  # noqa: PLR0911 - one a kind
    match token.type:
        case "whitespace" | "comment":
            return " "
        case "ident":
            return _matching(IDENTIFIER, token.value)
        case "number":
            return _matching(_NUMBER, token.representation)
        case "percentage":
            number = _matching(_NUMBER, token.representation)
            return None if number is None else f"{number}%"
        case "dimension":
            number, unit = _matching(_NUMBER, token.representation), _matching(_UNIT, token.unit)
            return None if number is None or unit is None else f"{number}{unit}"
        case "hash":
            colour = _matching(_COLOUR, token.value)
            return None if colour is None else f"#{colour}"
        case "string":
            return string(token.value)
        case "literal":
            return str(token.value) if token.value in _LITERALS else None
        case "function":
            return _function(token, removals, depth)
        case "() block":
            inside = written(token.content, removals, depth + 1)
            return None if inside is None else f"({inside})"
        case "url":
            removals.add(FETCHED_STYLE)
    return None


def _matching(pattern: re.Pattern[str], text: str) -> str | None:
    return text if pattern.match(text) else None


def _function(token: Any, removals: Removals, depth: int) -> str | None:
    name = token.lower_name
    if name in _FETCHING:
        removals.add(FETCHED_STYLE)
    if name not in FUNCTIONS:
        return None
    inside = written(token.arguments, removals, depth + 1)
    return None if inside is None else f"{name}({inside})"


def string(text: str) -> str:
    """A CSS string, with every character escaped that means anything outside of CSS."""
    return '"' + _SPECIAL.sub(lambda match: f"\\{ord(match[0]):x} ", text) + '"'
