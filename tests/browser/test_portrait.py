"""The README's picture of the kernel in JupyterLab.

`make soak` takes it and leaves it in `build/browser/jupyterlab.png`; `docs/jupyterlab.png` is a
copy that a person has checked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.jupyterlab import Lab, Server

TABLE = """import pandas as pd
sales = pd.DataFrame({'units': [310, 120, 205, 90]}, index=['north', 'south', 'east', 'west'])
sales.style.bar(color='#9ecae1', vmin=0).set_properties(width='12em')"""
CELLS = [
    TABLE,
    "sales.plot.barh(figsize=(5, 1.5), legend=False);",
    "import os\nos.listdir('/')",
    "%%limit seconds=1\nwhile True: pass",
    "sales.units.sum()  # still here",
]


@pytest.mark.soak
def test_a_portrait(lab: Lab, server: Server, portraits: Path) -> None:
    lab.page.set_viewport_size({"width": 1000, "height": 840})
    lab.open(server.notebook("sales", CELLS))
    for number in range(len(CELLS)):
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
