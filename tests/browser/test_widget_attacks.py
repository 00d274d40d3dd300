"""ATTACKS 25 through widgets, in the real JupyterLab: what a widget is told does nothing either."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.browser.canary import Canary
from tests.browser.jupyterlab import Lab, Server
from tests.browser.test_attacks import (
    DESTRUCTIVE,
    PAGE,
    POKE,
    RAN,
    Seen,
    armed,
    assert_untouched,
)
from tests.outputs.payloads import Payload

BEGIN = """
import json, ipywidgets as w
from comm import create_comm
from traitlets import Unicode
class Disguised(w.Text):
    _view_name = Unicode('HTMLView').tag(sync=True)
def raw(**state):
    made = w.FloatSlider()
    whole = {**made.get_state(), **state}
    whole = {name: value for name, value in whole.items() if name not in ('layout', 'style')}
    opened = create_comm('jupyter.widget', data={'state': whole, 'buffer_paths': []},
                         metadata={'version': '2.1.0'})
    view = {'model_id': opened.comm_id, 'version_major': 2, 'version_minor': 0}
    display({'application/vnd.jupyter.widget-view+json': view}, raw=True)
"""
ROUTES = {
    "html": "display(w.HTML(html))",
    "math": "display(w.HTMLMath(html))",
    "update": "h = w.HTML(); display(h); h.value = html",
    "description": "display(w.Checkbox(description=html, description_allow_html=True))",
    "later": "t = w.Text(description=html[:1900]); display(t); t.description_allow_html = True",
    "output": "display(w.Output(outputs=({'output_type': 'display_data', 'data': "
    "{'text/html': html}, 'metadata': {}},)))",
    "captured": "o = w.Output(); display(o); o.append_display_data(w.HTML(html))",
    "link": "t = w.Textarea(html); h = w.HTML(); w.jslink((t, 'value'), (h, 'value')); display(h)",
    "disguise": "display(Disguised(html))",
    "text": "display(w.Text(html), w.Label(html), w.Button(description=html, tooltip=html), "
    "w.Select(options=[html]), w.ToggleButtons(options=[html]), w.Tab([w.Label(html)], "
    "titles=[html]), w.Combobox(options=[html]))",
    "format": "raw(readout_format=html)",
    "version": "raw(_model_module_version=html)",
    "name": "raw(_model_name=html)",
    "part": "display(w.HBox([w.Label('x')])); raw(layout='IPY_MODEL_' + html)",
}
LOOKS = """
cover = w.HTML('<h1>covered</h1>')
for name in ('jp-Dialog', 'lm-Menu', 'jp-mod-searchable'): cover.add_class(name)
icon = w.ToggleButtons(options=['a'], icons=['x jp-Dialog'])
far = w.Button(description='far', layout=w.Layout(width='5000px', height='5000px',
                                                  margin='-3000px', top='-3000px', left='-3000px'))
style = w.Label('x', style={'background': 'url(URL/style)'})
layout = w.Label('y', layout=w.Layout(border='1px solid url(URL/border)'))
picture = w.Image(value=b'URL/picture', format='url')
film = w.Video(value=b'URL/film', format='url', autoplay=True)
display(cover, icon, far, style, layout, picture, film)
"""


SOME, MORE = 9, 3
"""Each so many-th payload goes on every route; on all of them they would take the page minutes."""
EACH = pytest.mark.parametrize("every", [SOME, pytest.param(MORE, marks=pytest.mark.soak)])


def cells(
    payloads: list[Payload], canary: Canary, routes: Iterable[str], every: int
) -> Iterator[str]:
    rows = [[p.name, p.data["text/html"]] for p in payloads if "text/html" in p.data]
    yield f"{BEGIN}\npayloads = json.loads({json.dumps(json.dumps(rows[::every]))})"
    for route in routes:
        yield f"for name, html in payloads:\n    {ROUTES[route]}"
    yield LOOKS.replace("URL", canary.address)


@EACH
def test_no_widget_runs_fetches_or_covers_anything(
    lab: Lab, server: Server, canary: Canary, every: int
) -> None:
    seen = Seen()
    seen.watch(lab.page)
    notebook = server.notebook("widget-attack", list(cells(armed(canary), canary, ROUTES, every)))
    lab.open(notebook)
    before: Any = lab.page.evaluate(PAGE)
    lab.run_all()
    assert lab.page.evaluate(POKE) > 1500 // every
    assert_untouched(lab, seen, canary, before)


@EACH
def test_a_page_that_is_loaded_anew_is_told_nothing_else(
    lab: Lab, server: Server, canary: Canary, every: int
) -> None:
    """It asks the kernel for every widget at once, and each comes whole."""
    seen = Seen()
    seen.watch(lab.page)
    sources = list(cells(armed(canary), canary, ("html", "later", "output", "link"), every))
    notebook = server.notebook("widget-again", sources)
    lab.open(notebook)
    before: Any = lab.page.evaluate(PAGE)
    lab.run_all()
    lab.command("docmanager:save")
    lab.open(notebook)
    lab.page.wait_for_function(
        f"document.querySelectorAll('.widget-html-content').length > {180 // every}"
    )
    lab.settle()
    assert lab.page.evaluate(POKE) > 1500 // every
    assert_untouched(lab, seen, canary, before)


@pytest.mark.soak
def test_the_control_run_notices(lab: Lab, server: Server, canary: Canary) -> None:
    Seen().watch(lab.page)
    sources = list(cells(armed(canary, DESTRUCTIVE), canary, ROUTES, MORE))
    lab.open(server.notebook("widget-control", sources, "wasm-trusted"))
    lab.run_all()
    lab.page.evaluate(POKE)
    ran = lab.page.evaluate(RAN)
    fetched = {path.split("/")[1].split(".")[0] for path in canary.heard}
    assert len(ran) >= 10, ran
    assert {"style", "picture", "film"} <= fetched, sorted(fetched)
