"""Figures of Plotly and Altair: drawn from their data, and alive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.jupyterlab import Lab, Server

BEGIN = """
import sys
sys.path.append('/packages')  # of this environment, as if %pip had brought them
sys.modules['psutil'] = None
import pandas as pd, plotly.express as px, altair as alt
frame = pd.DataFrame({'a': ['x', 'y', 'z'], 'b': [1, 3, 2]})
"""
CELLS = [
    BEGIN,
    "px.bar(frame, x='a', y='b').show()",
    "alt.Chart(frame, width=300).mark_bar().encode(x='a', y='b', tooltip='b').interactive()",
]


@pytest.mark.soak
def test_plotly_and_altair_show_figures_that_answer(
    lab: Lab, server: Server, portraits: Path
) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("altair")
    lab.open(server.notebook("plots", CELLS, "wasm-plots"))
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
    for number in range(len(CELLS)):
        assert lab.output(number).locator("[data-mime-type*=stderr]").count() == 0
    assert lab.outside == []


def hovered(shown: Any) -> str:
    """The text that appears below the mouse."""
    shown.first.wait_for()
    return str(shown.first.text_content())
