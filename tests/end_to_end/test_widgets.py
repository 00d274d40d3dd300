"""Widgets with the real kernel over ZMQ, used by a page and by nbclient."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.end_to_end.conftest import starting_in
from tests.end_to_end.real_kernel import SECONDS, RealKernel, Shown
from tests.faces import wait_for
from tests.stored import names_in, state_of

SLIDER = """
import ipywidgets as w
s = w.IntSlider(value=3, model_id='s1')
x = 0
def moved(change):
    global x
    x = change.new
    print('now', x)
s.observe(moved, 'value')
s
"""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"


def move(page: RealKernel, value: int) -> str:
    """Moves the slider in the page; returns the message's id."""
    return page.comm("msg", "s1", update(value=value))


def update(**state: Any) -> dict[str, Any]:
    """The data of a message that changes a widget's state."""
    return {"method": "update", "state": state, "buffer_paths": []}


@pytest.fixture(scope="module")
def clean(kernel: RealKernel) -> RealKernel:
    """The file's kernel, with a checkpoint at its beginning."""
    kernel.run("%checkpoint clean")
    return kernel


@pytest.fixture
def page(clean: RealKernel) -> RealKernel:
    """A kernel without widgets and variables, and its page."""
    assert clean.run("%restore clean").error == ""
    return clean


def test_a_slider_is_shown_moved_and_heard(page: RealKernel) -> None:
    heard = page.run(SLIDER)
    assert heard.of("comm_open")[-1]["comm_id"] == "s1"
    [shown] = heard.data(VIEW)
    assert shown["model_id"] == "s1"
    moved = page.heard(move(page, 7))
    assert moved.kinds == ["status", "comm_msg", "stream", "status"]
    assert moved.stdout == "now 7\n"
    assert moved.of("comm_msg")[0]["data"]["method"] == "echo_update"
    assert page.run("x, s.value").value == "(7, 7)"


def test_a_cell_that_awaits_hears_the_slider(page: RealKernel) -> None:
    page.run(SLIDER + "import asyncio")
    cell = page.client.execute("while x < 6: await asyncio.sleep(0.01)\nprint('ends', x)")
    behind = page.client.execute("print('behind')")
    page.hear("execute_input")
    moved = page.heard(move(page, 5))
    assert moved.kinds == ["status", "comm_msg", "stream", "status"]
    moved = page.heard(move(page, 6))
    assert moved.stdout == "now 6\n"
    assert page.heard(cell).stdout == "ends 6\n"
    assert page.heard(behind).stdout == "behind\n"


def test_messages_wait_in_order_while_cells_compute_and_keep_none_busy(page: RealKernel) -> None:
    page.run(SLIDER + "import time; seen = []; s.observe(lambda c: seen.append(c.new), 'value')")
    cells = []
    for value in range(3):
        cells.append(page.send("time.sleep(0.2); seen.append('cell')"))
        move(page, 7 + value)
    last = page.send("seen")
    states: dict[str, list[str]] = {}
    while "idle" not in states.get(last, []):
        message = page.client.get_iopub_msg(timeout=SECONDS)
        if message["msg_type"] == "status":
            parent = message["parent_header"].get("msg_id")
            states.setdefault(parent, []).append(message["content"]["execution_state"])
    assert [states[cell] for cell in cells] == [["busy", "idle"]] * 3
    assert page.run("seen").value == "['cell', 7, 'cell', 8, 'cell', 9]"


def test_an_odd_message_is_answered_with_idle(page: RealKernel) -> None:
    odd: list[Any] = [{"comm_id": 5}, {"comm_id": "c", "target_name": 3}, {"data": [1]}, {}]
    session = page.client.session
    for content in odd:
        message = session.msg("comm_open", content)
        session.send(page.client.shell_channel.socket, message)
        assert page.heard(message["header"]["msg_id"]).kinds[-1] == "status"


def test_widgets_are_cleaned_and_what_they_lost_is_told_once(page: RealKernel) -> None:
    attack = "<b>x</b><script>alert(1)</script>"
    cell = f"import ipywidgets as w; h = w.HTML({attack!r}); display(h)\n"
    heard = page.run(cell + f"for _ in range(3): h.value = ''; h.value = {attack!r}")
    sent = [
        m["content"]["data"].get("state", {}) for m in heard.messages if "comm_" in m["msg_type"]
    ]
    assert {state["value"] for state in sent if "value" in state} == {"<b>x</b>", ""}
    (notice,) = heard.of("stream")
    assert "scripts" in notice["text"] and "trusted" in notice["text"]


def test_channels_lead_to_widgets_alone(page: RealKernel) -> None:
    page.run("from comm import create_comm; closed = []")
    heard = page.run("c = create_comm(target_name='mine'); c.on_close(closed.append)")
    assert "comm_open" not in heard.kinds
    assert "mine" in heard.stderr
    assert page.run("len(closed)").value == "1"
    heard = page.heard(page.comm("open", "c8", {}, target_name="mine"))
    assert heard.kinds == ["status", "stream", "comm_close", "status"]


def test_static_shows_no_widget_and_says_so_once(tmp_path: Path) -> None:
    with starting_in(tmp_path / "sessions") as start:
        page = start(outputs="static")
        heard = page.run(SLIDER * 3)
        assert "comm_open" not in heard.kinds
        assert heard.stderr.count("Left out of this output: widgets.") == 1
        opened = page.heard(page.comm("open", "c8", {}, target_name="jupyter.widget.control"))
        assert opened.kinds == ["status", "comm_close", "status"]


def test_a_page_that_is_loaded_again_finds_its_widgets(page: RealKernel) -> None:
    page.run(SLIDER)
    page.heard(move(page, 8))
    opened = page.heard(page.comm("open", "c1", {}, target_name="jupyter.widget.control"))
    assert opened.kinds == ["status", "status"]
    [answer] = page.heard(page.comm("msg", "c1", {"method": "request_states"})).of("comm_msg")
    assert answer["data"]["states"]["s1"]["state"]["value"] == 8
    page.heard(page.comm("close", "c1", {}))
    info = page.client.comm_info("jupyter.widget", reply=True, timeout=SECONDS)
    assert "s1" in info["content"]["comms"]


def test_files_come_in_and_pictures_go_out(page: RealKernel) -> None:
    page.run("import ipywidgets as w; u = w.FileUpload(model_id='u1')")
    facts = {"name": "a.png", "type": "image/png", "size": len(PNG), "last_modified": 0}
    upload = {
        "method": "update",
        "state": {"value": [facts]},
        "buffer_paths": [["value", 0, "content"]],
    }
    page.heard(page.comm("msg", "u1", upload, buffers=[PNG]))
    heard = page.run("w.Image(value=bytes(u.value[0].content))")
    assert [bytes(each) for m in heard.messages for each in m["buffers"]] == [PNG]


def test_an_interrupt_ends_a_callback(page: RealKernel) -> None:
    page.run(SLIDER + "def spin(change):\n    while True: pass\ns.observe(spin, 'value')\n")
    moved = move(page, 9)
    page.hear("stream")
    page.manager.interrupt_kernel()
    assert page.heard(moved).error == "KeyboardInterrupt"
    assert page.run("x").value == "9"


def values(heard: Shown) -> list[int]:
    """The values that the page is told of the slider."""
    told = [each for each in heard.of("comm_msg") if each["comm_id"] == "s1"]
    return [each["data"]["state"]["value"] for each in told]


def test_after_a_crash_and_an_undo_the_page_shows_the_present_state(page: RealKernel) -> None:
    page.run(SLIDER)
    page.heard(move(page, 7))
    heard = page.run("s.value = 1; t = w.IntText(model_id='t1'); import os; os._exit(1)")
    assert heard.of("comm_close")[-1]["comm_id"] == "t1"
    assert values(heard) == [1, 7]
    page.run("y = 1")
    page.heard(move(page, 8))
    assert values(page.run("%undo")) == [7]
    assert page.run("x, 'y' in dir()").value == "(7, False)"


def test_widgets_survive_a_crash_of_the_kernels_process(page: RealKernel) -> None:
    page.run(SLIDER)
    page.heard(move(page, 7))
    page.run("%checkpoint moved")
    (workspace,) = page.sessions.iterdir()
    wait_for(lambda: "moved" in names_in(state_of(workspace)), "a commit on disk")
    page.kill()
    page.autorestart()
    info = page.client.comm_info("jupyter.widget", reply=True, timeout=SECONDS)
    assert "s1" in info["content"]["comms"]
    assert "now 2" in page.heard(move(page, 2)).stdout
    assert page.run("x, s.value").value == "(2, 2)"


# -- nbclient


@pytest.mark.parametrize(
    ("inside", "may_ask", "waits"),
    [
        ("print('a')", False, True),
        ("print('a')", True, False),
        ("with b: pass\n  print('a')", False, True),
        ("clear_output()", False, True),
        ("clear_output(wait=True)", False, False),
    ],
)
def test_a_reply_waits_for_the_answers_to_outputs_in_widgets(
    page: RealKernel, inside: str, may_ask: bool, waits: bool
) -> None:
    # nbclient answers, and would miss a reply that comes at that moment; this client stops doing so
    page.run("import ipywidgets as w\nfrom IPython.display import clear_output")
    page.run("b = w.Output(model_id='o1')")
    page.heard(page.comm("msg", "o1", update(outputs=[])))
    for is_first in (True, False):
        shown = page.run(f"with w.Output():\n  {inside}", allow_stdin=may_ask)
        sent = {message["msg_type"]: message["header"]["date"] for message in shown.messages}
        seconds = (sent["status"] - sent["comm_msg"]).total_seconds()
        assert (seconds > 0.9) is (waits and is_first)


def test_only_the_last_of_waiting_messages_with_all_outputs_is_delivered(page: RealKernel) -> None:
    page.run("import ipywidgets as w; out, seen = w.Output(model_id='o1'), []")
    page.run("out.observe(lambda change: seen.append(len(change.new)), 'outputs')")
    page.run(
        "import traitlets as t\n"
        "class Own(w.DOMWidget):\n  outputs = t.Int().tag(sync=True)\n"
        "own = Own(model_id='s1')\n"
        "own.observe(lambda change: seen.append(change.new), 'outputs')"
    )
    cell = page.send("import time; time.sleep(0.3)")
    page.hear("execute_input")
    outputs = [{"output_type": "stream", "name": "stdout", "text": "a"}]
    sent = [page.comm("msg", "o1", update(outputs=outputs * n)) for n in (1, 2, 3)]
    # formerly, messages of other widgets were left out, too, if a trait had this name
    sent += [page.comm("msg", "s1", update(outputs=n)) for n in (7, 8, 9)]
    assert page.heard(cell).error == ""
    for each in sent:
        assert page.heard(each).kinds[-1] == "status"  # pages wait for it
    assert page.run("seen, len(out.outputs)").value == "([3, 7, 8, 9], 3)"


CELLS = [
    "import ipywidgets as w; s = w.IntSlider(value=3, description='n'); s",
    """
out = w.Output(); display(out)
with out:
    print('inside')
    display({'text/plain': 'd'}, raw=True)
print('outside')
""",
    "from tqdm.auto import tqdm\nfor _ in tqdm(range(5), desc='bar'): pass",
    """
@w.interact(n=(0, 5))
def show(n):
    import matplotlib.pyplot as plt
    plt.plot(range(n)); plt.show(); print('n is', n)
""",
    f"w.Image(value={PNG!r})",
    "s.value = 9",
    "%undo",
]


def models(notebook: Any, name: str) -> list[Any]:
    every = notebook.metadata.widgets[STATE]["state"].values()
    return [each for each in every if each["model_name"] == name]


def test_a_notebook_that_nbclient_runs_keeps_its_widgets_states() -> None:
    executed: Any = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    executed.cells = [nbformat.v4.new_code_cell(code) for code in CELLS]  # type: ignore[no-untyped-call]
    NotebookClient(executed, kernel_name="wasm-python", timeout=SECONDS).execute()
    nbformat.validate(executed)
    slider = next(m for m in models(executed, "IntSliderModel") if m["state"]["description"] == "n")
    assert slider["state"]["value"] == 3  # 9 was undone
    view = executed.cells[0].outputs[0].data[VIEW]
    assert view["model_id"] in executed.metadata.widgets[STATE]["state"]
    streams = [o.text for o in executed.cells[1].outputs if o.output_type == "stream"]
    assert streams == ["outside\n"]
    captured, figure = (m["state"]["outputs"] for m in models(executed, "OutputModel")[:2])
    assert [o["output_type"] for o in captured] == ["stream", "display_data"]
    assert captured[0]["text"] == "inside\n"
    assert any("image/png" in output.get("data", {}) for output in figure)
    assert any("n is 2" in output.get("text", "") for output in figure)
    [bar] = models(executed, "FloatProgressModel")
    assert (bar["state"]["value"], bar["state"]["bar_style"]) == (5, "success")
    assert any("100%" in m["state"]["value"] for m in models(executed, "HTMLModel"))
    [picture] = models(executed, "ImageModel")
    assert base64.b64decode(picture["buffers"][0]["data"]) == PNG
