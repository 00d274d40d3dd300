"""Vega-Lite charts, which a front end draws from JSON: only such as are plain data.

A chart passes whole or not at all: without one of its parts it would say something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from wasm_kernel.outputs.patience import patiently
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
# A tooltip shows a field of this name as a picture; a name may come with what stands around names.
_PICTURE = "image"
_AROUND_NAMES = str.maketrans("", "", "\\[]\"'. ")


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
    described = list(_described(spec))
    for key, value in described:
        if key not in _VEGALITE:
            raise Refused(f"a Vega-Lite chart with '{key[:40]}'")
        if key == "bind" and value not in ("scales", "legend"):
            raise Refused("a Vega-Lite chart with form fields")
    if any(key == "tooltip" for key, _ in described) and _names_a_picture(spec):
        raise Refused("a Vega-Lite chart whose tooltip loads a picture")
    return {**spec, "$schema": schema}


def _described(spec: Any, *, outermost: bool = True) -> Iterator[tuple[str, Any]]:
    """Every key of a chart with its value, the rows of its data left out.

    Rows are what stands in `data.values` and, by name, in the chart's own `datasets`. Elsewhere
    `values` are those of an axis or a legend, which may be an expression.
    """
    if isinstance(spec, dict):
        for key, value in patiently(spec.items()):
            yield key, value
            if key == "data":
                yield from _of_data(value)
            elif key != "datasets":
                yield from _described(value, outermost=False)
            elif not outermost or not isinstance(value, dict):
                raise Refused("a Vega-Lite chart with data in a strange place")
            else:
                _check_rows(*value.values())
    elif isinstance(spec, list):
        for item in patiently(spec):
            yield from _described(item, outermost=False)


def _of_data(data: Any) -> Iterator[tuple[str, Any]]:
    if data is None:
        return
    if not isinstance(data, dict):
        raise Refused("a Vega-Lite chart with data in a strange place")
    for key, value in data.items():
        yield key, value
        if key == "values":
            _check_rows(value)
        else:
            yield from _described(value, outermost=False)


def _check_rows(*tables: Any) -> None:
    """Refuse a table that is written as text: it would be read, with names of its own, later."""
    if not all(isinstance(table, list | dict) for table in tables):
        raise Refused("a Vega-Lite chart whose data is a text")


def _names_a_picture(spec: Any) -> bool:
    if isinstance(spec, dict):
        every = patiently(spec.items())
        return any(_names_a_picture(key) or _names_a_picture(item) for key, item in every)
    if isinstance(spec, list):
        return any(map(_names_a_picture, patiently(spec)))
    return isinstance(spec, str) and spec.translate(_AROUND_NAMES) == _PICTURE
