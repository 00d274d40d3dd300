"""MIME bundles: the table with the rule for each type, and `clean`, which applies the rules.

A type that is not in `MIME_RULES` is dropped, since its renderer has not been checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from importlib import import_module
from typing import Any

import msgspec

from wasm_kernel.outputs import media, terminal
from wasm_kernel.outputs.limits import stopping_if
from wasm_kernel.outputs.removals import PICTURES, NotShowable, Removals

TYPES_MOST = 32
TYPE_CHARACTERS = 100
DISPLAY_ID_CHARACTERS = 200
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
"""The kind of output that shows a widget's model in a page."""
_PIXELS_MOST = 32_767
_WORDS_MOST = 1_000
_PLAIN = re.compile(r"[\w .,:;!?()'/+-]*").fullmatch  # whatever a page makes of it, this is text
_MENU = {"export": True, "source": False, "compiled": False, "editor": False}


class Mode(str, Enum):
    """The extent to which outputs are shown."""

    SAFE = "safe"
    STATIC = "static"
    TRUSTED = "trusted"


class CleanOutput(msgspec.Struct, frozen=True):
    """The part of an output that may be shown; `removed` holds phrases for the removed parts."""

    data: dict[str, Any]
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    removed: tuple[str, ...] = ()


def clean(
    data: Mapping[str, Any],
    metadata: Mapping[str, Any],
    mode: Mode,
    should_stop: Callable[[], bool] | None = None,
) -> CleanOutput:
    """Returns the part of a bundle that may be shown. Any thread; raises nothing.

    In mode `safe` contents are cleaned; `static` keeps text and raster images, `trusted` everything
    but terminal control. Contents whose check has not ended when `should_stop` returns True are
    left out; by default, that of the check around this one counts, if there is one.
    """
    kept: dict[str, Any] = {}
    if mode is Mode.TRUSTED:
        if isinstance(text := data.get("text/plain"), str):
            kept["text/plain"] = terminal.clean(text)
        return CleanOutput({**data, **kept}, dict(metadata))
    removals = Removals()
    for mime, content in list(data.items())[:TYPES_MOST]:
        kind = mime.lower().partition(";")[0].strip()
        if mode is Mode.STATIC and kind not in STATIC:
            removals.add(f"everything but text and raster images ({kind[:TYPE_CHARACTERS]})")
            continue
        with stopping_if(should_stop):
            _keep(kept, kind, content, removals)
    if data and not kept:
        kept["text/plain"] = "[not shown]"
    return CleanOutput(kept, _metadata_of(metadata, kept), removals.phrases)


def _keep(kept: dict[str, Any], mime: str, content: Any, removals: Removals) -> None:
    rule = MIME_RULES.get(mime)
    if rule is None:
        removals.add(f"a type of output that is not known here ({_named(mime)})")
        return
    try:
        html = _rendered(content, removals) if mime == "text/markdown" else None
        if html is not None:
            kept.setdefault("text/html", html)
        else:
            kept[mime] = rule(content, removals)
    except NotShowable as refused:
        removals.add(str(refused))
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException:  # nh3's panics are not Exceptions; unchecked content is not shown
        removals.add(f"a content that could not be checked ({_named(mime)})")


def _named(mime: str) -> str:
    return "".join(c for c in mime[:TYPE_CHARACTERS] if c.isalnum() or c in "/.+-")


def _metadata_of(metadata: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The harmless metadata of the contents in `kept`, such as sizes and whether a tree is open.

    `isolated` is dropped: it makes the front end parse the content again, as a separate document.
    """
    found: dict[str, Any] = {}
    for mime in kept:
        fields = metadata.get(mime)
        own = _display_metadata(fields) if isinstance(fields, Mapping) else {}
        if mime.startswith("application/vnd.vegalite."):
            own["embed_options"] = {"actions": _MENU}
        if own:
            found[mime] = own
    return found | _display_metadata(metadata)


def _display_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name in ("width", "height"):
        value: Any = fields.get(name)
        if type(value) in (int, float) and 0 < value <= _PIXELS_MOST:
            known[name] = value
    for name in ("expanded", "unconfined"):
        if isinstance(fields.get(name), bool):
            known[name] = fields[name]
    for name in ("root", "alt"):  # the name of a tree's root, and the words for a picture
        text = fields.get(name)
        if isinstance(text, str) and len(text) <= _WORDS_MOST and _PLAIN(text):
            known[name] = text
    if fields.get("needs_background") in ("light", "dark"):
        known["needs_background"] = fields["needs_background"]
    return known


def transient(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The one transient field of a display that front ends act on: `display_id`."""
    display_id = fields.get("display_id")
    if isinstance(display_id, str) and len(display_id) <= DISPLAY_ID_CHARACTERS:
        return {"display_id": display_id}
    return {}


# -- the MIME types that an output may have, and the rule of `safe` mode for each

Clean = Callable[[Any, Removals], Any]


def _svg(content: Any, removals: Removals) -> Any:
    from wasm_kernel.outputs.html import clean_svg

    clean = clean_svg(_as_text(content), removals)
    if not clean:
        raise NotShowable("an SVG document without an image")
    return clean


def _rendered(content: Any, removals: Removals) -> str | None:
    from wasm_kernel.outputs import markdown

    if not isinstance(content, str) or markdown.is_plain(content):
        return None
    return markdown.as_html(content, removals)


def _markdown(content: Any, _: Removals) -> Any:
    from wasm_kernel.outputs import markdown

    text = terminal.clean(_as_text(content))
    if not markdown.is_plain(text):
        raise NotShowable("Markdown with HTML, links or formulas")
    return text


def _picture(kind: str) -> Clean:
    def clean(content: Any, _: Removals) -> Any:
        if not media.is_image(kind, _as_text(content)):
            raise NotShowable(PICTURES)
        return content

    return clean


def _late(module: str, name: str, *, of_text: bool = False) -> Clean:
    """Returns a cleaner of a module that is imported with the first content of its kind."""

    def clean(content: Any, removals: Removals) -> Any:
        cleaner = getattr(import_module(f"wasm_kernel.outputs.{module}"), name)
        return cleaner(_as_text(content) if of_text else content, removals)

    return clean


def _widget(content: Any, _: Removals) -> Any:
    model = content.get("model_id") if isinstance(content, dict) else None
    if not isinstance(model, str) or not model.isalnum() or len(model) > 64:
        raise NotShowable("a widget without an id")
    return {"model_id": model, "version_major": 2, "version_minor": 0}


def _never(phrase: str) -> Clean:
    def refuse(_: Any, __: Removals) -> Any:
        raise NotShowable(phrase)

    return refuse


def _as_text(content: Any) -> str:
    if not isinstance(content, str):
        raise NotShowable("a content that is not text")
    return content


def _each(kind: str, parts: Iterable[str], clean: Clean) -> dict[str, Clean]:
    return {kind % part: clean for part in parts}


_SCRIPTS = "application/javascript text/javascript application/x-javascript"
_SCRIPTS += " application/ecmascript text/ecmascript"

# A cleaner returns the content that may be shown, or raises `NotShowable`. The reasons are about
# JupyterLab's own renderers, or those of the extension that people use.
MIME_RULES: dict[str, Clean] = {
    # Colours stay, other terminal control goes.
    "text/plain": lambda content, _: terminal.clean(_as_text(content)),
    # JupyterLab trusts fresh HTML and runs its scripts: written anew.
    "text/html": _late("html", "clean_html", of_text=True),
    # An image to JupyterLab, a part of the page elsewhere: anew.
    "image/svg+xml": _svg,
    # MathJax. Commands that link, style, load or define are disarmed.
    "text/latex": _late("tex", "clean_latex", of_text=True),
    # HTML can hide in it, and renderers differ: plain formatting passes, all else is rendered here
    # and passes as HTML.
    "text/markdown": _markdown,
    # Pixels. Base64 to its end, so that it can't leave the address it is put into.
    **{kind: _picture(kind) for kind in media.IMAGE_SIGNATURES},
    # A tree of texts, shown as texts.
    "application/json": lambda content, _: content,
    # Its renderer compiles expressions to JavaScript, fetches data and pictures by address, and
    # takes options from the chart. Charts of inline data that use none of this pass, whole; the
    # menu that shows a chart's source in a window of its own, unescaped, is turned off.
    **_each("application/vnd.vegalite.v%s+json", "3456", _late("charts", "clean_vegalite")),
    # Plotly runs nothing. Maps and pictures are fetched by address, and colours may become rules of
    # a style sheet: such figures are refused. Labels are pseudo-HTML whose styles reach the page:
    # of their tags those stay that format. Settings can send the figure away: only those for looks
    # pass.
    "application/vnd.plotly.v1+json": _late("charts", "clean_plotly"),
    # Names a widget's model; which models there are is decided where comms are opened.
    WIDGET_VIEW: _widget,
    # Its renderer builds HTML from the properties: they are escaped. The map's server is the front
    # end's own; one that the output names is dropped.
    "application/geo+json": _late("charts", "clean_geojson"),
    # Made of expressions and event handlers.
    **_each("application/vnd.vega.v%s+json", "56", _never("a Vega chart")),
    # A browser's PDF viewer runs the document's scripts, forms and links.
    "application/pdf": _never("a PDF document"),
    # Rendered into the page, with styles from the text, before it becomes an image.
    "text/vnd.mermaid": _never("a Mermaid diagram"),
    # JupyterLab runs it in its own page.
    **_each("%s", _SCRIPTS.split(), _never("scripts")),
    # Their renderers run the JavaScript that comes with them.
    **_each("application/vnd.bokehjs_%s.v0+json", ("load", "exec"), _never("a Bokeh plot")),
    **_each("application/vnd.holoviews_%s.v0+json", ("load", "exec"), _never("a HoloViews plot")),
    # A notebook's own record of its widgets, which no output has a reason to hold.
    "application/vnd.jupyter.widget-state+json": _never("widget states"),
}
"""The rule of `safe` mode for each MIME type."""

STATIC = frozenset(media.IMAGE_SIGNATURES) | {"text/plain"}
"""The types that are shown in `static` mode."""
