"""Every MIME type that an output may have, what is done with it in `safe` mode, and why.

The renderers meant are JupyterLab's own where it has one, otherwise those of the extension that
people use. A type that is not in the table is dropped: nobody has looked at what shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wasm_kernel.outputs import markdown, raster, terminal
from wasm_kernel.outputs.math import clean_latex
from wasm_kernel.outputs.removals import PICTURES, Refused, Removals
from wasm_kernel.record import record

Clean = Callable[[Any, Removals], Any]


@record
class Kind:
    """One MIME type.

    `why` is the reason for what is done; `clean` does it: it gives the content that may be shown,
    or raises `Refused` where there is none.
    """

    why: str
    clean: Clean


def _text(content: Any, _: Removals) -> Any:
    return terminal.clean(_as_text(content))


def _html(content: Any, removals: Removals) -> Any:
    from wasm_kernel.outputs.html import clean_html

    return clean_html(_as_text(content), removals)


def _svg(content: Any, removals: Removals) -> Any:
    from wasm_kernel.outputs.svg import clean_svg

    clean = clean_svg(_as_text(content), removals)
    if not clean:
        raise Refused("an SVG image that is none")
    return clean


def _latex(content: Any, removals: Removals) -> Any:
    return clean_latex(terminal.clean(_as_text(content)), removals)


def _markdown(content: Any, _: Removals) -> Any:
    text = terminal.clean(_as_text(content))
    if not markdown.is_plain(text):
        raise Refused("Markdown with HTML, links or formulas")
    return text


def _picture(kind: str) -> Clean:
    def clean(content: Any, _: Removals) -> Any:
        if not raster.is_image(kind, _as_text(content)):
            raise Refused(PICTURES)
        return content

    return clean


def _data(content: Any, _: Removals) -> Any:
    return content


def _vegalite(content: Any, _: Removals) -> Any:
    from wasm_kernel.outputs.vegalite import vegalite

    return vegalite(content)


def _plotly(content: Any, removals: Removals) -> Any:
    from wasm_kernel.outputs.plotly import plotly

    return plotly(content, removals)


def _geojson(content: Any, _: Removals) -> Any:
    from wasm_kernel.outputs.geojson import geojson

    return geojson(content)


def _widget(content: Any, _: Removals) -> Any:
    model = content.get("model_id") if isinstance(content, dict) else None
    if not isinstance(model, str) or not model.isalnum() or len(model) > 64:
        raise Refused("a widget without an id")
    return {"model_id": model, "version_major": 2, "version_minor": 0}


def _never(phrase: str) -> Clean:
    def refuse(_: Any, __: Removals) -> Any:
        raise Refused(phrase)

    return refuse


def _as_text(content: Any) -> str:
    if not isinstance(content, str):
        raise Refused("a content that is no text")
    return content


_RASTER = "An image: pixels. Base64 to its end, so that it can't leave the address it is put into."
_SCRIPT = "It is a script, and JupyterLab runs it in its own page."
_BOKEH = "Its renderer runs the JavaScript that comes with it."
_CHART = (
    "Its renderer compiles expressions to JavaScript, fetches data and pictures by address, and "
    "takes options from the chart. Charts of inline data that use none of this pass, whole; the "
    "menu that shows a chart's source in a window of its own, unescaped, is turned off."
)

KINDS: dict[str, Kind] = {
    "text/plain": Kind("Text. Colours stay, other terminal control goes.", _text),
    "text/html": Kind("JupyterLab trusts fresh HTML and runs its scripts: written anew.", _html),
    "image/svg+xml": Kind("An image to JupyterLab, a part of the page elsewhere: anew.", _svg),
    "text/latex": Kind("MathJax. Commands that link, style, load or define are disarmed.", _latex),
    "text/markdown": Kind(
        "HTML can hide in it, and renderers differ: plain formatting passes, all else is rendered "
        "here and passes as HTML.",
        _markdown,
    ),
    "image/png": Kind(_RASTER, _picture("image/png")),
    "image/jpeg": Kind(_RASTER, _picture("image/jpeg")),
    "image/gif": Kind(_RASTER, _picture("image/gif")),
    "image/webp": Kind(_RASTER, _picture("image/webp")),
    "image/bmp": Kind(_RASTER, _picture("image/bmp")),
    "application/json": Kind("A tree of texts, shown as texts.", _data),
    "application/vnd.vegalite.v3+json": Kind(_CHART, _vegalite),
    "application/vnd.vegalite.v4+json": Kind(_CHART, _vegalite),
    "application/vnd.vegalite.v5+json": Kind(_CHART, _vegalite),
    "application/vnd.vegalite.v6+json": Kind(_CHART, _vegalite),
    "application/vnd.plotly.v1+json": Kind(
        "Plotly runs nothing. Maps and pictures are fetched by address, and colours may become "
        "rules of a style sheet: figures that do so are refused. Labels are pseudo-HTML whose "
        "styles reach the page: of their tags those stay that format. Settings can send the figure "
        "away: only those for looks pass.",
        _plotly,
    ),
    "application/vnd.jupyter.widget-view+json": Kind(
        "Names a widget's model; which models there are is decided where comms are opened.", _widget
    ),
    "application/vnd.vega.v5+json": Kind(
        "Made of expressions and event handlers.", _never("a Vega chart")
    ),
    "application/vnd.vega.v6+json": Kind(
        "Made of expressions and event handlers.", _never("a Vega chart")
    ),
    "application/geo+json": Kind(
        "Its renderer builds HTML from the properties: they are escaped. The map's server is the "
        "front end's own; one that the output names is dropped.",
        _geojson,
    ),
    "application/pdf": Kind(
        "A browser's PDF viewer runs the document's scripts, forms and links.",
        _never("a PDF document"),
    ),
    "text/vnd.mermaid": Kind(
        "Rendered into the page, with styles from the text, before it becomes an image.",
        _never("a Mermaid diagram"),
    ),
    "application/javascript": Kind(_SCRIPT, _never("scripts")),
    "text/javascript": Kind(_SCRIPT, _never("scripts")),
    "application/x-javascript": Kind(_SCRIPT, _never("scripts")),
    "application/ecmascript": Kind(_SCRIPT, _never("scripts")),
    "text/ecmascript": Kind(_SCRIPT, _never("scripts")),
    "application/vnd.bokehjs_load.v0+json": Kind(_BOKEH, _never("a Bokeh plot")),
    "application/vnd.bokehjs_exec.v0+json": Kind(_BOKEH, _never("a Bokeh plot")),
    "application/vnd.holoviews_load.v0+json": Kind(_BOKEH, _never("a HoloViews plot")),
    "application/vnd.holoviews_exec.v0+json": Kind(_BOKEH, _never("a HoloViews plot")),
    "application/vnd.jupyter.widget-state+json": Kind(
        "A notebook's own record of its widgets, which no output has a reason to hold.",
        _never("widget states"),
    ),
}

STATIC = frozenset(raster.SIGNATURES) | {"text/plain"}
"""What is shown in `static` mode."""
