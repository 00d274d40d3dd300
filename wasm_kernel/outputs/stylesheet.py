"""Style sheets inside an output: their rules hold in the output's own box and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from wasm_kernel.outputs.declarations import declared
from wasm_kernel.outputs.patience import look, patiently
from wasm_kernel.outputs.removals import ANIMATIONS, FETCHED_STYLE, STYLES, Removals
from wasm_kernel.outputs.selectors import scoped
from wasm_kernel.outputs.values import IDENTIFIER

CHARACTERS_MOST = 1024 * 1024  # of all style sheets of a document
PIECE, PIECE_MOST = 16 * 1024, 128 * 1024  # characters that are read at once
RULES_MOST = 20_000
REMEMBERED = 64 * 1024  # characters of a style sheet that is kept for the next output
DEPTH = 3
_ANY = "\x00"  # stands for the class; no rule that is written here holds it otherwise
_MISSED = {
    "import": FETCHED_STYLE,
    "font-face": FETCHED_STYLE,
    "keyframes": ANIMATIONS,
    "-webkit-keyframes": ANIMATIONS,
}
_OPENING, _CLOSING = frozenset("{[("), frozenset("}])")
_SIGN = re.compile(
    r"/\*.*?(?:\*/|\Z)|\"(?:[^\"\\\n]++|\\.)*+\"?|'(?:[^'\\\n]++|\\.)*+'?|\\.|[{}()\[\]]", re.DOTALL
)
# A query names features of the screen; it can't be told from outside whether it held.
_QUERY = re.compile(r"[A-Za-z0-9 ,():.%-]{1,300}\Z")


def clean_stylesheet(css: str, scope: str, removals: Removals) -> str:
    """The rules of `css` that may stand, each behind the class `scope`.

    What comes out holds neither `<` nor `&`: it ends no element, and is the same text in XML.
    """
    cleaned = _cleaned if len(css) <= REMEMBERED else _cleaned.__wrapped__
    rules, phrases = cleaned(css)
    removals.update(phrases)
    return rules.replace(_ANY, scope)


@lru_cache(maxsize=8)
def _cleaned(css: str) -> tuple[str, tuple[str, ...]]:
    # every table and every diagram of a library comes with the same style sheet
    import tinycss2

    removals, kept = Removals(), list[str]()
    for piece in _pieces(css):
        look()
        if len(piece) > PIECE_MOST or len(kept) > RULES_MOST:
            removals.add(STYLES)
            continue
        rules = tinycss2.parse_stylesheet(piece, skip_comments=True, skip_whitespace=True)
        kept += _rules(rules, _ANY, removals, 0)
    return "\n".join(kept), removals.phrases


def _pieces(css: str) -> Iterator[str]:
    """Whole rules, some at a time: the text may take seconds to read, and somebody waits."""
    depth, start = 0, 0
    for sign in _SIGN.finditer(css):
        if sign[0] in _OPENING:
            depth += 1
        elif sign[0] in _CLOSING:
            depth = max(0, depth - 1)
            if not depth and sign.end() - start >= PIECE:
                yield css[start : sign.end()]
                start = sign.end()
    yield css[start:]


def _rules(rules: Sequence[Any], scope: str, removals: Removals, depth: int) -> list[str]:
    kept: list[str] = []
    if len(rules) > RULES_MOST:
        removals.add(STYLES)
    for rule in patiently(rules[:RULES_MOST]):
        if rule.type == "qualified-rule":
            kept.extend(_rule(rule, scope, removals))
        elif rule.type == "at-rule" and rule.lower_at_keyword == "media" and depth < DEPTH:
            kept.extend(_media(rule, scope, removals, depth))
        elif rule.type == "at-rule" and rule.lower_at_keyword in _MISSED:
            removals.add(_MISSED[rule.lower_at_keyword])
    return kept


def _rule(rule: Any, scope: str, removals: Removals) -> list[str]:
    import tinycss2

    selectors, whole = scoped(rule.prelude, scope)
    if not selectors and not whole:
        return []
    nodes = tinycss2.parse_blocks_contents(rule.content, skip_comments=True, skip_whitespace=True)
    found = []
    if selectors and (css := declared(nodes, removals)):
        found.append(f"{', '.join(selectors)} {{{css}}}")
    # What is meant for the whole page sets variables for the box, and nothing else: the box's own
    # looks are what keeps the output in it.
    if whole and (css := declared(nodes, removals, custom_only=True)):
        found.append(f":where(.{scope}) {{{css}}}")
    return found


def _media(rule: Any, scope: str, removals: Removals, depth: int) -> list[str]:
    import tinycss2

    query = " ".join("".join(token.serialize() for token in rule.prelude).split())
    if rule.content is None or not _QUERY.match(query) or not _sound(rule.prelude):
        return []
    inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
    rules = _rules(inner, scope, removals, depth + 1)
    return [f"@media {query} {{", *rules, "}"] if rules else []


def _sound(tokens: Sequence[Any]) -> bool:
    """Whether a query is made of words, numbers and brackets, as written and as meant."""
    for token in tokens:
        if token.type == "() block":
            if not _sound(token.content):
                return False
        elif token.type == "ident":
            if not IDENTIFIER.match(token.value):
                return False
        elif token.type == "literal":
            if token.value not in (":", ",", "/"):
                return False
        elif token.type not in ("whitespace", "number", "dimension"):
            return False
    return True
