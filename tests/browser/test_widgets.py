"""Widgets in JupyterLab, moved by hand: callbacks run in the sandbox, and their output appears."""

from __future__ import annotations

from tests.browser.jupyterlab import Lab, Server

BEGIN = "import ipywidgets as w\nfrom IPython.display import display"
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
    lab.open(server.notebook("widgets", [BEGIN, OBSERVED, PRESSED, INTERACT, PROGRESS, "seen"]))
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
