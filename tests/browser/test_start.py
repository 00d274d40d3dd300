"""JupyterLab's page while a kernel can't run cells yet, or never will."""

from __future__ import annotations

from tests.browser.jupyterlab import GO, Lab, Server


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
