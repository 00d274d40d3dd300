"""The timeline beside a notebook in JupyterLab, used as people use it.

The tests share a notebook of ten cells that have run, and a last cell for what a test tries. Each
test begins at the tenth cell's state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import SIZE
from tests.browser.jupyterlab import SECONDS, Lab, Server

WIDE: Any = {"width": 1440, "height": 900}
MARK = "Undone: the variables are as if this cell had not run."
RUNAWAY = """%%limit seconds=1
while True:
    try:
        while True: pass
    except BaseException: pass
"""
TEN = [f"x = {number}" for number in range(1, 11)]
LAST = 10  # the cell that is free
THEME = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"
SET_SOURCE = """([cell, source]) => {
    jupyterapp.shell.currentWidget.content.widgets[cell].model.sharedModel.setSource(source);
}"""
SOURCES = "jupyterapp.shell.currentWidget.content.widgets.map(c => c.model.sharedModel.getSource())"
RESTART = """async () => {  // as another page does
    const {kernel} = jupyterapp.shell.currentWidget.sessionContext.session;
    const {baseUrl} = kernel.serverSettings;
    const headers = {'X-XSRFToken': document.cookie.match(/_xsrf=([^;]*)/)?.[1]};
    const address = `${baseUrl}api/kernels/${kernel.id}/restart`;
    const reply = await fetch(address, {method: 'POST', headers});
    if (!reply.ok) throw new Error(reply.status);
}"""
WATCH = """() => {  // notes the fewest states that the panel shows from now on
    const panel = document.getElementById('wasm-kernel-timeline');
    const count = () => panel.querySelectorAll('[role=treeitem]').length;
    window.fewest = count();
    const note = () => { window.fewest = Math.min(window.fewest, count()); };
    new MutationObserver(note).observe(panel, {childList: true, subtree: true});
}"""
EXECUTE = """async ([path, code]) => {
    const widget = [...jupyterapp.shell.widgets('main')].find(w => w.context?.path === path);
    const said = [];
    const future = widget.sessionContext.session.kernel.requestExecute({code});
    future.onIOPub = message => said.push(message.content.data?.['text/plain']);
    await future.done;
    return said.filter(Boolean).join('');
}"""


class Panel:
    """The timeline's panel, by roles and names alone, beside a notebook."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.page = lab.page
        self.region = lab.page.get_by_role("region", name="Timeline", exact=True)
        self.items = self.region.get_by_role("treeitem")

    def show(self) -> None:
        self.lab.command("wasm-kernel:open")
        self.region.wait_for()

    def here(self, place: str) -> None:
        """Waits until the panel says that the variables are as they were at a place."""
        says = re.compile(rf"Variables are as [^\[]*{re.escape(place)}")
        expect(self.region).to_contain_text(says, timeout=SECONDS * 1000)

    def state(self, label: str) -> Any:
        """The row of a state, by the beginning of its name."""
        begins = re.escape(label).replace("/", r"\/")  # Playwright hands it to JavaScript
        return self.region.get_by_role("treeitem", name=re.compile(f"^{begins}"))

    def press(self, name: str) -> None:
        """Presses one of the panel's buttons."""
        self.region.get_by_role("button", name=re.compile(rf"^{re.escape(name)}")).click()

    def marks(self) -> list[int]:
        """The cells that are marked as undone, counted from 0."""
        cells = self.page.locator(".jp-Notebook:visible .jp-Cell")
        noted = [cells.nth(n).get_by_role("note") for n in range(cells.count())]
        return [n for n, note in enumerate(noted) if note.count() and note.inner_text() == MARK]

    def run(self, source: str) -> str:
        """Runs a source in the last cell, and returns its output once the panel has its state."""
        place = self.run_only(source)
        self.state(f"[{place}]").wait_for()
        return str(self.lab.output(LAST).inner_text()).partition(":")[2].strip()

    def run_only(self, source: str) -> int:
        """Runs a source in the last cell, and returns its number."""
        self.page.evaluate(SET_SOURCE, [LAST, source])
        return self.run_cell(LAST)

    def run_cell(self, cell: int) -> int:
        """Runs one of the notebook's cells as it is, and returns its number."""
        self.choose_cell(cell)
        self.lab.command("notebook:run-cell")
        self.lab.idle()
        return int(self.lab.prompt(cell).strip("[]:"))

    def choose_cell(self, cell: int) -> None:
        """Makes one of the notebook's cells the active one."""
        self.page.evaluate(
            "cell => { jupyterapp.shell.currentWidget.content.activeCellIndex = cell; }", cell
        )

    def dialog(self, button: str, text: str = "") -> None:
        """Fills in a dialog of JupyterLab and presses its button, which closes it."""
        dialog = self.page.locator(".jp-Dialog")
        dialog.get_by_role("button", name=button).wait_for()
        if text:
            dialog.locator("input").fill(text)
        dialog.get_by_role("button", name=button).click()
        dialog.get_by_role("button", name=button).wait_for(state="detached")


@pytest.fixture(scope="module")
def opened(shared: Lab, server: Server) -> Iterator[Panel]:
    shared.page.set_viewport_size(WIDE)
    shared.open(server.notebook("ten-cells", [*TEN, ""]))
    panel = Panel(shared)
    panel.show()
    shared.command("notebook:run-all-cells")
    panel.here("[10]")
    yield panel
    shared.page.evaluate(THEME, "JupyterLab Light")
    shared.command("application:toggle-right-area")
    shared.page.set_viewport_size(SIZE)


@pytest.fixture
def panel(opened: Panel) -> Panel:
    """The panel at the state after the tenth cell."""
    opened.state("[10] x = 10").click()
    back = opened.region.get_by_role("button", name="Go back to here")
    if back.is_enabled():
        back.click()
    opened.here("[10]")
    return opened


def test_ten_cells_three_undone_by_a_click_marked_and_redone(panel: Panel, portraits: Path) -> None:
    assert panel.items.count() == 11  # ten cells and the start
    assert panel.marks() == []
    panel.state("[7] x = 7").click()
    changed = panel.region.get_by_role("row", name="x 6")
    assert re.sub(r"\s+", " ", changed.inner_text()) == "x 6 int, 16 B 7 int, 16 B"
    panel.press("Go back to here")
    panel.here("[7]")
    assert panel.marks() == [7, 8, 9]
    panel.choose_cell(8)
    panel.lab.command("notebook:delete-cell")
    assert panel.marks() == [7, 8]
    panel.lab.command("notebook:undo-cell-action")
    assert panel.marks() == [7, 8, 9]
    assert panel.state("[7] x = 7, here").get_attribute("aria-current") == "true"
    assert "undone" in panel.state("[8] x = 8").get_attribute("aria-label")
    panel.page.screenshot(path=portraits / "timeline-light.png")
    assert panel.run("x") == "7"
    panel.here("[11]")
    assert panel.state("[8] x = 8").get_attribute("aria-level") == "2"
    panel.run_cell(7)  # a cell that runs again is not marked any more
    panel.here("[12]")
    assert panel.marks() == [8, 9]
    panel.lab.command("wasm-kernel:undo")
    panel.here("[11]")
    assert panel.marks() == [7, 8, 9]
    panel.press("Take back the last undo")
    panel.here("[12]")
    assert panel.marks() == [8, 9]
    assert panel.page.evaluate(SOURCES) == [*TEN, "x"]


def test_a_checkpoint_is_saved_restored_from_the_menu_and_deleted(panel: Panel) -> None:
    panel.press("Name checkpoint")
    panel.dialog("Save", "<b>before</b>")
    panel.page.locator(".jp-Dialog", has_text="1 to 64 letters").wait_for()
    panel.dialog("Ok")
    panel.press("Name the variables")
    panel.dialog("Save", "before the merge")
    panel.state("[10] x = 10").filter(has_text="before the merge").wait_for()
    panel.run("x = 'later'; open('kept.txt', 'w').close()")
    panel.page.locator(".lm-MenuBar-itemLabel", has_text="Kernel").click()
    panel.page.locator(".lm-Menu-itemLabel", has_text="Restore Checkpoint").click()
    panel.dialog("Restore")
    panel.here("[10]")
    said = panel.region.get_by_text("Files stay as they are: kept.txt.")
    said.wait_for()
    assert panel.run("x") == "10"
    assert said.count() == 0
    panel.state("[10] x = 10").click()
    panel.press("Delete checkpoint before the merge")
    panel.region.get_by_text("before the merge").first.wait_for(state="detached")
    panel.lab.command("application:toggle-right-area")
    panel.region.wait_for(state="hidden")
    panel.run_only("%timeline")
    panel.region.wait_for()


def test_two_states_are_compared(panel: Panel, portraits: Path) -> None:
    panel.run("mean = 2.0; open('sorted.txt', 'w').close()")
    panel.lab.command("wasm-kernel:undo")
    panel.here("[10]")
    panel.run("mean = 11.5; x = [3, 1, 40]")
    panel.state("[").filter(has_text="sorted.txt").last.click()
    panel.press("Compare with")
    panel.state("[").filter(has_text="x = [3, 1, 40]").last.click()
    comparison = panel.region.get_by_role("region", name="Comparison")
    comparison.get_by_role("row", name="mean 2.0").get_by_text("11.5").wait_for()
    comparison.get_by_role("row", name="x 10").wait_for()
    first, second = comparison.inner_text().split("Only after")[1:]
    assert "sorted.txt" in first.split("Files")[1]
    assert "x = [3, 1, 40]" in second
    panel.page.screenshot(path=portraits / "timeline-compared.png")
    panel.press("End comparison")
    panel.region.get_by_role("region", name="The chosen state").wait_for()


@pytest.mark.soak
def test_a_runaway_cell_is_seen_as_stopped(panel: Panel, portraits: Path) -> None:
    panel.run(RUNAWAY)
    panel.state("[").filter(has_text="%%limit").filter(has_text="out of time").click()
    panel.region.get_by_text("The variables stayed as before it").wait_for()
    panel.here("[10]")
    panel.run("1/0")
    panel.state("[").filter(has_text="1/0").filter(has_text="error").wait_for()
    panel.page.evaluate(THEME, "JupyterLab Dark")
    panel.page.wait_for_timeout(500)
    panel.page.screenshot(path=portraits / "timeline-dark.png")


def test_the_keyboard_alone_goes_back(panel: Panel) -> None:
    keyboard = panel.page.keyboard
    panel.state("[10] x = 10").focus()
    keyboard.press("ArrowUp")
    chosen = panel.state("[9] x = 9")
    assert chosen.get_attribute("aria-selected") == "true"
    assert chosen.evaluate("node => node === document.activeElement")
    keyboard.press("Enter")
    keyboard.press("Enter")
    panel.here("[9]")
    panel.region.locator("[aria-current=true]:focus").wait_for()
    keyboard.press("Control+Alt+z")
    panel.here("[8]")
    panel.lab.cell(0).locator(".cm-content").click()
    keyboard.press("Control+Alt+y")
    panel.here("[9]")
    keyboard.press("Control+Alt+t")
    here = panel.region.locator("[aria-current=true]:focus")
    here.wait_for()
    keyboard.press("Enter")
    panel.region.get_by_role("button", name="Compare with").press("Enter")
    here.wait_for()  # the pressed button is gone
    keyboard.press("Home")
    panel.region.get_by_text(re.compile(r"^\[9\] compared with start")).wait_for()
    panel.press("End comparison")
    panel.page.locator("#jp-main-statusbar").get_by_text("· saved").wait_for()


FORGES = """
'<img src=x onerror="document.title=1"><script>document.title=2</script>'
open('<img src=x>', 'w').close()
import asyncio
from comm import create_comm, get_comm_manager
get_comm_manager().register_target("wasm_kernel.timeline", lambda comm, message: comm.send({}))
try:
    forged = create_comm(target_name="wasm_kernel.timeline")
    forged.send({"event": "tree", "states": [], "here": 0, "lost": [], "gone": []})
    await asyncio.sleep(0.3)  # the panel gets a true tree when the cell ends
except Exception as problem:
    print(type(problem))
"""


def test_names_like_markup_are_text_and_a_timeline_of_a_guest_changes_none(panel: Panel) -> None:
    before = panel.items.count()
    panel.page.evaluate(WATCH)
    panel.run(FORGES.strip())
    assert panel.items.count() == before + 1
    assert panel.page.evaluate("window.fewest") == before
    panel.items.filter(has=panel.page.locator("code", has_text="<script>")).first.click()
    panel.region.locator("code", has_text="<img src=x>").first.wait_for()
    assert panel.region.locator("img, script").count() == 0


@pytest.mark.soak
def test_a_guest_whose_outputs_are_trusted_changes_no_timeline(target: Lab, server: Server) -> None:
    target.page.set_viewport_size(WIDE)
    target.open(server.notebook("forged", ["secret = 1", FORGES.strip()], kernel="wasm-trusted"))
    panel = Panel(target)
    panel.show()
    panel.run_cell(0)
    panel.here("[1]")
    target.page.evaluate(WATCH)
    panel.run_cell(1)
    panel.here("[2]")
    assert panel.items.count() == 3
    assert target.page.evaluate("window.fewest") == 2


def test_a_fork_opens_beside_the_notebook_and_both_go_on(panel: Panel) -> None:
    panel.run("both = ['before']")
    panel.lab.command("wasm-kernel:fork")
    panel.page.wait_for_function(
        "jupyterapp.shell.currentWidget.context?.path === 'ten-cells-fork-1.ipynb'"
    )
    panel.lab.identified()
    panel.state("[").filter(has_text="both = ['before']").filter(has_text="here").wait_for()
    for name in ("ten-cells", "ten-cells-fork-1"):
        ran = panel.page.evaluate(EXECUTE, [f"{name}.ipynb", f"both.append('{name}'); both"])
        assert ran == f"['before', '{name}']"
    panel.page.evaluate("jupyterapp.shell.currentWidget.dispose()")


def test_marks_outlive_the_page_and_names_a_restart(panel: Panel) -> None:
    panel.state("[9] x = 9").click()
    panel.press("Go back to here")
    panel.here("[9]")
    panel.press("Name checkpoint")
    panel.dialog("Save", "first")
    panel.lab.reopen()
    panel.here("[9]")
    assert 9 in panel.marks()
    panel.page.evaluate(RESTART)
    panel.here("start")
    panel.lab.idle()
    assert panel.marks() == []
    panel.press("Bring the variables back as they were at a named")
    panel.dialog("Restore")
    panel.state("earlier x = 9, here").wait_for()
    assert "9" in panel.run("x").splitlines()  # beside a notice on checkpoints


def test_a_notebook_of_yesterday_is_continued_or_begun_anew(lab: Lab, server: Server) -> None:
    lab.page.set_viewport_size(WIDE)
    notebook = server.notebook("tomorrow", ["y = 1", "y = 1/0", "y"], kernel="wasm-tomorrow")
    lab.open(notebook)
    lab.command("notebook:run-all-cells")
    lab.command("docmanager:save")
    lab.open(notebook)  # after the kernel was shut down
    panel = Panel(lab)
    panel.show()
    panel.here("[2]")
    panel.state("[2] y = 1/0, here, error").wait_for()
    notice = lab.page.get_by_role("alert").filter(has_text="The session goes on")
    notice.filter(has_text="1 variable, of ").wait_for()
    assert panel.run_cell(2) == 3
    assert lab.output(2).inner_text().split() == ["[3]:", "1"]  # without the notice
    notice.get_by_role("button", name="Begin anew").click()
    panel.here("start")
    lab.idle()
    assert panel.run_cell(2) == 1
    lab.output(2).get_by_text("NameError").first.wait_for()
    panel.press("Bring the variables back as they were at a named")
    panel.dialog("Restore")
    panel.region.get_by_role("treeitem").filter(has_text="before 20").click()
    panel.state("earlier y, here").wait_for()
    lab.command("application:toggle-right-area")


@pytest.mark.soak
def test_page_without_the_panel_has_a_widget(target: Lab, server: Server, portraits: Path) -> None:
    target.page.set_viewport_size(WIDE)
    target.page.route("**/extensions/wasm-kernel/**", lambda route: route.abort())
    cells = ["x = 1", "x = '<b>2</b>'", "%timeline", "x"]
    target.open(server.notebook("widget", cells))
    target.command("notebook:run-all-cells")
    shown = target.output(2)

    def row(*texts: str) -> Any:
        found = shown.locator("option")
        for text in texts:
            found = found.filter(has_text=text)
        found.wait_for(state="attached")
        return found

    def choose(*texts: str) -> None:
        shown.locator("select").select_option(index=row(*texts).evaluate("one => one.index"))

    def press(name: str) -> None:
        shown.get_by_role("button", name=name, exact=True).click()

    choose("[2] x = '<b>2</b>'")
    press("What changed?")
    shown.get_by_text("x: 1 \u2192 '<b>2</b>'", exact=True).wait_for()
    choose("[1] x = 1")
    press("Go back to here")
    row("[1] x = 1", "here")
    row("[2]", "undone")
    target.run(3)
    assert target.output(3).inner_text().split()[-1] == "1"
    row("[5] x", "here", "after [1]")
    press("Undo")
    row("[1]", "here")
    press("Redo")
    row("[5]", "here")
    shown.get_by_placeholder("a name").fill("the merge")
    press("Name checkpoint")
    row("[5]", "here", "checkpoint the merge")
    target.cell(2).screenshot(path=portraits / "timeline-widget.png")
