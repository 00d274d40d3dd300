"""Plotly figures, which a front end draws from JSON: only such as are drawn from their own data."""

from __future__ import annotations

import re
from typing import Any

from wasm_kernel.outputs import raster
from wasm_kernel.outputs.math import tamed
from wasm_kernel.outputs.patience import look, patiently
from wasm_kernel.outputs.removals import LABELS, Refused, Removals
from wasm_kernel.outputs.words import words

_TRACES = words("""
    scatter scattergl bar histogram box violin pie heatmap contour histogram2d histogram2dcontour
    scatter3d surface mesh3d cone streamtube volume isosurface scatterpolar scatterpolargl barpolar
    scatterternary sunburst treemap icicle funnel funnelarea waterfall ohlc candlestick indicator
    parcoords parcats splom sankey table carpet contourcarpet scattercarpet scattersmith image
    """)
# Maps ask for tiles and outlines; these parts of a layout exist only for them or point elsewhere.
_FETCHING = frozenset({"geo", "map", "mapbox", "topojsonURL", "plotlyServerURL"})
_MAPS = words("""
    scattergeo choropleth scattermapbox choroplethmapbox densitymapbox scattermap choroplethmap
    densitymap
    """)
# Labels are pseudo-HTML, whose `style` Plotly puts into the page as it is. As a label may come
# together from several texts, each `<` of each text has to begin a tag that is whole and harmless.
_TAG = re.compile(
    r"</?(?:b|i|em|u|s|sub|sup|span|a|extra)\s*>|<br\s*/?>"
    r"|<a\s+href=(?P<quote>[\"'])(?:https?://|mailto:)[^\s<>\"'%{}\\^`|]+(?P=quote)"
    r"(?:\s+target=[\"']_(?:blank|self|top)[\"'])?\s*>"
    r"|<span\s+style=(?P<mark>[\"'])[\w\s#:;.,()%-]*(?P=mark)\s*>",
    re.IGNORECASE | re.ASCII,
)
_KNOWN = re.compile(r"</?(?:b|br|i|em|u|s|sub|sup|span|a)(?:\s[^<>]*)?>", re.IGNORECASE)
_FETCHES = re.compile(r"url|image|src|\\", re.IGNORECASE)
# A colour may become a part of a style sheet's rule, and Plotly takes what only begins as one.
_NO_COLOUR = re.compile(r"[;:{}@\\]|url|image", re.IGNORECASE)
_COLOURS = ("color", "colors", "colorway")

LABEL_MOST = 100_000
PATH_MOST = 1_000
_STYLES = ("light", "dark", "basic")
_CONFIG = words(
    "responsive scrollZoom displayModeBar displaylogo staticPlot doubleClick editable locale"
)


def plotly(figure: Any, removals: Removals) -> Any:
    """A Plotly figure that is drawn from its own data.

    Args:
        figure: Its data, layout, frames and config.
        removals: Hears of what was taken out of its labels.

    Raises:
        Refused: it would load something, or is no figure.
    """
    if not isinstance(figure, dict) or not isinstance(figure.get("data"), list):
        raise Refused("a Plotly figure that is none")
    for trace in figure["data"]:
        kind = trace.get("type", "scatter") if isinstance(trace, dict) else None
        if kind not in _TRACES:
            raise Refused(
                f"a Plotly figure of type '{str(kind)[:40]}', which is drawn from elsewhere"
            )
    kept = {
        key: _written(_without_maps(figure[key]) if key == "layout" else figure[key], removals)
        for key in ("data", "layout", "frames")
        if key in figure
    }
    config = figure.get("config")
    if isinstance(config, dict):
        kept["config"] = {k: v for k, v in config.items() if k in _CONFIG}
    return kept


def _without_maps(layout: Any) -> Any:
    """A layout whose template, which every figure brings, says nothing of kinds it has not."""
    template = layout.get("template") if isinstance(layout, dict) else None
    if not isinstance(template, dict) or not isinstance(template.get("data"), dict):
        return layout
    data = template["data"]
    drawn = {kind: looks for kind, looks in data.items() if kind in _TRACES}
    return layout | {"template": template | {"data": drawn}}


def _written(value: Any, removals: Removals) -> Any:
    """A part of a figure with each of its texts made harmless."""
    if isinstance(value, str):
        return _label(value, removals) if "<" in value or "$" in value else value
    if isinstance(value, list):
        return [_written(item, removals) for item in patiently(value)]
    if not isinstance(value, dict):
        return value
    for key, item in patiently(value.items()):
        for path, target in _changes(key, item):
            if len(path) > PATH_MOST:
                raise Refused("a Plotly figure with a name that is none")
            # buttons change a figure by paths such as `layout.images[0].source`
            _check_parts(re.split(r"[.\[\]]+", path), target)
    return {key: _written(item, removals) for key, item in value.items()}


def _changes(key: str, value: Any) -> list[tuple[str, Any]]:
    """What a part of a figure says of which path into it; a button's path is a text."""
    named = key in ("args", "args2") and isinstance(value, list) and len(value) > 1
    return [(key, value), *([(value[0], value[1])] if named and isinstance(value[0], str) else [])]


def _label(text: str, removals: Removals) -> str:
    """A text that Plotly shows as it was, with the tags that format and no others."""
    look()
    if len(text) > LABEL_MOST:
        raise Refused(f"a Plotly figure with a label of more than {LABEL_MOST:,} characters")
    parts, at = [], 0
    while (found := text.find("<", at)) >= 0:
        parts.append(text[at:found])
        tag = _TAG.match(text, found)
        if tag and not (tag["mark"] and _FETCHES.search(tag[0])):
            parts.append(tag[0])
            at = tag.end()
        elif acting := _KNOWN.match(text, found):
            removals.add(LABELS)
            at = acting.end()
        else:
            parts.append("&lt;")  # Plotly reads entities, after tags
            at = found + 1
    return tamed("".join([*parts, text[at:]]), removals)


def _check_parts(names: list[str], value: Any) -> None:
    """Refuse a value that stands at a path with these names in it, whichever of them it is for."""
    if value and not _FETCHING.isdisjoint(names) and not _is_look(value):
        raise Refused("a Plotly figure with a map")
    every = value if isinstance(value, list) else [value]
    texts = [text for text in every if isinstance(text, str)]
    if "type" in names and not _MAPS.isdisjoint(texts):
        raise Refused("a Plotly figure with a map")
    if "source" in names and not all(map(_is_picture, texts)):
        raise Refused("a Plotly figure with a picture from elsewhere")
    colour = any(name.endswith(_COLOURS) for name in names)
    if colour and any(map(_NO_COLOUR.search, texts)):
        raise Refused("a Plotly figure with a colour that is none")


def _is_picture(address: str) -> bool:
    head, _, content = address.partition(";base64,")
    return raster.is_image(head.removeprefix("data:"), content)


def _is_look(value: Any) -> bool:
    """Whether a template says by it how maps would look, and no more."""
    if not isinstance(value, dict):
        return isinstance(value, bool)
    return all(
        isinstance(item, bool) or key.endswith("color") or (key == "style" and item in _STYLES)
        for key, item in value.items()
    )
