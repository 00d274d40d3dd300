"""Charts that would run a script or ask a server for something, at once or by a reader's click."""

from __future__ import annotations

from typing import Any

Bundle = dict[str, Any]

_VEGA = "https://vega.github.io/schema/vega"
_ROW = {"values": [{"a": 1, "b": 2}]}
_LITE, _PLOTLY = "application/vnd.vegalite.v5+json", "application/vnd.plotly.v1+json"
_STYLED = "<span style='background-image:url(URL.png);cursor:url(URL.cur)'>x</span>"


def _plotly(**layout: Any) -> tuple[Bundle, Bundle]:
    trace = {"type": "scatter", "x": [1, 2], "y": [1, 2]}
    return {_PLOTLY: {"data": [trace], "layout": layout}}, {}


def _button(method: str, *args: Any) -> tuple[Bundle, Bundle]:
    button = {"label": "click", "method": method, "args": list(args)}
    return _plotly(updatemenus=[{"type": "buttons", "buttons": [button]}])


def _lite(**parts: Any) -> tuple[Bundle, Bundle]:
    return {_LITE: {"data": _ROW, "mark": "bar"} | parts}, {}


CHARTS: dict[str, tuple[Bundle, Bundle]] = {
    "vega": (
        {"application/vnd.vega.v5+json": {
            "$schema": f"{_VEGA}/v5.json", "width": 9, "height": 9,
            "data": [{"name": "d", "url": "URL.json"}],
            "signals": [{"name": "s", "on": [{"events": "click", "update": "RUN"}]}],
            "marks": [{"type": "image", "encode": {"enter": {"url": {"value": "URL.png"},
                       "width": {"value": 9}, "height": {"value": 9}}}}],
        }},
        {},
    ),
    "vegalite_as_vega": (
        {"application/vnd.vegalite.v5+json": {
            "$schema": f"{_VEGA}/v5.json", "width": 9, "height": 9,
            "marks": [{"type": "image", "encode": {"enter": {"url": {"value": "URL.png"},
                       "width": {"value": 9}, "height": {"value": 9}}}}],
        }},
        {},
    ),
    "vegalite_address": ({"application/vnd.vegalite.v5+json": "URL.json"}, {}),
    "vegalite_url": (
        {"application/vnd.vegalite.v5+json": {"data": {"url": "URL.json"}, "mark": "bar"}}, {},
    ),
    "vegalite_image": (
        {"application/vnd.vegalite.v5+json": {
            "data": {"values": [{"u": "URL.png"}]}, "mark": {"type": "image"},
            "encoding": {"url": {"field": "u"}}}}, {},
    ),
    "vegalite_href": (
        {"application/vnd.vegalite.v5+json": {
            "data": _ROW, "mark": {"type": "rect", "href": "javascript:RUN", "width": 90}
        }}, {},
    ),
    "vegalite_expression": (
        {"application/vnd.vegalite.v5+json": {
            "data": _ROW, "mark": "bar",
            "transform": [{"calculate": "this.constructor.constructor('RUN')()", "as": "c"}],
            "encoding": {"x": {"field": "c"}}}}, {},
    ),
    "vegalite_input": (
        {"application/vnd.vegalite.v5+json": {
            "data": _ROW, "mark": "bar", "params": [{"name": "p", "value": 1, "bind": {
                "input": "text", "onfocus": "RUN", "autofocus": "x"}}]}}, {},
    ),
    "vegalite_options": (
        {"application/vnd.vegalite.v5+json": {
            "data": _ROW, "mark": "bar", "usermeta": {"embedOptions": {"config": "URL.json"}}}},
        {"application/vnd.vegalite.v5+json": {"embed_options": {
            "patch": "URL.json", "config": "URL.json", "sourceHeader": "<script>RUN</script>"}}},
    ),
    "plotly_image": (
        {"application/vnd.plotly.v1+json": {"data": [], "layout": {"images": [
            {"source": "URL.png", "sizex": 1, "sizey": 1}]}}}, {},
    ),
    "plotly_map": (
        {"application/vnd.plotly.v1+json": {"data": [{"type": "scattermapbox"}], "layout": {
            "mapbox": {"style": "URL.json"}}}}, {},
    ),
    "vegalite_values": _lite(encoding={"x": {"field": "a", "axis": {"values": {
        "expr": "this.constructor.constructor('RUN')()"}}}}),
    "vegalite_values_fetch": _lite(encoding={"x": {"field": "a", "scale": {"domain": {"values": {
        "data": {"url": "URL.json"}}}}}}, layer=[{"values": {"data": {"url": "URL.json"}}}]),
    "vegalite_datasets": _lite(layer=[{"datasets": {"d": {"url": "URL.json"}}, "mark": "bar"}]),
    "vegalite_csv": _lite(
        data={"values": "a,image\n1,URL.png", "format": {"type": "csv"}},
        mark={"type": "bar", "tooltip": {"content": "data"}},
        encoding={"x": {"field": "a"}},
    ),
    "vegalite_escaped_title": _lite(
        data={"values": [{"a": 1, "u": "URL.png"}]},
        encoding={"x": {"field": "a"}, "tooltip": [{"field": "u", "title": "im\\\\age"}]},
    ),
    "plotly_title": _plotly(title={"text": _STYLED}),
    "plotly_note": _plotly(annotations=[{"text": _STYLED, "x": 1, "y": 1, "hovertext": _STYLED}]),
    "plotly_link": _plotly(annotations=[{
        "text": "<a href='javascript:RUN' popup='x'>click</a><a href='/logout'>click</a>"}]),
    "plotly_ticks": _plotly(xaxis={
        "tickprefix": "<span style='background-image:u", "tickvals": [1],
        "ticktext": ["rl(URL.png)'>x</span>"]}),
    "plotly_template": (
        {_PLOTLY: {"data": [{
            "type": "scatter", "mode": "text", "x": [1], "y": [1],
            "customdata": [["<", "span style='background-image:url(URL.png)'>x</span>"]],
            "texttemplate": "%{customdata[0]}%{customdata[1]}"}], "layout": {}}}, {},
    ),
    "plotly_bar": _plotly(modebar={
        "bgcolor": "rgb(1,2,3);background-image:url(URL.png)",
        "color": "rgb(1,2,3);fill:url(URL.svg#x)"}),
    "plotly_button": _button("relayout", "images[0]", {"source": "URL.png", "sizex": 1}),
    "plotly_button_path": _button("relayout", "images[0].source", "URL.png"),
    "plotly_button_keys": _button("relayout", {"images[0].source": "URL.png"}),
    "plotly_button_map": _button("restyle", "type", "scattermapbox"),
    "plotly_button_type": _button("restyle", {"type": ["scattergeo"]}),
    "plotly_slider": _plotly(sliders=[{"active": 0, "steps": [
        {"label": "a", "method": "relayout", "args": ["images[0].source", "URL.png"]},
        {"label": "b", "method": "relayout", "args": ["images[0].source", "URL.png"]}]}]),
    "plotly_config": (
        {_PLOTLY: {"data": [], "layout": {}, "config": {
            "plotlyServerURL": "URL", "showLink": True, "topojsonURL": "URL", "sendData": True,
            "mapboxAccessToken": "x", "editable": True}}}, {},
    ),
}  # fmt: skip
