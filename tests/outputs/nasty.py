"""Texts that are costly to check, of pieces to be repeated, and their places in an output."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

Build = Callable[[int], Any]

PIECES = [
    " ", " \n", "\r", "\xa0", "\u2028", "a  ", "a", "a ", "1.", "\U0001f600", "e\u0301", "\ud800",
    "\u0130", "QUJD", "QQ ==", "&", "&amp;", "&#", '"\'', '\\"', "\\", "{", "{}", "{a=", "[", "[]",
    "] ", "(", "`",
    "` ``", "```\n", "````a\n```\n", "~~a ", "*a **a ", "_a ", "[a](b", "![", "[a]: b\n", "[^a]: ",
    "<http://a", "> > > ", "- a\n", " - a\n", "- [ ] a\n", "|a|b|\n", "a|\n-|\n", "a\n-\n", "a\n\n",
    "$", "$$", "$$\n", "$a\n\n", "\\$a$", "\\begin{align}\n", "\\begin{align}a\n",
    "\\begin{align*}\n\n", "\\begin{align}\n\\end{align*}\n", "\\href{", "\\bbox[a ", "<", "<>",
    "<a ", '<a b="', "<!--", "<!---->", "<!a ", "<?", "<![CDATA[", "<div>", "<div></div>", "<b><p>",
    "<a><b>", "<table>a", "<tr><td>a", "<td>&nbsp;</td>", "<style>a{",
    "<style>a{color:red}</style>", '<b style="color:red">a</b>',
    '<img src="data:image/svg+xml,<svg></svg>">', "<input ", " onclick  ", "on", "=  javascript",
    '<use href="#a"/>', '<rect fill="url(#a)"/>', "<svg><g>", " a=b", "a{color:red}", "a{",
    "@media a{", "/*", "calc(", "a>b,", ":not(", "[a=b]", "\\1 ", '@import "a";', "\x1b", "\x1b[",
    "\x1b[1;", "\x1b[31m", "\x1b]0;a", "\x9d", "\x07", "a\x08", "data:image/png;base64",
    "https://a ", "a.b[",
]  # fmt: skip
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
    "Markdown: a fence of blanks": lambda n: ("text/markdown", "```" + " " * n + "!"),
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
