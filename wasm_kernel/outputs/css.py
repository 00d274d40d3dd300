"""CSS of an output: style sheets whose rules hold in the output's own box, and `style` attributes.

Everything is written anew from tokens that are known to be harmless. The result holds no comment,
no `<` and no `&`, so that it means the same in a style sheet, in an attribute, in HTML and in XML.
It also holds no function that fetches something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from wasm_kernel.outputs.limits import check_stopped, stoppable
from wasm_kernel.outputs.removals import (
    ANIMATIONS,
    FETCHED_STYLE,
    LARGE_STYLES,
    STYLES,
    Removals,
    words,
)

# -- values

VALUE_DEPTH = 8

FUNCTIONS = words("""
    rgb rgba hsl hsla hwb lab lch oklab oklch color color-mix light-dark
    linear-gradient radial-gradient conic-gradient repeating-linear-gradient
    repeating-radial-gradient calc min max clamp round abs var minmax repeat fit-content
    translate translatex translatey translate3d rotate scale scalex scaley skew skewx skewy
    matrix inset circle ellipse polygon cubic-bezier steps counter
    grayscale opacity brightness contrast saturate sepia invert hue-rotate blur
    """)
_FETCHING = frozenset({"url", "image", "image-set", "-webkit-image-set", "cross-fade", "src"})
_LITERALS = frozenset(",/+-*")

IDENTIFIER = re.compile(r"-{0,2}[A-Za-z_][A-Za-z0-9_-]{0,200}\Z|--[A-Za-z0-9_-]{1,200}\Z")
_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?\Z")
_UNIT = re.compile(r"[A-Za-z]{1,12}\Z")
_COLOUR = re.compile(r"[0-9A-Fa-f]{3,8}\Z")
# The characters to escape: all but letters, digits and those without meaning to CSS, HTML or XML.
_SPECIAL = re.compile(r"""[^ \w!#$%'()*+,./:;=?@\[\]^`{|}~\u00a0-\ud7ff\ue000-\ufffd-]""")


def clean_value(tokens: Sequence[Any], removals: Removals, depth: int = 0) -> str | None:
    """The CSS text of a value; None if it holds anything not known to be harmless.

    `depth` is the number of functions and brackets around the value.
    """
    if depth > VALUE_DEPTH:
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
            return _matching(_NUMBER, token.representation, "{}%")
        case "dimension":
            unit = _matching(_UNIT, token.unit)
            return None if unit is None else _matching(_NUMBER, token.representation, f"{{}}{unit}")
        case "hash":
            return _matching(_COLOUR, token.value, "#{}")
        case "string":
            return quoted(token.value)
        case "literal":
            return str(token.value) if token.value in _LITERALS else None
        case "function":
            return _function(token, removals, depth)
        case "() block":
            inside = clean_value(token.content, removals, depth + 1)
            return None if inside is None else f"({inside})"
        case "url":
            removals.add(FETCHED_STYLE)
    return None


def _matching(pattern: re.Pattern[str], text: str, form: str = "{}") -> str | None:
    return form.format(text) if pattern.match(text) else None


def _function(token: Any, removals: Removals, depth: int) -> str | None:
    name = token.lower_name
    if name in _FETCHING:
        removals.add(FETCHED_STYLE)
    if name not in FUNCTIONS:
        return None
    inside = clean_value(token.arguments, removals, depth + 1)
    return None if inside is None else f"{name}({inside})"


def quoted(text: str) -> str:
    """A CSS string, with every character escaped that has a meaning outside of CSS."""
    return '"' + _SPECIAL.sub(lambda match: f"\\{ord(match[0]):x} ", text) + '"'


# -- selectors

ID_PREFIX = "wk-"
SELECTOR_DEPTH = 4

_ROOTS = frozenset({":root", "html", "body", ":host"})
_PSEUDO_CLASSES = words("""
    active any-link autofill checked default dir disabled empty enabled first first-child
    first-of-type focus focus-visible focus-within hover indeterminate last-child last-of-type link
    only-child only-of-type open optional placeholder-shown read-only read-write required root
    target valid visited
    """)
_PSEUDO_ELEMENTS = words("after before first-letter first-line marker selection details-content")
_OF_SELECTORS = frozenset({"not", "is", "where", "matches"})
_OF_NUMBERS = frozenset({"nth-child", "nth-last-child", "nth-of-type", "nth-last-of-type"})
_FORMULA = re.compile(r"[0-9nNevdoEVDO+\- ]{1,40}\Z")
_COMPARISONS = frozenset({"=", "~=", "|=", "^=", "$=", "*="})
_COMBINATORS = frozenset(">+~")


def scoped(prelude: Sequence[Any], scope: str) -> tuple[list[str], bool]:
    """The harmless selectors of a rule, each behind the class of the output's box.

    The class stands in `:where()`, which does not change the selector's specificity: rules win over
    each other, and over the front end's own, as they would without the class. The second value says
    whether a selector named the whole page.
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
    """One selector between commas; None if it is malformed or not known to be harmless."""
    parts: list[str] = []
    rest = list(reversed(tokens))
    joined = False  # whether a combinator may follow here
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
            return _matching(IDENTIFIER, token.value)
        case "hash":
            return _matching(IDENTIFIER, token.value, f"#{ID_PREFIX}{{}}")
        case "[] block":
            return _attribute(token.content)
        case "literal" if token.value == "*":
            return "*"
        case "literal" if token.value == "." and rest and rest[-1].type == "ident":
            return _matching(IDENTIFIER, rest.pop().value, ".{}")
        case "literal" if token.value == ":" and rest:
            return _pseudo(rest.pop(), rest, depth)
    return None


def _pseudo(token: Any, rest: list[Any], depth: int) -> str | None:
    if token.type == "literal" and token.value == ":" and rest:
        element = rest.pop()
        known = element.type == "ident" and element.lower_value in _PSEUDO_ELEMENTS
        return f"::{element.lower_value}" if known else None
    if token.type == "ident":
        name = token.lower_value
        return f":{name}" if name in _PSEUDO_CLASSES | _PSEUDO_ELEMENTS else None
    if token.type != "function" or depth >= SELECTOR_DEPTH:
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
    """`[name]` or `[name="value"]`; None for an id, as ids are renamed."""
    tokens = [token for token in content if token.type not in ("whitespace", "comment")]
    if not tokens or tokens[0].type != "ident" or tokens[0].lower_value == "id":
        return None
    name = _matching(IDENTIFIER, tokens[0].value)
    if name is None or len(tokens) == 1:
        return name and f"[{name}]"
    value = tokens[-1]
    comparison = "".join(token.value for token in tokens[1:-1] if token.type == "literal")
    if comparison not in _COMPARISONS or value.type not in ("ident", "string"):
        return None
    return f"[{name}{comparison}{quoted(value.value)}]"


# -- declarations

ATTRIBUTE_CHARACTERS = 20_000
DECLARATIONS_MOST = 200
REMEMBERED_ATTRIBUTE = 500  # characters of an attribute that is kept for the next element

# Properties for looks and layout inside the output's own box, which clips and holds its content.
# Missing on purpose: properties that name things for the whole page (animation, counter-set,
# anchor-name, container, view-transition-name), one that needs a fetched file (src), and `contain`
# itself.
PROPERTIES = words("""
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
alignment-baseline baseline-shift clip-rule color-interpolation dominant-baseline fill
fill-opacity fill-rule image-rendering paint-order shape-rendering stop-color stop-opacity stroke
stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity
stroke-width text-anchor vector-effect
""")
POSITIONS = frozenset({"static", "relative", "absolute", "sticky", "inherit", "initial", "unset"})
# For these properties `url()` names a part of a document, and a part of the output itself loads
# nothing. For other properties `url()` is a picture, which a browser may request from the page's
# own address.
_PAINTING = frozenset({"fill", "stroke", "clip-path"})
_FRAGMENT = re.compile(r"#[A-Za-z0-9_.-]{1,200}\Z")
_CUSTOM = re.compile(r"--[A-Za-z0-9_-]{1,200}\Z")


def clean_declarations(
    nodes: Sequence[Any], removals: Removals, *, custom_only: bool = False, painting: bool = False
) -> str:
    """The harmless declarations among tinycss2's nodes, as CSS text.

    `custom_only` keeps only custom properties (`--x`); `painting` also keeps properties that paint
    with a part of the same document.
    """
    kept = []
    for node in nodes[:DECLARATIONS_MOST]:
        if node.type != "declaration":
            continue
        custom = node.name.startswith("--")
        name = node.name if custom else node.lower_name
        if not (_CUSTOM.match(name) if custom else name in PROPERTIES and not custom_only):
            continue
        own = _own_reference(name, node.value) if painting else None
        value = own or clean_value(node.value, removals)
        if value is None or (not value and not custom):
            continue
        if name == "position" and value.lower() not in POSITIONS:
            removals.add(STYLES)
            continue
        kept.append(f"{name}: {value}{' !important' if node.important else ''}")
    return "; ".join(kept)


def _own_reference(name: str, tokens: Sequence[Any]) -> str | None:
    """The value of a property that refers to a part of the same output, such as a pattern."""
    parts = [token for token in tokens if token.type not in ("whitespace", "comment")]
    if name not in _PAINTING or len(parts) != 1:
        return None
    only = parts[0]
    if only.type == "function" and only.lower_name == "url" and len(only.arguments) == 1:
        only = only.arguments[0]
    if only.type not in ("url", "string") or not _FRAGMENT.match(only.value):
        return None
    return f"url(#{ID_PREFIX}{only.value[1:]})"


def style_attribute(text: str, removals: Removals) -> str:
    """The harmless part of a `style` attribute."""
    if len(text) > ATTRIBUTE_CHARACTERS:
        removals.add(LARGE_STYLES)
        return ""
    cleaned = _clean_style if len(text) <= REMEMBERED_ATTRIBUTE else _clean_style.__wrapped__
    css, phrases = cleaned(text)
    removals.update(phrases)
    return css


@lru_cache(maxsize=4096)
def _clean_style(text: str) -> tuple[str, tuple[str, ...]]:
    # cached, as a table repeats the same attribute in each of its cells
    import tinycss2

    removals = Removals()
    nodes = tinycss2.parse_blocks_contents(text, skip_comments=True, skip_whitespace=True)
    return clean_declarations(nodes, removals, painting=True), removals.phrases


# -- style sheets

SHEETS_MOST = 4 * 1024 * 1024  # characters of all style sheets of a document
# Characters that are read at once. A table's style of 20,000 cells is one rule that names each.
PIECE, PIECE_MOST = 16 * 1024, 512 * 1024
RULES_MOST = 20_000
REMEMBERED_SHEET = 64 * 1024  # characters of a style sheet that is kept for the next output
MEDIA_DEPTH = 3
_ANY_SCOPE = "\x00"  # stands for the class; no rule written here holds it otherwise
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
# A media query; it may name features of the screen, as a cell can't find out whether it held.
_QUERY = re.compile(r"[A-Za-z0-9 ,():.%-]{1,300}\Z")


def clean_stylesheet(css: str, scope: str, removals: Removals) -> str:
    """The harmless rules of `css`, each behind the class `scope`.

    The result holds neither `<` nor `&`: it ends no element, and is the same text in XML.
    """
    cleaned = _clean_sheet if len(css) <= REMEMBERED_SHEET else _clean_sheet.__wrapped__
    rules, phrases = cleaned(css)
    removals.update(phrases)
    return rules.replace(_ANY_SCOPE, scope)


@lru_cache(maxsize=8)
def _clean_sheet(css: str) -> tuple[str, tuple[str, ...]]:
    # cached, as every table and every diagram of a library comes with the same style sheet
    import tinycss2

    removals, kept = Removals(), list[str]()
    for piece in _pieces(css):
        check_stopped()
        if len(piece) > PIECE_MOST or len(kept) > RULES_MOST:
            removals.add(LARGE_STYLES)
            continue
        rules = tinycss2.parse_stylesheet(piece, skip_comments=True, skip_whitespace=True)
        kept += _rules(rules, _ANY_SCOPE, removals, 0)
    return "\n".join(kept), removals.phrases


def _pieces(css: str) -> Iterator[str]:
    """Yields whole rules in pieces: parsing a large text takes seconds, for which a cell waits."""
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
        removals.add(LARGE_STYLES)
    for rule in stoppable(rules[:RULES_MOST]):
        if rule.type == "qualified-rule":
            kept.extend(_rule(rule, scope, removals))
        elif rule.type == "at-rule" and rule.lower_at_keyword == "media" and depth < MEDIA_DEPTH:
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
    if selectors and (css := clean_declarations(nodes, removals)):
        found.append(f"{', '.join(selectors)} {{{css}}}")
    # A rule for the whole page may only set variables for the box: other properties could change
    # the box's own style, which keeps the output inside.
    if whole and (css := clean_declarations(nodes, removals, custom_only=True)):
        found.append(f":where(.{scope}) {{{css}}}")
    return found


def _media(rule: Any, scope: str, removals: Removals, depth: int) -> list[str]:
    import tinycss2

    query = " ".join("".join(token.serialize() for token in rule.prelude).split())
    if rule.content is None or not _QUERY.match(query) or not all(map(_is_plain, rule.prelude)):
        return []
    inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
    rules = _rules(inner, scope, removals, depth + 1)
    return [f"@media {query} {{", *rules, "}"] if rules else []


def _is_plain(token: Any) -> bool:
    """Returns whether a part of a media query is a word, a number, or brackets around such."""
    match token.type:
        case "() block":
            return all(map(_is_plain, token.content))
        case "ident":
            return IDENTIFIER.match(token.value) is not None
        case "literal":
            return token.value in (":", ",", "/")
    return token.type in ("whitespace", "number", "dimension")
