"""Charts that a front end draws from JSON: only such as are plain data.

A chart passes whole or not at all: without one of its parts it would say something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from wasm_kernel.outputs import raster
from wasm_kernel.outputs.removals import Refused
from wasm_kernel.outputs.words import words

_VEGALITE_SCHEMA = re.compile(
    r"https://vega\.github\.io/schema/vega-lite/v\d{1,2}(?:\.\d+)*\.json\Z"
)

# The words of Vega-Lite's grammar that describe a chart of inline data. What is missing either
# holds an expression, which the renderer compiles to JavaScript (`expr`, `calculate`, `filter`,
# `signal`, event streams, `formatType`), fetches (`url`), links (`href`), draws a picture from an
# address (`image`), or sets options of the renderer (`usermeta`). `bind` could make form fields
# with attributes of the chart's choice.
_VEGALITE = words("""
    $schema description title subtitle text name width height autosize type contains resize
    background padding data values datasets mark encoding layer hconcat vconcat concat columns
    spacing align bounds center resolve scale axis legend x y x2 y2 xOffset yOffset theta theta2
    radius radius2 color fill stroke opacity fillOpacity strokeOpacity strokeWidth strokeDash size
    angle shape detail order row column facet field aggregate bin maxbins step minstep nice base
    timeUnit sort op value datum band bandPosition stack domain range scheme zero reverse clamp
    round exponent constant interpolate paddingInner paddingOuter grid ticks tickCount tickSize
    labels labelAngle labelLimit labelPadding labelFontSize labelColor labelAlign labelBaseline
    labelOverlap titleFontSize titleColor titleAngle titlePadding titleAlign titleAnchor
    titleFontWeight labelFontWeight titleX titleY orient offset position domainColor gridColor
    gridDash gridOpacity tickColor tickWidth domainWidth gridWidth format symbolType symbolSize
    direction rowPadding columnPadding gradientLength cornerRadius filled point line tension
    interpolation innerRadius outerRadius padAngle cornerRadiusEnd cornerRadiusTopLeft
    cornerRadiusTopRight cornerRadiusBottomLeft cornerRadiusBottomRight extent rule median box
    ticks outliers borders dx dy baseline fontSize font fontWeight fontStyle lineHeight limit
    continuousWidth continuousHeight discreteWidth discreteHeight view config bar area circle
    square tick trail rect arc geoshape boxplot errorbar errorband style clip invalid independent
    shared count groupby as transform window joinaggregate frame ignorePeers density fold
    bandwidth steps cumulative counts regression loess quantile probs pivot key impute method
    frame keyvals stackedarea header labelOrient titleOrient labelExprs tooltip content
    anchor subtitleColor subtitleFontSize params select encodings bind condition param empty and or
    not mean max min sum
    """)
_DATA = frozenset({"values", "datasets"})
_FORBIDDEN_TEXT = frozenset({"image"})  # a tooltip shows a field of this name as a picture

_PLOTLY_TRACES = words("""
    scatter scattergl bar histogram box violin pie heatmap contour histogram2d histogram2dcontour
    scatter3d surface mesh3d cone streamtube volume isosurface scatterpolar scatterpolargl barpolar
    scatterternary sunburst treemap icicle funnel funnelarea waterfall ohlc candlestick indicator
    parcoords parcats splom sankey table carpet contourcarpet scattercarpet scattersmith image
    """)
# Maps ask for tiles and outlines; these parts of a layout exist only for them or point elsewhere.
_PLOTLY_FETCHING = frozenset({"geo", "map", "mapbox", "topojsonURL", "plotlyServerURL"})
_PLOTLY_MAPS = words("""
    scattergeo choropleth scattermapbox choroplethmapbox densitymapbox scattermap choroplethmap
    densitymap
    """)
_STYLES = ("light", "dark", "basic")
_PLOTLY_CONFIG = words(
    "responsive scrollZoom displayModeBar displaylogo staticPlot doubleClick editable locale"
)


def vegalite(spec: Any) -> Any:
    """A Vega-Lite chart of inline data.

    Raises:
        Refused: it is another thing, or does more than show its data.
    """
    if not isinstance(spec, dict):  # the renderer takes a text for an address
        raise Refused("a Vega-Lite chart that is no object")
    schema = spec.get("$schema", "https://vega.github.io/schema/vega-lite/v5.json")
    if not isinstance(schema, str) or not _VEGALITE_SCHEMA.match(schema):
        raise Refused("a chart that is not Vega-Lite")  # `$schema` decides what runs it
    for key, value in _described(spec):
        if key not in _VEGALITE:
            raise Refused(f"a Vega-Lite chart with '{key[:40]}'")
        if key == "bind" and value not in ("scales", "legend"):
            raise Refused("a Vega-Lite chart with form fields")
    if "tooltip" in {key for key, _ in _described(spec)} and _names_a_picture(spec):
        raise Refused("a Vega-Lite chart whose tooltip loads a picture")
    return {**spec, "$schema": schema}


def _described(spec: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a chart with its value, the rows of its data left out."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            yield key, value
            if key not in _DATA:
                yield from _described(value)
    elif isinstance(spec, list):
        for item in spec:
            yield from _described(item)


def _names_a_picture(spec: Any) -> bool:
    if isinstance(spec, dict):
        return any(key in _FORBIDDEN_TEXT or _names_a_picture(item) for key, item in spec.items())
    if isinstance(spec, list):
        return any(map(_names_a_picture, spec))
    return spec in _FORBIDDEN_TEXT if isinstance(spec, str) else False


def plotly(figure: Any) -> Any:
    """A Plotly figure that is drawn from its own data.

    Raises:
        Refused: it would load something, or is no figure.
    """
    if not isinstance(figure, dict) or not isinstance(figure.get("data"), list):
        raise Refused("a Plotly figure that is none")
    for trace in figure["data"]:
        kind = trace.get("type", "scatter") if isinstance(trace, dict) else None
        if kind not in _PLOTLY_TRACES:
            raise Refused(
                f"a Plotly figure of type '{str(kind)[:40]}', which is drawn from elsewhere"
            )
    kept = {key: figure[key] for key in ("data", "layout", "frames") if key in figure}
    _check_plotly(kept)
    config = figure.get("config")
    if isinstance(config, dict):
        kept["config"] = {k: v for k, v in config.items() if k in _PLOTLY_CONFIG}
    return kept


def _check_plotly(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _check_plotly(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            # buttons change a figure by paths such as `layout.images[0].source`
            for part in re.split(r"[.\[\]]+", key):
                _check_part(part, item)
            _check_plotly(item)


def _check_part(name: str, value: Any) -> None:
    if name in _PLOTLY_FETCHING and value and not _is_look(value):
        raise Refused("a Plotly figure with a map")
    texts = value if isinstance(value, list) else [value]
    if name == "type" and any(text in _PLOTLY_MAPS for text in texts if isinstance(text, str)):
        raise Refused("a Plotly figure with a map")
    if name == "source":
        for text in texts:
            if isinstance(text, str) and not _is_picture(text):
                raise Refused("a Plotly figure with a picture from elsewhere")


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
