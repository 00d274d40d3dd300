"""Frames and tables of comms; widgets' callbacks as turns of a real guest; travels' effects."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faces import PATIENCE, put_back
from tests.listening import Page
from wasm_kernel import Sandbox, create_sandbox
from wasm_kernel.errors import FrameError, Interrupted
from wasm_kernel.execution.comms import TARGETS_MOST, Comms
from wasm_kernel.guests.protocol import CommTarget, decode
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import COMMS_MOST, CommKind, CommMessage

OPENED = {"op": "comm_open", "comm_id": "c", "target_name": "t"}


def frame(**fields: Any) -> Any:
    return decode(json.dumps(OPENED | fields).encode())


def test_a_message_is_read_with_its_buffers() -> None:
    got = frame(data={"a": 1}, metadata={"v": "2"}, buffers=["AAE=", ""], target_module="m")
    assert got == CommMessage("open", "c", {"a": 1}, "t", "m", {"v": "2"}, (b"\0\1", b""))
    assert frame(op="comm_close") == CommMessage("close", "c")
    assert frame(op="comm_target", name="t") == CommTarget("t")


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("$.comm_id", {"comm_id": ""}),
        ("$.comm_id", {"comm_id": "x" * 201}),
        ("comm_id is not a name", {"comm_id": "a\nb"}),
        ("target_name is not a name", {"target_name": "\x1b[2J"}),
        ("$.data", {"data": [1]}),
        ("$.buffers", {"buffers": "AAE="}),
        ("$.buffers", {"buffers": ["A"]}),
        ("$.buffers", {"buffers": ["AA\n=="]}),
        ("$.buffers", {"buffers": [""] * 10_001}),
        ("`name`", {"op": "comm_target"}),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(why: str, fields: dict[str, Any]) -> None:
    with pytest.raises(FrameError) as caught:
        frame(**fields)
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (CommMessage("msg", "c", {"x": float("nan")}), "can't be delivered"),
        (CommMessage("msg", "c", buffers=(bytes(49 << 20),)), "the most is 48 MiB"),
    ],
)
def test_messages_that_fit_no_frame_are_refused_in_words(message: CommMessage, words: str) -> None:
    comms, told = Comms(), Page()
    comms.from_guest(frame())
    assert comms.from_page(message, {}, told) is None
    assert words in told.text


# -- the table


def opened(*ids: str) -> Comms:
    comms = Comms()
    comms.sync({})
    for one in ids:
        comms.from_guest(CommMessage("open", one, target_name="t"))
    return comms


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"comms": [], "targets": {}},
        {"comms": {"x" * 201: "t", "a": 1, "": "t"}, "targets": [1, None, "\n"]},
        {"comms": {str(n): "t" for n in range(COMMS_MOST + 5)}, "targets": ["t"] * 5000},
    ],
)
def test_a_hostile_answer_is_taken_as_far_as_it_makes_sense(reply: dict[str, Any]) -> None:
    comms = opened("stale")
    assert comms.sync(reply) == ["stale"]
    assert len(comms.open) <= COMMS_MOST


def test_a_page_opens_comms_to_registered_targets_whose_number_is_limited() -> None:
    comms = Comms()
    assert comms.from_page(frame(), {}, Page()) is None
    assert comms.open == {}
    comms.add_target("t")
    assert comms.from_page(frame(), {}, Page()) is not None
    assert comms.open == {"c": "t"}
    comms = Comms()
    for one in range(TARGETS_MOST):
        comms.add_target(str(one))
    with pytest.raises(FrameError):
        comms.add_target("one more")


SLIDER = "import ipywidgets as w\ns = w.IntSlider(value=3, model_id='s1')\nx = 0\n"
OBSERVED = SLIDER + "def f(c):\n    global x\n    x = c.new\n    print('now', x)\n"
OBSERVED += "s.observe(f, 'value')"
PARENT = {"msg_id": "m7", "msg_type": "comm_msg"}


class Notebook:
    """A sandbox, and a page that talks to it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.page = Page()

    def run(self, code: str) -> str:
        result = self.sandbox.execute(code, listener=self.page, parent=PARENT)
        assert result.success, result.error
        return result.stdout.strip()

    def say(self, kind: CommKind, comm_id: str, data: Any = None, **fields: Any) -> Page:
        page = Page()
        message = CommMessage(kind, comm_id, data or {}, **fields)
        self.sandbox.comm(message, parent=PARENT, listener=page).result(PATIENCE)
        return page

    def move(self, value: int, comm_id: str = "s1") -> Page:
        state = {"method": "update", "state": {"value": value}, "buffer_paths": []}
        return self.say("msg", comm_id, state)


@pytest.fixture
def notebook(module_sandbox: Sandbox) -> Notebook:
    """The file's sandbox in its first state, with a page of the test's own."""
    return Notebook(put_back(module_sandbox))


def test_ipywidgets_is_at_hand_and_not_imported(notebook: Notebook) -> None:
    asked = "import sys; print('ipywidgets' in sys.modules, len(get_ipython().kernel.comm_manager"
    assert notebook.run(f"{asked}.targets))") == "False 0"
    notebook.run("from ipywidgets.widgets import widget_int; import ipywidgets, pkgutil")
    assert notebook.run("print(widget_int.IntSlider is ipywidgets.IntSlider)") == "True"
    assert notebook.run("print(pkgutil.get_data('ipywidgets', '__init__.py') is None)") == "False"
    assert notebook.run(f"{asked}.targets))") == "True 2"


def test_a_message_on_no_comm_is_dropped_and_an_opening_is_answered(notebook: Notebook) -> None:
    assert not notebook.move(7, "nobody").said
    opened = notebook.say("open", "c1", target_name="jupyter.widget.control")
    assert opened.said == [CommMessage("close", "c1")]


# -- limits


def test_a_callback_that_does_not_let_itself_be_interrupted_is_stopped(tmp_path: Path) -> None:
    body = "    while True:\n        try:\n            while True: pass\n"
    body += "        except BaseException: pass\n"
    policy = ExecutionPolicy(comm_seconds=0.5, grace_seconds=0.3)
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as made:
        notebook = Notebook(made)
        notebook.run(SLIDER + f"def spin(c):\n{body}s.observe(spin, 'value')")
        with pytest.raises(Interrupted):
            notebook.move(7)
        assert notebook.run("print(s.value)") == "3"
        assert notebook.page.said[-1].data["state"]["value"] == 3


# -- journeys in memory


def test_changes_by_a_callback_are_taken_back_with_the_cell_before(notebook: Notebook) -> None:
    notebook.run(OBSERVED)
    notebook.run("y = 1")
    for value in range(5):
        notebook.move(value)
    notebook.page.said.clear()
    notebook.run("%undo")
    assert notebook.page.said[-1].data["state"]["value"] == 3
    assert notebook.move(9).text == "now 9\n"
    assert notebook.run("%redo").endswith("] y = 1")
    assert notebook.run("print(x, s.value)") == "4 4"
    notebook.run("%undo 2")
    assert notebook.run("print(x, 'y' in dir(), s.value)") == "0 False 3"
    control = {"target_name": "jupyter.widget.control", "metadata": {"version": "1.0.0"}}
    assert notebook.say("open", "c1", **control).said == []  # it is not closed


def test_many_callbacks_take_no_cell_out_of_the_history(tmp_path: Path) -> None:
    policy = ExecutionPolicy(history_cells=3)
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as made:
        notebook = Notebook(made)
        notebook.run(OBSERVED)
        notebook.run("y = 1")
        for value in range(12):
            notebook.move(value)
        notebook.run("z = 1")
        time.sleep(0.5)  # for the folding that happens in a pause
        notebook.run("%undo 2")
        assert notebook.run("print(x, 'y' in dir(), 'z' in dir())") == "0 False False"


def test_a_widget_whose_closing_is_undone_is_opened_again(notebook: Notebook) -> None:
    notebook.run(OBSERVED)
    notebook.run("s.close()")
    assert notebook.page.kinds("s1") == ["open", "close"]
    notebook.run("%undo")
    assert notebook.page.kinds("s1") == ["open", "close", "open"]
    assert notebook.move(6).text == "now 6\n"


def test_the_travels_of_an_owner_are_told_with_the_next_message(notebook: Notebook) -> None:
    notebook.run(SLIDER)
    notebook.run("t = w.IntText(model_id='t1')")
    notebook.sandbox.undo()
    notebook.run("pass")
    assert notebook.page.kinds("t1") == ["open", "close"]
