"""Charts that a front end draws from JSON: Plotly, Vega-Lite and GeoJSON, with inline data only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

from wasm_kernel.outputs import media
from wasm_kernel.outputs.limits import check_stopped, stoppable
from wasm_kernel.outputs.removals import LABELS, NotShowable, Removals, words
from wasm_kernel.outputs.tex import safe_tex

# -- Plotly

_TRACES = words("""
    scatter scattergl bar histogram box violin pie heatmap contour histogram2d histogram2dcontour
    scatter3d surface mesh3d cone streamtube volume isosurface scatterpolar scatterpolargl barpolar
    scatterternary sunburst treemap icicle funnel funnelarea waterfall ohlc candlestick indicator
    parcoords parcats splom sankey table carpet contourcarpet scattercarpet scattersmith image
    """)
# Maps fetch tiles and outlines; these parts of a layout are only for maps or point elsewhere.
_FETCHING = frozenset({"geo", "map", "mapbox", "topojsonURL", "plotlyServerURL"})
_MAPS = words("""
    scattergeo choropleth scattermapbox choroplethmapbox densitymapbox scattermap choroplethmap
    densitymap
    """)
# Labels are pseudo-HTML, whose `style` Plotly puts into the page as it is. A label may be put
# together from several texts, so each `<` of each text has to begin a whole and harmless tag.
_TAG = re.compile(
    r"</?(?:b|i|em|u|s|sub|sup|span|a|extra)\s*>|<br\s*/?>"
    r"|<a\s+href=(?P<quote>[\"'])(?:https?://|mailto:)[^\s<>\"'%{}\\^`|]+(?P=quote)"
    r"(?:\s+target=[\"']_(?:blank|self|top)[\"'])?\s*>"
    r"|<span\s+style=(?P<mark>[\"'])[\w\s#:;.,()%-]*(?P=mark)\s*>",
    re.IGNORECASE | re.ASCII,
)
_KNOWN = re.compile(r"</?(?:b|br|i|em|u|s|sub|sup|span|a)(?:\s[^<>]*)?>", re.IGNORECASE)
_FETCHING_STYLE = re.compile(r"url|image|src|\\", re.IGNORECASE)
# Plotly may write a colour into a style sheet, and accepts any text that begins like a colour.
_NO_COLOUR = re.compile(r"[;:{}@\\]|url|image", re.IGNORECASE)
_COLOURS = ("color", "colors", "colorway")

LABEL_MOST = 100_000
PATH_MOST = 1_000
_MAP_STYLES = ("light", "dark", "basic")
_CONFIG = words(
    "responsive scrollZoom displayModeBar displaylogo staticPlot doubleClick editable locale"
)


def clean_plotly(figure: Any, removals: Removals) -> Any:
    """Returns a Plotly figure if it is drawn from its own data; else raises `NotShowable`."""
    if not isinstance(figure, dict) or not isinstance(figure.get("data"), list):
        raise NotShowable("an invalid Plotly figure")
    for trace in figure["data"]:
        kind = trace.get("type", "scatter") if isinstance(trace, dict) else None
        if kind not in _TRACES:
            named = str(kind)[:40]
            raise NotShowable(f"a Plotly figure of type '{named}', which needs data from elsewhere")
    kept = {
        key: _clean_texts(_without_maps(figure[key]) if key == "layout" else figure[key], removals)
        for key in ("data", "layout", "frames")
        if key in figure
    }
    config = figure.get("config")
    if isinstance(config, dict):
        kept["config"] = {k: v for k, v in config.items() if k in _CONFIG}
    return kept


def _without_maps(layout: Any) -> Any:
    """A layout without the parts of its template for kinds of traces that are not drawn here.

    Every figure brings a template with looks for all kinds, maps included.
    """
    template = layout.get("template") if isinstance(layout, dict) else None
    if not isinstance(template, dict) or not isinstance(template.get("data"), dict):
        return layout
    data = template["data"]
    drawn = {kind: looks for kind, looks in data.items() if kind in _TRACES}
    return layout | {"template": template | {"data": drawn}}


def _clean_texts(value: Any, removals: Removals) -> Any:
    """A part of a figure with all its texts made harmless."""
    if isinstance(value, str):
        return _label(value, removals) if "<" in value or "$" in value else value
    if isinstance(value, list):
        return [_clean_texts(item, removals) for item in stoppable(value)]
    if not isinstance(value, dict):
        return value
    for key, item in stoppable(value.items()):
        for path, target in _changes(key, item):
            if len(path) > PATH_MOST:
                raise NotShowable("a Plotly figure with a name that is too long")
            # buttons change a figure by paths such as `layout.images[0].source`
            _check_parts(re.split(r"[.\[\]]+", path), target)
    return {key: _clean_texts(item, removals) for key, item in value.items()}


def _changes(key: str, value: Any) -> list[tuple[str, Any]]:
    """The paths that a part of a figure sets, with their values; a button's path is a text."""
    named = key in ("args", "args2") and isinstance(value, list) and len(value) > 1
    return [(key, value), *([(value[0], value[1])] if named and isinstance(value[0], str) else [])]


def _label(text: str, removals: Removals) -> str:
    """A text that Plotly shows, without all tags but those that format."""
    check_stopped()
    if len(text) > LABEL_MOST:
        raise NotShowable(f"a Plotly figure with a label of more than {LABEL_MOST:,} characters")
    parts, at = [], 0
    while (found := text.find("<", at)) >= 0:
        parts.append(text[at:found])
        tag = _TAG.match(text, found)
        if tag and not (tag["mark"] and _FETCHING_STYLE.search(tag[0])):
            parts.append(tag[0])
            at = tag.end()
        elif acting := _KNOWN.match(text, found):
            removals.add(LABELS)
            at = acting.end()
        else:
            parts.append("&lt;")  # Plotly reads entities, after tags
            at = found + 1
    return safe_tex("".join([*parts, text[at:]]), removals)


def _check_parts(names: list[str], value: Any) -> None:
    """Refuses a value that would be harmful for any of the names in its path."""
    if value and not _FETCHING.isdisjoint(names) and not _is_look(value):
        raise NotShowable("a Plotly figure with a map")
    every = value if isinstance(value, list) else [value]
    texts = [text for text in every if isinstance(text, str)]
    if "type" in names and not _MAPS.isdisjoint(texts):
        raise NotShowable("a Plotly figure with a map")
    if "source" in names and not all(map(_is_picture, texts)):
        raise NotShowable("a Plotly figure with a picture from elsewhere")
    colour = any(name.endswith(_COLOURS) for name in names)
    if colour and any(map(_NO_COLOUR.search, texts)):
        raise NotShowable("a Plotly figure with an invalid colour")


def _is_picture(address: str) -> bool:
    head, _, content = address.partition(";base64,")
    return media.is_image(head.removeprefix("data:"), content)


def _is_look(value: Any) -> bool:
    """Returns whether a value in a template says only how maps would look."""
    if not isinstance(value, dict):
        return isinstance(value, bool)
    return all(
        isinstance(item, bool) or key.endswith("color") or (key == "style" and item in _MAP_STYLES)
        for key, item in value.items()
    )


# -- Vega-Lite

_VEGALITE_SCHEMA = re.compile(
    r"https://vega\.github\.io/schema/vega-lite/v\d{1,2}(?:\.\d+)*\.json\Z"
)

# The words of Vega-Lite's grammar that describe a chart of inline data. The missing words hold an
# expression, which the renderer compiles to JavaScript (`expr`, `calculate`, `filter`, `signal`,
# event streams, `formatType`), fetch (`url`), link (`href`), draw a picture from an address
# (`image`), or set options of the renderer (`usermeta`). `bind` could make form fields with
# attributes of the chart's choice.
_VEGALITE_WORDS = words("""
    $schema description title subtitle text name width height autosize type contains resize
    background padding data values datasets mark encoding layer hconcat vconcat concat columns
    spacing align bounds center resolve scale axis legend x y x2 y2 xOffset yOffset theta theta2
    radius radius2 color fill stroke opacity fillOpacity strokeOpacity strokeWidth strokeDash size
    angle shape detail order row column facet field aggregate bin maxbins step minstep nice base
    timeUnit sort op value datum stack domain range scheme zero reverse clamp
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
    not mean max min sum repeat spec fields filter equal lt lte gt gte oneOf valid lookup from
    default test flatten stops axisX axisY axisBand axisDiscrete axisPoint axisQuantitative
    axisTemporal axisTop axisBottom axisLeft axisRight headerRow headerColumn headerFacet xError
    xError2 yError yError2 projection latitude longitude latitude2 longitude2
    """)
# The renderer copies some numbers into expressions, such as a year, and some names into CSS, such
# as a cursor's. So numbers are no text, and names have no signs of a call.
_VEGALITE_NUMBERS = words("""
    band bandPosition year month date day quarter hours minutes seconds milliseconds utc binned
    binSpacing bandSize minBandSize maxBandSize bandPaddingInner bandPaddingOuter discreteBandSize
    barBandPaddingInner rectBandPaddingInner tickBandPaddingInner continuousBandSize
    continuousPadding pointPadding minSize maxSize minOpacity maxOpacity minFontSize maxFontSize
    minStrokeWidth maxStrokeWidth top bottom left right x1 y1 r1 r2 x2Offset y2Offset thetaOffset
    theta2Offset radiusOffset radius2Offset rangeMin rangeMax domainMin domainMid domainMax
    domainDash domainDashOffset domainOpacity gridDashOffset tickDash tickDashOffset tickOpacity
    tickMinStep tickOffset tickRound tickExtra minExtent maxExtent labelBound labelFlush
    labelFlushOffset labelLineHeight labelOffset labelOpacity labelSeparation titleLimit
    titleLineHeight titleOpacity subtitleLineHeight subtitlePadding legendX legendY clipHeight
    gradientLabelLimit gradientLabelOffset gradientOpacity gradientStrokeWidth gradientThickness
    symbolDash symbolDashOffset symbolLimit symbolOffset symbolOpacity symbolStrokeWidth
    strokeDashOffset strokeMiterLimit strokeOffset thickness zindex aria disable aspect smooth
    reflectX reflectY rotate parallels nearest toggle zoom translate
    """)
_VEGALITE_NAMES = words("""
    views gradient labelFont labelFontStyle titleFont titleFontStyle titleBaseline subtitleFont
    subtitleFontStyle subtitleFontWeight labelAnchor fillColor strokeColor gradientStrokeColor
    symbolFillColor symbolStrokeColor strokeCap strokeJoin domainCap gridCap tickCap gridAlign
    tickBand blend dir cursor symbolDirection gradientDirection category ordinal ramp
    diverging heatmap
    """)
_NAME = re.compile(r"[\w #.,-]*\Z")
# The renderer copies a number's or date's format into a text of an expression as it is.
_FORMAT = re.compile(r"[^\"'`\\\x00-\x1f\u2028\u2029]*\Z")
_EVENTS = words("click dblclick mouseover mouseout mousemove pointerover pointerout pointermove")
_FITTING = words("regression loess")
_FITTED = _FITTING | words("on groupby as method order extent params bandwidth")
# The members of a condition that selects rows. A condition that is text would be an expression.
_COMPARISONS = words("param empty field bin timeUnit equal lt lte gt gte range oneOf valid")
# A tooltip shows a field of this name as a picture, also when these characters surround the name.
_PICTURE = "image"
_AROUND_NAMES = str.maketrans("", "", "\\[]\"'. ")


def clean_vegalite(spec: Any, _: Removals) -> Any:
    """Returns a Vega-Lite chart if it only shows inline data; else raises `NotShowable`.

    A chart passes whole or not at all, since without one of its parts it would say something else.
    """
    if not isinstance(spec, dict):  # the renderer takes a text as an address
        raise NotShowable("a Vega-Lite chart that is not an object")
    schema = spec.get("$schema", "https://vega.github.io/schema/vega-lite/v5.json")
    if not isinstance(schema, str) or not _VEGALITE_SCHEMA.match(schema):
        raise NotShowable("a chart that is not Vega-Lite")  # `$schema` decides what runs it
    described = list(_described(spec))
    for key, value in described:
        if not _is_allowed(key, value):
            raise NotShowable(f"a Vega-Lite chart with '{key[:40]}'")
        if key == "bind" and value not in ("scales", "legend"):
            raise NotShowable("a Vega-Lite chart with form fields")
    if any(key == "tooltip" for key, _ in described) and _names_a_picture(spec):
        raise NotShowable("a Vega-Lite chart whose tooltip loads a picture")
    return {**spec, "$schema": schema}


def _is_allowed(key: str, value: Any) -> bool:
    """Returns whether a chart may have this word; the parts of its value are judged alone."""
    if key == "format" and isinstance(value, str):
        return _FORMAT.match(value) is not None
    if key in _VEGALITE_WORDS:
        return True
    if key in ("on", "clear"):
        return isinstance(value, bool) or (isinstance(value, str) and value in _EVENTS)
    for item in stoppable(value if isinstance(value, list) else [value]):
        named = key in _VEGALITE_NAMES and isinstance(item, str) and _NAME.match(item)
        if not named and not isinstance(item, int | float | dict | None):
            return False
    return key in _VEGALITE_NUMBERS or key in _VEGALITE_NAMES


def _described(spec: Any, *, outermost: bool = True) -> Iterator[tuple[str, Any]]:
    """Yields every key of a chart with its value, except for the rows of its data.

    Rows stand in `data.values` and, by name, in the chart's own `datasets`. Elsewhere `values`
    belongs to an axis or a legend, and may be an expression.
    """
    if isinstance(spec, dict):
        for key, value in stoppable(spec.items()):
            if key == "on" and isinstance(value, str) and _is_fitted(spec):
                continue  # the name of a field; elsewhere, it would be an event
            yield key, value
            if key in ("filter", "test"):
                _check_filter(value)
            if key == "data":
                yield from _of_data(value)
            elif key != "datasets":
                yield from _described(value, outermost=False)
            elif not outermost or not isinstance(value, dict):
                raise NotShowable("a Vega-Lite chart with data in a strange place")
            else:
                _check_rows(*value.values())
    elif isinstance(spec, list):
        for item in stoppable(spec):
            yield from _described(item, outermost=False)


def _is_fitted(transform: dict[str, Any]) -> bool:
    """Returns whether a part of a chart can only be a curve that is fitted to points.

    A selection, whose `on` is an event, has a type; a list of transforms holds no selections.
    """
    return set(transform) <= _FITTED and not _FITTING.isdisjoint(transform)


def _check_filter(condition: Any) -> None:
    """Refuses a condition that is an expression, which the renderer would compile."""
    if isinstance(condition, dict):
        parts = [condition[name] for name in ("and", "or", "not") if name in condition]
        if parts and len(condition) == 1:
            every = parts[0] if isinstance(parts[0], list) else parts
            for part in stoppable(every):
                _check_filter(part)
            return
        if not parts and _COMPARISONS.issuperset(condition):
            return
    raise NotShowable("a Vega-Lite chart with a filter that is an expression")


def _of_data(data: Any) -> Iterator[tuple[str, Any]]:
    if data is None:
        return
    if not isinstance(data, dict):
        raise NotShowable("a Vega-Lite chart with data in a strange place")
    for key, value in data.items():
        yield key, value
        if key == "values":
            _check_rows(value)
        else:
            yield from _described(value, outermost=False)


def _check_rows(*tables: Any) -> None:
    """Refuses a table written as text: it would be parsed later, with names not checked here."""
    if not all(isinstance(table, list | dict) for table in tables):
        raise NotShowable("a Vega-Lite chart whose data is a text")


def _names_a_picture(spec: Any) -> bool:
    if isinstance(spec, dict):
        every = stoppable(spec.items())
        return any(_names_a_picture(key) or _names_a_picture(item) for key, item in every)
    if isinstance(spec, list):
        return any(map(_names_a_picture, stoppable(spec)))
    return isinstance(spec, str) and spec.translate(_AROUND_NAMES) == _PICTURE


# -- GeoJSON

_GEOJSON_TYPES = words("""
    Feature FeatureCollection GeometryCollection Point MultiPoint LineString MultiLineString
    Polygon MultiPolygon
    """)
_GEOJSON_PARTS = ("geometry", "geometries", "features")
_GEOJSON_MOST = 100_000  # numbers, texts and lists in all
_PART_CHARACTERS = 100  # characters of a text that count as one part


def clean_geojson(content: Any, _: Removals) -> dict[str, Any]:
    """Returns GeoJSON with only the members that RFC 7946 defines, texts escaped; or `NotShowable`.

    JupyterLab's extension puts properties into an HTML table unchanged. A server of tiles that the
    metadata names is not passed on, so a cell can't make the page fetch from it.
    """
    if _size(content) > _GEOJSON_MOST:
        raise NotShowable("a GeoJSON map of too many parts")
    return _geojson_object(content)


def _geojson_object(content: Any) -> dict[str, Any]:
    kind = content.get("type") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _GEOJSON_TYPES:
        raise NotShowable("an invalid GeoJSON map")
    kept: dict[str, Any] = {"type": kind}
    for name in ("coordinates", "bbox"):
        if name in content:
            kept[name] = _coordinates(content[name])
    for name in _GEOJSON_PARTS:
        part = content.get(name)
        if isinstance(part, list):
            kept[name] = [_geojson_object(item) for item in part]
        elif name in content:
            kept[name] = None if part is None else _geojson_object(part)
    for name in ("properties", "id"):
        if name in content:
            kept[name] = _escaped(content[name])
    return kept


def _coordinates(value: Any) -> Any:
    if isinstance(value, list):
        return [_coordinates(item) for item in value]
    if type(value) not in (int, float):
        raise NotShowable("a GeoJSON map with coordinates that are not numbers")
    return value


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {escape(key): _escaped(item) for key, item in value.items()}
    return value


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(_size(item) for item in stoppable(value.values()))
    if isinstance(value, str):
        return 1 + len(value) // _PART_CHARACTERS
    return 1 + (sum(_size(item) for item in stoppable(value)) if isinstance(value, list) else 0)
