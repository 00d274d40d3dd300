"""A notebook in its own folder, in JupyterLab, and what people do with the files there."""

from __future__ import annotations

import pytest

from tests.browser.jupyterlab import Lab, Server

CELLS = [
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
    lab.open(server.notebook("project/analysis", CELLS))
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
