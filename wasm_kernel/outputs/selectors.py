"""CSS selectors that reach into one output and nowhere else.

Each selector is written anew behind a prefix that names the output's own box. The prefix stands in
`:where()`, which leaves the weight of the selector as it was, so that rules win over each other,
and over the front end's own, as they would have without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from wasm_kernel.outputs.values import IDENTIFIER, string
from wasm_kernel.outputs.words import words

ID_PREFIX = "wk-"
DEPTH = 4

_ROOTS = frozenset({":root", "html", "body", ":host"})
_PLAIN = """
active any-link autofill checked default dir disabled empty enabled first first-child first-of-type
focus focus-visible focus-within hover indeterminate last-child last-of-type link only-child
only-of-type open optional placeholder-shown read-only read-write required root target valid visited
"""
_PSEUDO_CLASSES = words(_PLAIN)
_PSEUDO_ELEMENTS = frozenset(
    {"after", "before", "first-letter", "first-line", "marker", "selection", "details-content"}
)
_OF_SELECTORS = frozenset({"not", "is", "where", "matches"})
_OF_NUMBERS = frozenset({"nth-child", "nth-last-child", "nth-of-type", "nth-last-of-type"})
_FORMULA = re.compile(r"[0-9nNevdoEVDO+\- ]{1,40}\Z")
_COMPARISONS = frozenset({"=", "~=", "|=", "^=", "$=", "*="})
_COMBINATORS = frozenset(">+~")


def scoped(prelude: Sequence[Any], scope: str) -> tuple[list[str], bool]:
    """A rule's selectors as they may stand.

    Args:
        prelude: tinycss2's component values before the braces.
        scope: The class of the output's box.

    Returns:
        The selectors, each behind the box's class, and whether one of them named the whole page.
    """
    kept, whole = [], False
    for tokens in _split(prelude):
        text = _complex(tokens)
        if text in _ROOTS:
            whole = True
        elif text is not None:
            kept.append(f":where(.{scope}) {text}")
    return kept, whole


def _split(tokens: Sequence[Any]) -> Iterator[list[Any]]:
    part: list[Any] = []
    for token in tokens:
        if token.type == "literal" and token.value == ",":
            yield part
            part = []
        elif token.type != "comment":
            part.append(token)
    yield part


def _complex(tokens: Sequence[Any], depth: int = 0) -> str | None:
    """One selector between commas; None where it is malformed or not known to be harmless."""
    parts: list[str] = []
    rest = list(reversed(tokens))
    joined = False  # whether a compound may end here, so that a combinator may follow
    while rest:
        token = rest.pop()
        if token.type == "whitespace":
            if joined and rest and not _is_combinator(rest[-1]):
                parts.append(" ")
            continue
        if _is_combinator(token):
            if not joined:
                return None
            parts.append(token.value)
            joined = False
            continue
        part = _simple(token, rest, depth)
        if part is None:
            return None
        parts.append(part)
        joined = True
    return "".join(parts).strip() if joined else None


def _is_combinator(token: Any) -> bool:
    return token.type == "literal" and token.value in _COMBINATORS


def _simple(token: Any, rest: list[Any], depth: int) -> str | None:  # noqa: PLR0911 - one a kind
    match token.type:
        case "ident":
            return _identifier(token.value)
        case "hash":
            name = _identifier(token.value)
            return None if name is None else f"#{ID_PREFIX}{name}"
        case "[] block":
            return _attribute(token.content)
        case "literal" if token.value == "*":
            return "*"
        case "literal" if token.value == "." and rest and rest[-1].type == "ident":
            name = _identifier(rest.pop().value)
            return None if name is None else f".{name}"
        case "literal" if token.value == ":" and rest:
            return _pseudo(rest.pop(), rest, depth)
    return None


def _identifier(name: str) -> str | None:
    return name if IDENTIFIER.match(name) else None


def _pseudo(token: Any, rest: list[Any], depth: int) -> str | None:
    if token.type == "literal" and token.value == ":" and rest:
        element = rest.pop()
        known = element.type == "ident" and element.lower_value in _PSEUDO_ELEMENTS
        return f"::{element.lower_value}" if known else None
    if token.type == "ident":
        name = token.lower_value
        return f":{name}" if name in _PSEUDO_CLASSES | _PSEUDO_ELEMENTS else None
    if token.type != "function" or depth >= DEPTH:
        return None
    name = token.lower_name
    if name in _OF_NUMBERS:
        formula = "".join(part.serialize() for part in token.arguments).strip()
        return f":{name}({formula})" if _FORMULA.match(formula) else None
    if name in _OF_SELECTORS:
        inside = [_complex(part, depth + 1) for part in _split(token.arguments)]
        return None if None in inside else f":{name}({', '.join(map(str, inside))})"
    return None


def _attribute(content: Sequence[Any]) -> str | None:
    """`[name]` or `[name="value"]`. An id is not asked for: ids are renamed on their way."""
    tokens = [token for token in content if token.type not in ("whitespace", "comment")]
    if not tokens or tokens[0].type != "ident" or tokens[0].lower_value == "id":
        return None
    name = _identifier(tokens[0].value)
    if name is None or len(tokens) == 1:
        return None if name is None else f"[{name}]"
    value = tokens[-1]
    comparison = "".join(token.value for token in tokens[1:-1] if token.type == "literal")
    if comparison not in _COMPARISONS or value.type not in ("ident", "string"):
        return None
    return f"[{name}{comparison}{string(value.value)}]"
