"""Everyday charts pass unchanged; forbidden parts of labels go, and the rest of them stays."""

from __future__ import annotations

from typing import Any

import pytest

from wasm_kernel.outputs.bundle import CleanOutput, Mode, clean

LITE, PLOTLY = "application/vnd.vegalite.v5+json", "application/vnd.plotly.v1+json"
GEO = "application/geo+json"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.20.1.json"
ROWS = [{"a": "x<y", "b": 28}, {"a": "image", "b": 55}]
BARS: dict[str, Any] = {
    "$schema": SCHEMA,
    "config": {"view": {"continuousWidth": 300, "continuousHeight": 300}},
    "data": {"name": "data-1"},
    "datasets": {"data-1": ROWS},
    "mark": {"type": "bar"},
    "encoding": {
        "x": {"field": "a", "type": "nominal", "axis": {"values": ["x<y"], "labelAngle": 0}},
        "y": {"aggregate": "mean", "field": "b", "scale": {"domain": [0, 60]}},
    },
}
LAYERED = BARS | {"layer": [{"data": None, "mark": "rule"}]}
GRID = {
    "$schema": SCHEMA,
    "data": {"values": ROWS},
    "repeat": {"row": ["a", "b"]},
    "spec": {
        "mark": "point",
        "encoding": {"x": {"field": {"repeat": "row"}}},
        "params": [{"name": "picked", "select": {"type": "point", "fields": ["a"]}}],
        "transform": [
            {"filter": {"and": [{"param": "picked"}, {"not": {"field": "b", "gt": 30}}]}},
            {"filter": {"field": "a", "oneOf": ["x", "y"]}},
            {"lookup": "a", "from": {"data": {"values": ROWS}, "key": "a", "fields": ["b"]}},
            {"regression": "a", "on": "b"},
        ],
    },
}
INLINE = BARS | {"data": {"values": ROWS}}
DECORATED = BARS | {
    "config": {"axisX": {"titleFont": "Fira Sans, Arial", "tickMinStep": 1, "domainDash": [2, 1]}},
    "mark": {
        "type": "area",
        "color": {
            "gradient": "linear",
            "x1": 1,
            "y1": 0,
            "stops": [{"offset": 0, "color": "#fff"}],
        },
        "cursor": "pointer",
        "width": {"band": 0.7},
    },
    "params": [
        {
            "name": "near",
            "select": {"type": "point", "on": "mouseover", "nearest": True, "clear": "mouseout"},
            "views": ["view_1"],
        }
    ],
    "encoding": {
        "x": {"field": "a", "scale": {"domain": [{"year": 2024, "month": 1}, {"year": 2025}]}},
        "opacity": {"condition": {"test": {"field": "b", "gt": 30}, "value": 1}, "value": 0.2},
        "xOffset": {"field": "a", "legend": {"symbolLimit": 3, "titleLimit": 90}},
    },
}
SCATTER: dict[str, Any] = {
    "data": [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [1, 2],
            "y": {"dtype": "f8", "bdata": "AAAAAAAA8D8="},
            "hovertemplate": "<b>%{hovertext}</b><br><br>sepal=%{x}<br>p=%{y:.2f}<extra></extra>",
            "hovertext": ["one", "two"],
            "marker": {"color": ["#636efa", "rgb(1, 2, 3)"], "colorscale": [[0, "#000"]]},
        }
    ],
    "layout": {
        "title": {"text": "<a href='https://example.org/'>Iris</a>, <i>sepals</i>"},
        "template": {"layout": {"geo": {"bgcolor": "white"}, "colorway": ["#636efa"]}},
        "updatemenus": [{"buttons": [{"label": "log", "args": ["yaxis.type", "log"]}]}],
        "modebar": {"bgcolor": "rgba(0, 0, 0, .5)"},
    },
}

PLACES: dict[str, Any] = {
    "type": "FeatureCollection",
    "features": [
        {
            "type": "Feature",
            "id": 7,
            "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0.5], [0, 1], [0, 0]]]},
            "properties": {"name": "Ort", "people": 12, "open": None},
        },
        {"type": "Feature", "geometry": None, "properties": None},
    ],
}


def safe(mime: str, content: Any) -> CleanOutput:
    return clean({mime: content}, {}, Mode.SAFE)


@pytest.mark.parametrize(
    ("mime", "content"),
    [
        (LITE, BARS),
        (LITE, INLINE),
        (LITE, LAYERED),
        (LITE, GRID),
        (LITE, DECORATED),
        (PLOTLY, SCATTER),
        (GEO, PLACES),
    ],
    ids=["named", "inline", "layered", "grid", "decorated", "plotly", "geojson"],
)
def test_an_everyday_chart_passes_whole(mime: str, content: Any) -> None:
    clean = safe(mime, content)
    assert clean.data == {mime: content}
    assert clean.removed == ()


def test_a_template_may_know_maps_that_the_figure_has_not() -> None:
    known = {"scatter": [{"type": "scatter"}], "scattermapbox": [{"type": "scattermapbox"}]}
    layout = {"template": {"data": known, "layout": {"mapbox": {"style": "light"}}}}
    clean = safe(PLOTLY, {"data": [{"y": [1, 2]}], "layout": layout})
    assert clean.removed == ()
    assert clean.data[PLOTLY]["layout"]["template"]["data"] == {"scatter": known["scatter"]}


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("p < 0.05, a<b, <x>", "p &lt; 0.05, a&lt;b, &lt;x>"),
        ("<span style='color: red'>r</span>", "<span style='color: red'>r</span>"),
        ("<span style='background:url(//x)'>r</span>", "r</span>"),
        ("<b style=color:red>x</b>", "x</b>"),
        ("<a href='javascript:x'>x</a>", "x</a>"),
        ("<a href='/logout'>x</a>", "x</a>"),
        ("<a href='https://x.y/%{text}'>x</a>", "x</a>"),
        ("<span style='", "&lt;span style='"),
        ("$\\href{javascript:x}{y}$", "$\\\u200bhref{javascript:x}{y}$"),
    ],
)
def test_labels_keep_what_formats(text: str, label: str) -> None:
    figure = {"data": [{"type": "scatter", "text": [text]}], "layout": {"title": {"text": text}}}
    clean = safe(PLOTLY, figure).data[PLOTLY]
    assert clean["layout"]["title"]["text"] == label
    assert clean["data"][0]["text"] == [label]


@pytest.mark.parametrize(
    "layout",
    [
        {"modebar": {"bgcolor": "rgb(1,2,3);background:url(//x.y)"}},
        {"updatemenus": [{"buttons": [{"args": ["images[0].source", "//x.y/z.png"]}]}]},
        {"updatemenus": [{"buttons": [{"args2": [{"images[0].source": "//x.y/z.png"}]}]}]},
        {"sliders": [{"steps": [{"args": ["type", ["scattergeo"]]}]}]},
        {"images": [{"source": "https://x.y/z.png"}]},
    ],
)
def test_a_figure_that_would_load_something_is_refused(layout: Any) -> None:
    clean = safe(PLOTLY, {"data": [], "layout": layout})
    assert PLOTLY not in clean.data
    assert len(clean.removed) == 1


@pytest.mark.parametrize(
    "part",
    [
        {"encoding": {"x": {"axis": {"values": {"expr": "1"}}}}},
        {"encoding": {"text": {"field": "a", "format": '") + warn("x'}}},
        {"encoding": {"x": {"legend": {"values": {"signal": "1"}}}}},
        {"layer": [{"datasets": {"d": {"url": "//x.y"}}}]},
        {"data": {"values": "a,image\n1,//x.y"}},
        {"datasets": {"d": '[{"image": 1}]'}},
        {"data": "//x.y"},
        {"transform": [{"filter": "datum.a"}]},
        {"transform": [{"filter": {"and": [{"param": "p"}, "datum.a"]}}]},
        {"transform": [{"filter": {"not": "datum.a"}}]},
        {"transform": [{"filter": {"field": "a", "equal": {"expr": "1"}}}]},
        {"transform": [{"filter": {"field": "a", "equal": 1, "not": "datum.a"}}]},
        {"transform": [{"lookup": "a", "from": {"data": {"url": "//x.y"}, "key": "a"}}]},
        {"params": [{"name": "p", "select": {"type": "point", "on": "click[1]"}}]},
        {"params": [{"name": "p", "select": {"type": "point", "loess": 1, "on": "click[1]"}}]},
        {"params": [{"name": "p", "select": {"type": "point", "toggle": "event.shiftKey"}}]},
        {"params": [{"name": "p", "select": {"type": "point", "on": {"type": "click"}}}]},
        {"params": [{"name": "p", "select": "point", "views": ["a(1)"]}]},
        {"encoding": {"x": {"scale": {"domain": [{"year": "now()"}]}}}},
        {"encoding": {"x": {"scale": {"domainMin": [["now()"]]}}}},
        {"encoding": {"x": {"condition": {"test": "datum.a", "value": 1}}}},
        {"mark": {"type": "bar", "width": {"band": "now()"}}},
        {"mark": {"type": "bar", "cursor": "url(//x.y)"}},
        {"spec": {"mark": "image"}, "repeat": ["a"], "encoding": {"url": {"field": "a"}}},
        {"mark": {"type": "bar", "tooltip": True}, "data": {"values": [{"image": "//x.y"}]}},
        {"encoding": {"tooltip": {"field": "u", "title": "im\\age"}}},
    ],
)
def test_a_chart_that_would_run_or_load_something_is_refused(part: Any) -> None:
    clean = safe(LITE, BARS | part)
    assert LITE not in clean.data
    assert len(clean.removed) == 1


def test_a_map_shows_its_properties_as_text_and_asks_the_cell_for_no_server() -> None:
    place = {
        "type": "Feature",
        "geometry": {"type": "Point", "coordinates": [1, 2]},
        "properties": {"<b>": ["<img src=x>", {"a": "<i>"}]},
        "style": {"iconUrl": "http://x/"},
    }
    shown = clean({GEO: place}, {GEO: {"url_template": "http://x/{z}"}}, Mode.SAFE)
    assert shown.metadata == {}
    assert shown.data[GEO] == {
        "type": "Feature",
        "geometry": {"type": "Point", "coordinates": [1, 2]},
        "properties": {"&lt;b&gt;": ["&lt;img src=x&gt;", {"a": "&lt;i&gt;"}]},
    }


@pytest.mark.parametrize(
    "content",
    [
        "x",
        {"type": "Map"},
        {"type": "Point", "coordinates": ["<img src=x>", 0]},
        {"type": "Feature", "geometry": {"type": ["Point"]}},
        {"type": "LineString", "coordinates": [[0, 0]] * 200_000},
    ],
)
def test_an_invalid_map_is_not_shown(content: Any) -> None:
    assert GEO not in safe(GEO, content).data
