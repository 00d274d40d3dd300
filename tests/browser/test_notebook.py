"""A notebook in JupyterLab, used like people use it."""

from __future__ import annotations

import re

from tests.browser.jupyterlab import Lab, Server

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


def test_stop_keeps_variables_and_what_was_left_out_is_said_below_the_output(
    lab: Lab, server: Server
) -> None:
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
