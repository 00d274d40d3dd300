"""A notebook in JupyterLab, used like people use it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.browser.jupyterlab import Lab, Server

SPIN = "kept = 41\nprint('begun', flush=True)\nwhile True: pass"


def test_the_launcher_offers_the_kernel_and_its_cells_show_tables_and_figures(
    lab: Lab, portraits: Path
) -> None:
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
    lab.page.screenshot(path=portraits / "jupyterlab.png")  # the README's picture


def test_stop_ends_a_cell_and_keeps_its_variables(lab: Lab, server: Server) -> None:
    lab.open(server.notebook("stop", [SPIN, "kept + 1"]))
    lab.cell(0).click()
    lab.page.keyboard.press("Shift+Enter")
    lab.output(0).locator("text=begun").wait_for()
    lab.page.locator("[data-command='notebook:interrupt-kernel'], "
                     "[data-jp-item-name=interrupt] jp-button").first.click()  # fmt: skip
    lab.output(0).locator("text=KeyboardInterrupt").first.wait_for()
    lab.idle()  # a cell that comes before the reply of a failed one is not run
    lab.run(1)
    assert "42" in lab.output(1).inner_text()


def test_restart_clears_variables_and_keeps_files(lab: Lab, server: Server) -> None:
    write = "kept = 1; print(open('/app/note', 'w').write('x'))"
    look = "import os; print(os.path.exists('/app/note'), 'kept' in dir())"
    lab.open(server.notebook("restart", [write, look]))
    lab.run_all()
    assert "True True" in lab.output(1).inner_text()
    lab.page.locator("[data-jp-item-name=restart] jp-button").click()
    lab.page.locator(".jp-Dialog button.jp-mod-accept, .jp-Dialog .jp-mod-warn").first.click()
    lab.page.wait_for_function("!document.querySelector('.jp-Dialog')")
    lab.ready()
    lab.run(1)
    assert "True False" in lab.output(1).inner_text()


def test_run_all_stops_at_an_error(lab: Lab, server: Server) -> None:
    # the page sends its cells one by one: the third must come before the second has failed
    failing = "import time; time.sleep(3); 1/0"
    lab.open(server.notebook("broken", ["print('first')", failing, "print('never')"]))
    lab.page.locator("text=Run >> nth=0").click()
    lab.page.locator(".lm-Menu-item[data-command='runmenu:run-all']").click()
    lab.output(1).locator("text=ZeroDivisionError").first.wait_for()
    lab.idle()
    assert "first" in lab.output(0).inner_text()
    assert lab.prompt(2) == "[ ]:"
    assert "never" not in lab.output(2).inner_text()


def test_what_was_left_out_is_said_below_the_output(lab: Lab, server: Server) -> None:
    source = "from IPython.display import HTML\nHTML('<b>seen</b><script>x</script>')"
    lab.open(server.notebook("notice", [source, "open('r.csv', 'w').close()"]))
    lab.run_all()
    assert lab.output(0).locator("b").inner_text() == "seen"
    notice = lab.output(0).locator("[data-mime-type='application/vnd.jupyter.stderr']").inner_text()
    assert re.search(r"scripts.*c\.WasmKernel\.outputs = 'trusted'", notice)
    note = lab.output(1).locator("[data-mime-type='text/plain']").inner_text()
    assert "[wasm-kernel] r.csv was written into this session" in note
    assert "`%session_publish r.csv`" in note


def test_typescript_in_a_notebook(lab: Lab, server: Server) -> None:
    rows = "type Row = { n: number }\nconst rows: Row[] = [{ n: 1 }, { n: 2 }]\nrows"
    failing = "rows.push({ n: 3 })\nPromise.reject(4)\nthrow new RangeError('no ' + rows.length)"
    cells = [rows, failing, "%undo", "rows.length"]
    lab.open(server.notebook("typescript", cells, kernel="wasm-javascript"))
    for number in range(len(cells)):
        lab.run(number)
    assert lab.output(0).locator("table td").all_inner_texts() == ["1", "2"]
    told = lab.output(1).inner_text()
    assert "RangeError: no 3" in told
    assert "Uncaught (in promise) 4" in told
    assert "Undone" in lab.output(2).inner_text()
    assert lab.output(3).inner_text().split()[-1] == "2"
