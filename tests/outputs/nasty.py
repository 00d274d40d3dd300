"""Texts that are costly to check, and their places in an output; they consist of pieces to be
repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

Build = Callable[[int], Any]

PIECES = {
    "blanks": " ",
    "blank lines": " \n",
    "carriage returns": "\r",
    "no-break spaces": "\xa0",
    "line separators": "\u2028",
    "two blanks in a word": "a  ",
    "letters": "a",
    "words": "a ",
    "digits": "1.",
    "astral": "\U0001f600",
    "combining": "e\u0301",
    "surrogates": "\ud800",
    "growing in lower case": "\u0130",
    "base64": "QUJD",
    "padding": "QQ ==",
    "ampersands": "&",
    "entities": "&amp;",
    "numbered entities": "&#",
    "quotes": "\"'",
    "escaped quotes": '\\"',
    "backslashes": "\\",
    "braces": "{",
    "pairs of braces": "{}",
    "attributes in braces": "{a=",
    "brackets": "[",
    "pairs of brackets": "[]",
    "closing brackets": "] ",
    "parentheses": "(",
    "backticks": "`",
    "unequal backticks": "` ``",
    "fences": "```\n",
    "nested fences": "````a\n```\n",
    "tildes": "~~a ",
    "stars": "*a **a ",
    "underscores": "_a ",
    "links": "[a](b",
    "pictures": "![",
    "references": "[a]: b\n",
    "footnotes": "[^a]: ",
    "autolinks": "<http://a",
    "quotes of quotes": "> > > ",
    "lists": "- a\n",
    "nested lists": " - a\n",
    "tasks": "- [ ] a\n",
    "tables": "|a|b|\n",
    "rules of tables": "a|\n-|\n",
    "underlines": "a\n-\n",
    "paragraphs": "a\n\n",
    "dollars": "$",
    "two dollars": "$$",
    "dollars on lines": "$$\n",
    "dollars in paragraphs": "$a\n\n",
    "escaped dollars": "\\$a$",
    "beginnings": "\\begin{align}\n",
    "beginnings and letters": "\\begin{align}a\n",
    "starred beginnings": "\\begin{align*}\n\n",
    "wrong ends": "\\begin{align}\n\\end{align*}\n",
    "commands": "\\href{",
    "boxes": "\\bbox[a ",
    "less-than signs": "<",
    "empty tags": "<>",
    "unclosed tags": "<a ",
    "unclosed values": '<a b="',
    "comments": "<!--",
    "empty comments": "<!---->",
    "declarations": "<!a ",
    "instructions": "<?",
    "cdata": "<![CDATA[",
    "divs": "<div>",
    "closed divs": "<div></div>",
    "formatting": "<b><p>",
    "links in links": "<a><b>",
    "tables in tables": "<table>a",
    "cells": "<tr><td>a",
    "closed cells": "<td>&nbsp;</td>",
    "style elements": "<style>a{",
    "closed style elements": "<style>a{color:red}</style>",
    "styled": '<b style="color:red">a</b>',
    "pictures in HTML": '<img src="data:image/svg+xml,<svg></svg>">',
    "inputs": "<input ",
    "handlers": " onclick  ",
    "beginnings of handlers": "on",
    "script links": "=  javascript",
    "uses": '<use href="#a"/>',
    "painted": '<rect fill="url(#a)"/>',
    "images in images": "<svg><g>",
    "attributes": " a=b",
    "rules": "a{color:red}",
    "unclosed rules": "a{",
    "media": "@media a{",
    "CSS comments": "/*",
    "functions": "calc(",
    "selectors": "a>b,",
    "pseudo-classes": ":not(",
    "attribute selectors": "[a=b]",
    "CSS escapes": "\\1 ",
    "imports": '@import "a";',
    "escape": "\x1b",
    "sequences": "\x1b[",
    "parameters": "\x1b[1;",
    "colours": "\x1b[31m",
    "titles": "\x1b]0;a",
    "C1": "\x9d",
    "control": "\x07",
    "backspaces": "a\x08",
    "data addresses": "data:image/png;base64",
    "addresses": "https://a ",
    "paths": "a.b[",
}
MIXED = ("{}!", "<a>\n\n{}", "x{}\n\n<b>")


def repeated(piece: str, size: int) -> str:
    """A text of some size."""
    return piece * (size // len(piece) + 1)


def _quoted(text: str) -> str:
    return text.replace('"', "'")


def _form(mime: str, form: str) -> Callable[[str], tuple[str, Any]]:
    return lambda text: (mime, form.format(text))


PLACES: dict[str, Callable[[str], tuple[str, Any]]] = {
    **{mime: _form(mime, "{}!") for mime in ("text/plain", "text/latex", "text/html")},
    **{f"text/markdown {form!r}": _form("text/markdown", form) for form in MIXED},
    "image/png": lambda text: ("image/png", "iVBORw0KGgo=" + text + "!"),
    "in a tag": lambda text: ("text/html", f"<b {text}>a</b>"),
    "in an attribute": lambda text: ("text/html", f'<b title="{_quoted(text)}">a</b>'),
    "in a style": lambda text: ("text/html", f'<b style="{_quoted(text)}">a</b>'),
    "in a style sheet": lambda text: ("text/html", f"<style>{text}</style><b>"),
    "in a source": lambda text: ("text/html", f'<img src="data:image/png{_quoted(text)}">'),
    "in a sound": lambda text: (
        "text/html",
        f'<audio src="data:audio/wav;base64,{_quoted(text)}!"></audio>',
    ),
    "in a link": lambda text: ("text/html", f'<a href="{_quoted(text)}">a</a>'),
    "in names": lambda text: (
        "text/html",
        f'<b class="{_quoted(text)}" id="{_quoted(text)}">a</b>',
    ),
    "in an image": lambda text: ("image/svg+xml", f"<svg>{text}</svg>"),
    "in a fill": lambda text: ("image/svg+xml", f'<svg><path d="{_quoted(text)}"/></svg>'),
    "in an image's style sheet": lambda text: (
        "image/svg+xml",
        f"<svg><style>{text}</style></svg>",
    ),
    "in a Plotly label": lambda text: (
        "application/vnd.plotly.v1+json",
        {"data": [{"type": "bar", "name": text}], "layout": {"title": "<b>$" + text}},
    ),
    "in a Plotly path": lambda text: (
        "application/vnd.plotly.v1+json",
        {"data": [], "layout": {text: [text], "args": [text, [text]]}},
    ),
    "in a Vega-Lite chart": lambda text: (
        "application/vnd.vegalite.v5+json",
        {"$schema": text, "title": text, "tooltip": text, "data": {"values": [text]}},
    ),
    "in a map": lambda text: (
        "application/geo+json",
        {"type": "Feature", "properties": {text: text}},
    ),
    "in a widget's view": lambda text: (
        "application/vnd.jupyter.widget-view+json",
        {"model_id": text},
    ),
    "in JSON": lambda text: ("application/json", {text: [text]}),
}


def values(size: int, make: Callable[[int], Any]) -> list[Any]:
    """A list of values whose JSON has about this size."""
    found: list[Any] = []
    for number in count():
        found.append(make(number))
        size -= len(json.dumps(found[-1])) + 1
        if size <= 0:
            return found
    raise AssertionError


def _plotly(data: Any, layout: Any) -> tuple[str, Any]:
    return "application/vnd.plotly.v1+json", {"data": data, "layout": layout}


STRUCTURES: dict[str, Callable[[int], tuple[str, Any]]] = {
    "Plotly: many points": lambda n: _plotly([{"type": "bar", "x": values(n, float)}], {}),
    "Plotly: many traces": lambda n: _plotly(values(n, lambda _: {"type": "bar"}), {}),
    "Plotly: many names in a path of many texts": lambda n: _plotly(
        [], {repeated("acolor.", n // 2): values(n // 2, str)}
    ),
    "Plotly: a button's path": lambda n: _plotly(
        [], {"args": [repeated("type.", n // 2), values(n // 2, str)]}
    ),
    "Vega-Lite: rows": lambda n: (
        "application/vnd.vegalite.v5+json",
        {"mark": "bar", "tooltip": 1, "data": {"values": values(n, lambda i: {"a": i})}},
    ),
    "Vega-Lite: layers": lambda n: (
        "application/vnd.vegalite.v5+json",
        {"layer": values(n, lambda _: {"mark": "bar"})},
    ),
    "GeoJSON: features": lambda n: (
        "application/geo+json",
        {"type": "FeatureCollection", "features": values(n, lambda _: {"type": "Feature"})},
    ),
    "HTML: quotes in a terminal's sequences": lambda n: (
        "text/html",
        '<b class="{0}" id="{0}">a</b>'.format(repeated("> <math><mi>\x1b[", 2 * n)),
    ),
    "HTML: parts that use each other": lambda n: (
        "text/html",
        "<svg>"
        + "".join(f'<g id="a{i}"><use href="#a{i + 1}"></use></g>' for i in range(n // 50))
        + "</svg>",
    ),
    "HTML: styles that differ": lambda n: (
        "text/html",
        "".join(f'<b style="color:#{i:06x}">a</b>' for i in range(n // 32)),
    ),
    "HTML: attributes that differ": lambda n: (
        "text/html",
        "<b " + " ".join(f"a{i}=b" for i in range(n // 8)) + "></b>",
    ),
    "HTML: rules that differ": lambda n: (
        "text/html",
        "<style>" + "".join(f".a{i}{{color:red}}" for i in range(n // 18)) + "</style>",
    ),
}
