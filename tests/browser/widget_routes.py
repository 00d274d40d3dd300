"""Cells that send payloads through widgets, on every route that a widget has to a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

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


def widget_cells(payloads: Iterable[Payload], some: slice, address: str) -> Iterator[str]:
    """The source of cells for some of the payloads; images and files to fetch are at `address`."""
    rows = [[p.name, p.data["text/html"]] for p in payloads if "text/html" in p.data]
    yield f"{BEGIN}\npayloads = json.loads({json.dumps(json.dumps(rows[some]))})"
    for route in ROUTES.values():
        yield f"for name, html in payloads:\n    {route}"
    yield LOOKS.replace("URL", address)
