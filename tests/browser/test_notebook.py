"""A notebook in JupyterLab, used as people use it.

`make soak` takes the README's picture and leaves it in `build/browser/jupyterlab.png`;
`docs/jupyterlab.png` is a copy that a person has checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.jupyterlab import GO, Lab, Server

SPIN = "kept = 41\nprint('begun', flush=True)\nwhile True: pass"


def test_the_launcher_offers_the_kernel_and_its_cells_show_tables_and_figures(lab: Lab) -> None:
    lab.start()
    lab.page.locator(
        ".jp-LauncherCard[data-category=Notebook]", has_text=re.compile(r"Python \(wasm sandbox\)$")
    ).click()
    lab.page.wait_for_selector(".jp-Notebook .jp-Cell")
    lab.ready()
    lab.type(0, "import pandas as pd, numpy as np\nframe = pd.DataFrame({'n': np.arange(4) ** 2})\n"
                "frame")  # fmt: skip
    lab.output(0).locator("table.dataframe").wait_for()
    assert lab.output(0).locator("tbody tr").count() == 4
    lab.idle()  # the number comes with the reply, after the table
    assert lab.prompt(0) == "[1]:"
    lab.type(1, "frame.plot(figsize=(4, 2));")
    picture = lab.output(1).locator("img[src^='data:image/png']")
    picture.wait_for()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth > 100)")
    lab.type(2, "open('/etc/passwd')")
    lab.output(2).locator("text=FileNotFoundError").first.wait_for()
    assert lab.outside == []


def test_stop_keeps_variables_and_what_was_left_out_is_said_below(lab: Lab, server: Server) -> None:
    html = "from IPython.display import HTML\nHTML('<b>seen</b><script>x</script>')"
    lab.open(server.notebook("stop", [SPIN, "kept + 1", html, "open('r.csv', 'w').close()"]))
    lab.cell(0).click()
    lab.page.keyboard.press("Shift+Enter")
    lab.output(0).locator("text=begun").wait_for()
    lab.page.locator("[data-command='notebook:interrupt-kernel'], "
                     "[data-jp-item-name=interrupt] jp-button").first.click()  # fmt: skip
    lab.output(0).locator("text=KeyboardInterrupt").first.wait_for()
    lab.idle()  # a cell that comes before the reply of a failed one is not run
    for number in (1, 2, 3):
        lab.run(number)
    assert "42" in lab.output(1).inner_text()
    assert lab.output(2).locator("b").inner_text() == "seen"
    notice = lab.output(2).locator("[data-mime-type='application/vnd.jupyter.stderr']").inner_text()
    assert re.search(r"scripts.*c\.WasmKernel\.outputs = 'trusted'", notice)
    note = lab.output(3).locator("[data-mime-type='text/plain']").inner_text()
    assert "[wasm-kernel] r.csv was written into this session" in note
    assert "`%session_publish r.csv`" in note


def test_the_first_cell_shows_how_far_a_long_start_is_and_then_its_own_output_alone(
    lab: Lab, server: Server
) -> None:
    lab.open(server.notebook("slow", ["print('ran')", "print('too')"], "wasm-slow"))
    lab.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
    lab.output(0).locator("text=compiling the guest").first.wait_for()
    assert lab.prompt(0) == lab.prompt(1) == "[*]:"
    lab.page.locator(".jp-Notebook-ExecutionIndicator[data-status=busy]").wait_for(state="attached")
    (server.work.parent / GO).touch()
    lab.output(1).locator("text=too").first.wait_for()
    lab.idle()
    assert lab.output(0).inner_text().strip() == "ran"


FOLDER = [
    "import pandas as pd; pd.read_csv('orders.csv')",
    "import matplotlib.pyplot as p; p.plot([1, 2]); p.savefig('l.png'); p.close()",
    "pd.DataFrame({'a': [7]}).to_csv('out.csv', index=False)\n%session_publish out.csv l.png",
    "open('ord",
]


@pytest.mark.soak
def test_a_notebook_in_a_folder_of_its_own(lab: Lab, server: Server) -> None:
    folder = server.work / "project"
    folder.mkdir()
    (folder / "orders.csv").write_text("customer,price\nann,3\nbob,4\n")
    lab.open(server.notebook("project/analysis", FOLDER))
    lab.run_all()
    assert lab.output(0).locator("tbody tr").count() == 2
    lab.cell(3).locator(".cm-content").click()
    lab.page.keyboard.press("End")
    lab.page.keyboard.press("Tab")
    offered = lab.page.locator(".jp-Completer .jp-Completer-match")
    offered.first.wait_for()
    assert offered.all_inner_texts() == ["orders.csv"]
    lab.page.keyboard.press("Escape")
    for name, opened in (("out.csv", ".jp-CSVViewer"), ("l.png", ".jp-ImageViewer img")):
        lab.output(2).get_by_role("link", name=f"analysis.files/{name}").click()
        lab.page.locator(opened).wait_for()
        lab.page.get_by_role("tab", name="analysis.ipynb").click()
    shown = sorted(path.name for path in folder.iterdir() if path.name[0] != ".")
    assert shown == ["analysis.files", "analysis.ipynb", "orders.csv"]


WIDGETS = "import ipywidgets as w\nfrom IPython.display import display"
OBSERVED = """
slider, shown, seen = w.IntSlider(value=3, max=10), w.Output(), []
def hear(change):
    seen.append(change['new'])
    with shown:
        print('now', change['new'])
slider.observe(hear, 'value')
display(slider, shown)
"""
PRESSED = """
button, label = w.Button(description='Press'), w.Label('waiting')
button.on_click(lambda _: setattr(label, 'value', 'pressed'))
display(button, label)
"""
INTERACT = """
@w.interact(x=(0, 5))
def square(x=2):
    print('square', x * x)
"""
PROGRESS = "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3), desc='steps'): pass"


def test_widgets_moved_by_hand_run_their_callbacks(lab: Lab, server: Server) -> None:
    lab.open(server.notebook("widgets", [WIDGETS, OBSERVED, PRESSED, INTERACT, PROGRESS, "seen"]))
    lab.run_all()
    handle = lab.output(1).locator(".noUi-handle")
    handle.focus()
    for _ in range(2):
        lab.page.keyboard.press("ArrowRight")
    lab.output(1).locator("text=now 5").wait_for()
    lab.output(2).locator("button").click()
    lab.output(2).locator("text=pressed").wait_for()
    assert "square 4" in lab.output(3).inner_text()
    lab.output(3).locator(".noUi-handle").focus()
    lab.page.keyboard.press("ArrowRight")
    lab.output(3).locator("text=square 9").wait_for()
    bar = lab.output(4).locator(".widget-html-content", has_text="3/3")
    bar.wait_for()
    assert "steps" in lab.output(4).inner_text()
    lab.run(5)
    assert lab.output(5).inner_text().strip().endswith("[4, 5]")
    assert lab.outside == []


PLOTTING = """
import sys
sys.path.append('/packages')  # of this environment, as if %pip had brought them
sys.modules['psutil'] = None
import pandas as pd, plotly.express as px, altair as alt
frame = pd.DataFrame({'a': ['x', 'y', 'z'], 'b': [1, 3, 2]})
"""
PLOTS = [
    PLOTTING,
    "px.bar(frame, x='a', y='b').show()",
    "alt.Chart(frame, width=300).mark_bar().encode(x='a', y='b', tooltip='b').interactive()",
]


@pytest.mark.soak
def test_plotly_and_altair_show_live_figures(lab: Lab, server: Server, portraits: Path) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("altair")
    lab.open(server.notebook("plots", PLOTS, "wasm-plots"))
    lab.run_all()
    plotly, altair = lab.output(1), lab.output(2)
    bars = plotly.locator(".js-plotly-plot .bars .point")
    chart = altair.locator(".vega-embed canvas, .vega-embed svg").first
    chart.wait_for()
    assert bars.count() == 3
    bars.nth(1).hover(force=True)
    assert "b=3" in hovered(plotly.locator(".hovertext"))
    plotly.screenshot(path=portraits / "plotly.png")
    altair.screenshot(path=portraits / "altair.png")
    chart.hover(position={"x": 190, "y": 200})
    assert "3" in hovered(lab.page.locator("#vg-tooltip-element"))
    for number in range(len(PLOTS)):
        assert lab.output(number).locator("[data-mime-type*=stderr]").count() == 0
    assert lab.outside == []


def hovered(shown: Any) -> str:
    """The text that appears below the mouse."""
    shown.first.wait_for()
    return str(shown.first.text_content())


TABLE = """import pandas as pd
sales = pd.DataFrame({'units': [310, 120, 205, 90]}, index=['north', 'south', 'east', 'west'])
sales.style.bar(color='#9ecae1', vmin=0).set_properties(width='12em')"""
PORTRAIT = [
    TABLE,
    "sales.plot.barh(figsize=(5, 1.5), legend=False);",
    "import os\nos.listdir('/')",
    "%%limit seconds=1\nwhile True: pass",
    "sales.units.sum()  # still here",
]


@pytest.mark.soak
def test_a_portrait(lab: Lab, server: Server, portraits: Path) -> None:
    lab.page.set_viewport_size({"width": 1000, "height": 840})
    lab.open(server.notebook("sales", PORTRAIT))
    for number in range(len(PORTRAIT)):
        lab.run(number)
    assert "725" in lab.output(4).inner_text()
    assert "home" not in lab.output(2).inner_text()
    assert "CellTimeout" in lab.output(3).inner_text()
    lab.command("application:toggle-left-area")
    lab.page.evaluate("document.activeElement.blur()")
    lab.cell(0).scroll_into_view_if_needed()
    lab.page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    lab.page.wait_for_timeout(500)
    lab.page.screenshot(path=portraits / "jupyterlab.png", animations="disabled")
    lab.command("application:toggle-left-area")
    assert (portraits / "jupyterlab.png").stat().st_size < 200_000
