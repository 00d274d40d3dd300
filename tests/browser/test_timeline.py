"""The timeline beside a notebook in JupyterLab, used like people use it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SIZE
from tests.browser.jupyterlab import Lab, Server

WIDE: Any = {"width": 1440, "height": 900}
MARK = "Undone: the variables are as if this cell had not run."
RUNAWAY = """%%limit seconds=1
while True:
    try:
        while True: pass
    except BaseException: pass
"""
TEN = [f"x = {number}" for number in range(1, 11)]
REOPEN = """async () => {
    const widget = jupyterapp.shell.currentWidget;
    const path = widget.context.path;
    await widget.context.save();
    widget.dispose();
    await jupyterapp.commands.execute('docmanager:open', {path});
}"""
THEME = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")  # Playwright hands the pattern to JavaScript


class Panel:
    """The timeline's panel, by roles and names alone."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.region = lab.page.get_by_role("region", name="Timeline", exact=True)
        self.items = self.region.get_by_role("treeitem")

    def show(self) -> None:
        self._lab.command("wasm-kernel:open")
        self.region.wait_for()

    def here(self, place: str) -> None:
        """Waits until the variables are as after a place."""
        says = self.region.get_by_role("status")
        says.filter(has_text=re.compile(rf"Variables are as .*{re.escape(place)}$")).wait_for()

    def state(self, label: str) -> Any:
        """The row of a state, by the beginning of its name."""
        return self.region.get_by_role("treeitem", name=re.compile(rf"^{_escaped(label)}"))

    def press(self, name: str) -> None:
        """Presses one of the panel's buttons."""
        self.region.get_by_role("button", name=re.compile(rf"^{re.escape(name)}")).click()

    def marks(self) -> list[int]:
        """The cells that are marked as undone, counted from 0."""
        cells = self._lab.page.locator(".jp-Notebook .jp-Cell")
        noted = [cells.nth(n).get_by_role("note") for n in range(cells.count())]
        return [n for n, note in enumerate(noted) if note.count() and note.inner_text() == MARK]


@pytest.fixture
def wide(lab: Lab) -> Iterator[Lab]:
    lab.page.set_viewport_size(WIDE)
    yield lab
    lab.page.evaluate(THEME, "JupyterLab Light")
    lab.command("application:toggle-right-area")
    lab.page.set_viewport_size(SIZE)


def in_dialog(lab: Lab, button: str, text: str = "") -> None:
    """Fills in a dialog of JupyterLab and presses its button, which closes it."""
    dialog = lab.page.locator(".jp-Dialog")
    dialog.get_by_role("button", name=button).wait_for()
    if text:
        dialog.locator("input").fill(text)
    dialog.get_by_role("button", name=button).click()
    dialog.get_by_role("button", name=button).wait_for(state="detached")


def value(lab: Lab, number: int, source: str) -> str:
    """Runs a source in the notebook's cell, and returns its output."""
    lab.page.evaluate(
        "([n, source]) => jupyterapp.shell.currentWidget.content.widgets[n]"
        ".model.sharedModel.setSource(source)",
        [number, source],
    )
    lab.run(number)
    return str(lab.output(number).inner_text()).partition(":")[2].strip()


def test_ten_cells_three_undone_by_a_click_marked_and_redone(
    wide: Lab, server: Server, portraits: Path
) -> None:
    wide.open(server.notebook("ten-cells", [*TEN, ""]))
    panel = Panel(wide)
    panel.show()
    for number in range(10):
        wide.run(number)
    panel.here("[10]")
    assert panel.items.count() == 11  # with the start
    assert panel.marks() == []
    panel.state("[7] x = 7").click()
    changed = panel.region.get_by_role("row", name="x 6")
    assert re.sub(r"\s+", " ", changed.inner_text()) == "x 6 int, 16 B 7 int, 16 B"
    panel.press("Go back to here")
    panel.here("[7]")
    assert panel.marks() == [7, 8, 9]
    assert panel.state("[7] x = 7, here").get_attribute("aria-current") == "true"
    assert "undone" in panel.state("[8] x = 8").get_attribute("aria-label")
    wide.page.wait_for_timeout(300)
    wide.page.screenshot(path=portraits / "timeline-light.png")
    assert value(wide, 10, "x") == "7"
    panel.here("[11]")
    assert panel.state("[8] x = 8").get_attribute("aria-level") == "2"
    wide.run(7)  # a cell that runs again is not marked any more
    panel.here("[12]")
    assert panel.marks() == [8, 9]
    wide.command("wasm-kernel:undo")
    panel.here("[11]")
    assert panel.marks() == [7, 8, 9]
    panel.press("Take back the last undo")
    panel.here("[12]")
    assert panel.marks() == [8, 9]
    source = wide.page.evaluate(
        "jupyterapp.shell.currentWidget.content.widgets.map(c => c.model.sharedModel.getSource())"
    )
    assert source == [*TEN, "x"]


def test_a_checkpoint_is_saved_restored_from_the_menu_and_deleted(
    wide: Lab, server: Server
) -> None:
    wide.open(server.notebook("checkpoints", ["y = 1", "y = 2", "y"]))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    panel.here("[1]")
    panel.press("Name checkpoint")
    in_dialog(wide, "Save", "<b>before</b>")
    wide.page.locator(".jp-Dialog", has_text="1 to 64 letters").wait_for()
    in_dialog(wide, "Ok")
    panel.press("Name the variables")
    in_dialog(wide, "Save", "before the merge")
    panel.state("[1] y = 1").filter(has_text="before the merge").wait_for()
    wide.run(1)
    panel.here("[2]")
    wide.page.locator(".lm-MenuBar-itemLabel", has_text="Kernel").click()
    wide.page.locator(".lm-Menu-itemLabel", has_text="Restore Checkpoint").click()
    in_dialog(wide, "Restore")
    panel.here("[1]")
    wide.run(2)
    assert "1" in wide.output(2).inner_text()
    panel.state("[1] y = 1").click()
    panel.press("Delete checkpoint before the merge")
    panel.region.get_by_text("before the merge").first.wait_for(state="detached")


def test_a_fork_opens_beside_the_notebook_and_both_go_on(wide: Lab, server: Server) -> None:
    wide.open(server.notebook("parent", ["both = ['before']", "both"]))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    panel.here("[1]")
    wide.command("wasm-kernel:fork")
    wide.page.wait_for_function(
        "jupyterapp.shell.currentWidget.context?.path === 'parent-fork-1.ipynb'"
    )
    wide.identified()
    panel.here("[1]")  # the fork's own timeline, which has its parent's past
    names = {
        "there": "jupyterapp.shell.currentWidget",
        "here": "[...jupyterapp.shell.widgets('main')]"
        ".find(w => w.context?.path === 'parent.ipynb')",
    }
    for name, widget in names.items():
        shown = wide.page.evaluate(
            f"""async name => {{
                const kernel = {widget}.sessionContext.session.kernel;
                const said = [];
                const future = kernel.requestExecute({{code: `both + ['${{name}}']`}});
                future.onIOPub = m => said.push(m.content.data?.['text/plain']);
                await future.done;
                return said.filter(Boolean).join('');
            }}""",
            name,
        )
        assert shown == f"['before', '{name}']"


def test_two_states_are_compared(wide: Lab, server: Server, portraits: Path) -> None:
    cells = [
        "prices = [3, 1, 2]\nmean = 2.0",
        "prices.sort(); open('sorted.txt', 'w').close()",
        "prices.append(40)\nmean = sum(prices) / len(prices)",
    ]
    wide.open(server.notebook("compared", cells))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    wide.run(1)
    panel.here("[2]")
    wide.command("wasm-kernel:undo")
    panel.here("[1]")
    wide.run(2)
    panel.here("[3]")
    panel.state("[2] prices.sort()").click()
    panel.press("Compare with")
    panel.state("[3] prices.append(40)").click()
    comparison = panel.region.get_by_role("region", name="Comparison")
    comparison.get_by_role("row", name="mean 2.0").get_by_text("11.5").wait_for()
    comparison.get_by_role("row", name="prices").wait_for()
    left, right = comparison.inner_text().split("Only after [3]")
    assert "Only after [2]" in left
    assert "sorted.txt" in left
    assert "prices.append(40)" in right
    wide.page.wait_for_timeout(300)
    wide.page.screenshot(path=portraits / "timeline-compared.png")
    panel.press("End comparison")
    panel.region.get_by_role("region", name="The chosen state").wait_for()


def test_a_runaway_cell_is_seen_as_stopped(wide: Lab, server: Server, portraits: Path) -> None:
    wide.open(server.notebook("runaway", ["kept = 1", RUNAWAY, "1/0"]))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    wide.run(1)
    panel.state("[2] %%limit seconds=1, out of time, left no state").click()
    panel.region.get_by_text("The variables stayed as before it").wait_for()
    panel.here("[1]")
    wide.run(2)
    panel.state("[3] 1/0, here, error").wait_for()
    wide.page.evaluate(THEME, "JupyterLab Dark")
    wide.page.wait_for_timeout(500)
    wide.page.screenshot(path=portraits / "timeline-dark.png")


def test_the_keyboard_alone_goes_back(wide: Lab, server: Server) -> None:
    wide.open(server.notebook("keys", ["k = 1", "k = 2"]))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    wide.run(1)
    panel.here("[2]")
    keyboard = wide.page.keyboard
    panel.state("[2] k = 2").focus()
    keyboard.press("ArrowUp")
    chosen = panel.state("[1] k = 1")
    assert chosen.get_attribute("aria-selected") == "true"
    assert chosen.evaluate("node => node === document.activeElement")
    keyboard.press("Enter")
    keyboard.press("Enter")
    panel.here("[1]")
    panel.region.locator("[aria-current=true]:focus").wait_for()
    wide.page.locator(".jp-Notebook .jp-Cell").first.click()
    keyboard.press("Control+Alt+y")
    panel.here("[2]")
    keyboard.press("Control+Alt+z")
    panel.here("[1]")


def test_names_like_markup_are_text_and_many_states_are_all_there(
    wide: Lab, server: Server
) -> None:
    nasty = "'<img src=x onerror=\"document.title=1\"><script>document.title=2</script>'"
    wide.open(server.notebook("nasty", [nasty, "open('<img src=x>', 'w').close()"]))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    wide.run(1)
    panel.here("[2]")
    assert panel.region.locator("img, script").count() == 0
    panel.region.locator("code", has_text="<img src=x>").first.wait_for()


FORGES = """
from comm import create_comm, get_comm_manager
get_comm_manager().register_target("wasm_kernel.timeline", lambda comm, message: comm.send({}))
try:
    forged = create_comm(target_name="wasm_kernel.timeline")
    forged.send({"event": "tree", "states": [], "here": 0, "lost": [], "gone": []})
except Exception as problem:
    print(type(problem))
"""


def test_a_guest_that_opens_a_timeline_changes_none(wide: Lab, server: Server) -> None:
    wide.open(server.notebook("forged", ["secret = 1", FORGES], kernel="wasm-trusted"))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    wide.run(1)
    panel.here("[2]")
    assert panel.items.count() == 3


def test_the_magic_opens_the_panel_and_prints_the_tree(wide: Lab, server: Server) -> None:
    wide.open(server.notebook("magic", ["m = 1", "%timeline"]))
    wide.run(0)
    panel = Panel(wide)
    assert not panel.region.is_visible()
    wide.run(1)
    panel.region.wait_for()
    assert "m = 1" in wide.output(1).inner_text()


def test_marks_outlive_the_page_and_names_a_restart(wide: Lab, server: Server) -> None:
    wide.open(server.notebook("reopened", ["r = 1", "r = 2", "r"]))
    panel = Panel(wide)
    panel.show()
    wide.run(0)
    panel.here("[1]")
    panel.press("Name checkpoint")
    in_dialog(wide, "Save", "first")
    wide.run(1)
    panel.here("[2]")
    wide.command("wasm-kernel:undo")
    panel.here("[1]")
    wide.page.evaluate(REOPEN)
    wide.ready()
    panel.here("[1]")
    assert panel.marks() == [1]
    wide.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    panel.here("start")
    wide.idle()
    assert panel.marks() == []
    panel.press("Bring the variables back as they were at a named")
    in_dialog(wide, "Restore")
    panel.state("earlier r = 1, here").wait_for()
    wide.run(2)
    assert "1" in wide.output(2).inner_text()
