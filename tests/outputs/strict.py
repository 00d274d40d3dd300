"""Checks a shown output by an allow-list of its own, with another parser than the product's."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from typing import Any

import html5lib

XHTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
LAST = "margin-bottom: 0.5em"
XMLNS = "{http://www.w3.org/2000/xmlns/}"
XLINK = "{http://www.w3.org/1999/xlink}"

# The lists are written down here once more, so that the tests notice mistakes in the product's
# lists.
_HARMLESS = """
a abbr acronym address article aside b bdi bdo big blockquote br caption center circle cite
clipPath code col colgroup data dd defs del details dfn dir div dl dt ellipse em figcaption figure
font footer g h1 h2 h3 h4 h5 h6 header hgroup hr i image ins kbd label li line linearGradient main
mark marker mask meter nav ol output p path pattern polygon polyline pre progress q radialGradient
rect rp rt ruby s samp section small span stop strike strong sub summary sup svg switch symbol
table tbody td text textPath tfoot th thead time tr tspan tt u ul use var img input audio video
source style
"""
ELEMENTS = frozenset(_HARMLESS.split())
_ADDRESS = re.compile(
    r"#wk-[\w.:-]+\Z|https?://|mailto:|data:image/(?:png|jpeg|gif|webp|bmp|svg\+xml);base64,"
    r"|data:(?:audio|video)/[\w.+-]+;base64,"
)
_DATA_BESIDE = re.compile(
    r"(?!.*(?:%2f|%5c|%25|%0|%1|%7f|(?:^|/)(?:\.|%2e)))[\w.,()+@~%/-]+\.(?:csv|json|txt|png|pdf)\Z",
    re.IGNORECASE | re.ASCII,
)
_LINKS_OUT = re.compile(r"https?://|mailto:")
_FETCHES = re.compile(
    r"url(?!\(#wk-[\w.-]+\))|image-set|@import|@font-face|expression|-moz-binding|\\", re.IGNORECASE
)
_RULE = re.compile(r"(?:@media [\w ,():.%-]+ \{|\}|(?P<selectors>[^{}]+)\{(?P<body>[^{}]*)\})\s*")
_TAG = re.compile(r"<[^>]*")
_ACTS = re.compile(r"url|href=(?!.{0,2}https?://|.{0,2}mailto:)|popup", re.IGNORECASE)
_QUOTED = re.compile(r'"(?:[^"\\]|\\[0-9a-f]+ )*"')


def problems_in(bundle: Mapping[str, Any]) -> list[str]:
    """The parts of a bundle that should not have passed; empty if all is well."""
    found: list[str] = []
    for mime, content in bundle.items():
        if mime == "text/html":
            tree = html5lib.parseFragment(content, treebuilder="etree")
            found += [f"{mime}: {problem}" for problem in _problems(tree)]
        elif mime == "image/svg+xml":
            tree = html5lib.parseFragment(content, treebuilder="etree")
            found += [f"{mime} as HTML: {problem}" for problem in _problems(tree)]
            found += [f"{mime} as XML: {problem}" for problem in _problems(ET.fromstring(content))]
        elif mime == "text/markdown" and re.search(r"<[A-Za-z/!?]|\]\(|\$|&", content):
            found.append(f"{mime} is not plain")
        elif mime == "text/latex" and re.search(
            r"<[A-Za-z/!?]|\\(?:href|style|class|def)\b", content
        ):
            found.append(f"{mime} acts")
        elif mime == "application/vnd.plotly.v1+json":
            found += [f"{mime}: {tag}" for tag in _TAG.findall(str(content)) if _ACTS.search(tag)]
        elif mime == "application/geo+json" and "<" in str(content):
            found.append(f"{mime} holds HTML")
        elif mime.endswith(("javascript", "ecmascript")) or "vega.v" in mime or "bokeh" in mime:
            found.append(mime)
    return found


def _problems(tree: Any) -> Iterator[str]:
    for element in tree.iter():
        if not isinstance(element.tag, str):
            yield "a comment"
            continue
        if element.tag == "DOCUMENT_FRAGMENT":
            continue
        namespace, _, name = element.tag.rpartition("}")
        if f"{namespace}}}" not in (XHTML, SVG):
            yield f"<{element.tag}>"
        if name not in ELEMENTS:
            yield f"<{name}>"
        if name == "style":
            yield from _sheet_problems("".join(element.itertext()))
        if name == "input" and element.get("type") != "checkbox":
            yield "an input other than a checkbox"
        for attribute, value in element.attrib.items():
            yield from _attribute_problems(name, str(attribute), value)


def _attribute_problems(element: str, attribute: str, value: str) -> Iterator[str]:
    if attribute.startswith(XMLNS):
        return
    local = attribute.removeprefix(XLINK)
    if local.startswith(("on", "data-", "form", "{")) or local in (
        "srcdoc", "srcset", "poster", "background", "ping", "action", "name", "contenteditable",
        "autofocus", "autoplay", "popover", "is", "slot", "part", "nonce", "accesskey",
    ):  # fmt: skip
        yield f"{element}[{attribute}]"
    if local in ("href", "src"):
        beside = element == "a" and _DATA_BESIDE.match(value) and not value.startswith("/")
        allowed = beside or _ADDRESS.match(value)
        if not allowed or (_LINKS_OUT.match(value) and element != "a"):
            yield f"{element}[{attribute}={value[:60]!r}]"
    if local == "id" and not value.startswith("wk-"):
        yield f"an id of its own: {value}"
    if local == "class" and re.search(r"\b(?:jp|lm|cm)-", value):
        yield f"a class of the page's: {value}"
    if local == "style":
        plain = _QUOTED.sub('""', value)
        if _FETCHES.search(plain) or re.search(r"position:\s*fixed", plain):
            yield f"style={value[:80]!r}"
    elif local not in ("title", "alt", "href", "src") and re.search(r"url\((?!#wk-)", value):
        yield f"{element}[{attribute}={value[:60]!r}]"


def _sheet_problems(css: str) -> Iterator[str]:
    if "<" in css:
        yield "a style sheet with a tag"
    plain = _QUOTED.sub('""', css)
    if _FETCHES.search(plain) or "/*" in plain or re.search(r"position:\s*fixed", plain):
        yield f"a style sheet that reaches out: {css[:120]!r}"
    at = 0
    while at < len(plain):
        rule = _RULE.match(plain, at)
        if not rule:
            yield f"a style sheet that is none: {plain[at : at + 120]!r}"
            return
        at = rule.end()
        if rule["selectors"] is not None:
            yield from _selector_problems(rule["selectors"], rule["body"])


def _selector_problems(selectors: str, body: str) -> Iterator[str]:
    # commas inside :is() don't separate selectors
    for selector in re.split(r",(?![^()]*\))", selectors):
        if re.fullmatch(r"\.wk-[0-9a-f]{12} > :last-child ", selector) and body == LAST:
            continue
        if not re.match(r"\s*:where\(\.wk-[0-9a-f]{12}\)\s*(?:[^\s>+~]|\Z)", selector):
            yield f"a rule for the page: {selector!r}"
        if re.fullmatch(r"\s*:where\([^)]*\)\s*", selector) and re.search(
            r"(?:^|;)\s*(?!--)\w", body
        ):
            yield f"a rule for the box itself: {body!r}"
