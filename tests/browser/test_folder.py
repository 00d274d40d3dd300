"""A notebook in its own folder, in JupyterLab, and what people do with the files there."""

from __future__ import annotations

import pytest

from tests.browser.jupyterlab import Lab, Server

CELLS = [
    "import pandas as pd; pd.read_csv('orders.csv')",
    "%load_ext autoreload\n%autoreload 2\nimport helper; helper.double(21)",
    "helper.double(21)",
    "%cd data\n!ls\n%cd ..",
    "%run helper.py",
    "from glob import glob; print(sorted(glob('**/*.csv', recursive=True)))",
    "from IPython.display import FileLink, Image\nFileLink('orders.csv')",
    "import matplotlib.pyplot as p; p.plot([1, 2]); p.savefig('l.png'); p.close(); Image('l.png')",
    "pd.DataFrame({'a': [7]}).to_csv('out.csv', index=False)\n%session_publish out.csv l.png",
    "open('ord",
]
HELPER = "def double(n):\n    return {}\nif __name__ == '__main__':\n    print('ran', __file__)\n"


@pytest.mark.soak
def test_a_notebook_in_a_folder_of_its_own(lab: Lab, server: Server) -> None:
    folder = server.work / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "orders.csv").write_text("customer,price\nann,3\nbob,4\n")
    (folder / "data" / "more.csv").write_text("x\n1\n")
    (folder / "helper.py").write_text(HELPER.format("2 * n"))
    lab.open(server.notebook("project/analysis", CELLS))
    lab.run_all()
    assert lab.output(0).locator("tbody tr").count() == 2
    assert "42" in lab.output(1).inner_text()
    assert lab.output(3).inner_text().split() == ["/notebook/data", "more.csv", "/notebook"]
    assert "ran /notebook/helper.py" in lab.output(4).inner_text()
    assert "['data/more.csv', 'orders.csv']" in lab.output(5).inner_text()
    assert "orders.csv" in lab.output(6).inner_text()
    assert lab.output(7).locator("img").evaluate("image => image.naturalWidth > 100")
    (folder / "helper.py").write_text(HELPER.format("'twice ' + str(n)"))
    lab.run(2)
    assert "'twice 21'" in lab.output(2).inner_text()
    lab.cell(9).locator(".cm-content").click()
    lab.page.keyboard.press("End")
    lab.page.keyboard.press("Tab")
    offered = lab.page.locator(".jp-Completer .jp-Completer-match")
    offered.first.wait_for()
    assert offered.all_inner_texts() == ["orders.csv"]
    lab.page.keyboard.press("Escape")
    for name, opened in (("out.csv", ".jp-CSVViewer"), ("l.png", ".jp-ImageViewer img")):
        lab.output(8).get_by_role("link", name=f"analysis.files/{name}").click()
        lab.page.locator(opened).wait_for()
        lab.page.get_by_role("tab", name="analysis.ipynb").click()
    assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == [
        "analysis.files",
        "analysis.ipynb",
        "data",
        "helper.py",
        "orders.csv",
    ]
