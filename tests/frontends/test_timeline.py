"""The timeline's comm at the kernel, over real sockets, on a fake sandbox whose worker lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.frontends.conftest import SECONDS, Driven, starting_in
from wasm_kernel.frontends.jupyter.timeline import TARGET

LIES = """
from wasm_kernel.result import Checkpoint
from wasm_kernel.service.messages import States
from wasm_kernel.result import Ran, Travelled
def state(one, parent):
    return Checkpoint('', one, f'cell {one}', 0.0, 1, one == 1, one, parent)
calls = []
written = [False, False, True]
def on_call(request):
    calls.append(type(request).__name__)
    if calls[-1] == 'Travel':
        return Travelled(files_left=('<b>.txt',))
    states = [state(1, 2), state(2, 1), state(3, 99)]
    saved = written.pop(0) if written else True
    return States(states, 77, {1: Ran(sent=True), 5: Ran()}, saved=saved)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    with starting_in(tmp_path_factory.mktemp("timeline")) as start:
        yield start()


SHOWN = '"""\n%timeline\n"""'  # any cell on the fake sandbox with the magic in a line of its own
WIDGET = "application/vnd.jupyter.widget-view+json"


def _send(kernel: Driven, kind: str, comm: str, **content: Any) -> None:
    session = kernel.kc.session
    sent = session.msg(f"comm_{kind}", {"comm_id": comm, "data": {}, **content})
    session.send(kernel.kc.shell_channel.socket, sent)


def _state(model: str, module: str = "controls", **traits: Any) -> dict[str, Any]:
    own = {"_model_module": f"@jupyter-widgets/{module}", "_model_name": f"{model}Model"}
    return {**own, "_view_module": None, "_view_name": None, **traits}


def _hear(kernel: Driven, comm: str) -> dict[str, Any]:
    """The data of the next message on a comm."""
    while True:
        got = kernel.kc.get_iopub_msg(timeout=SECONDS)
        if got["content"].get("comm_id") == comm:
            return dict(got["content"]["data"])


def test_a_page_without_the_panel_gets_a_widget_that_no_cell_can_use(kernel: Driven) -> None:
    kernel.run(LIES)
    _, heard = kernel.run(SHOWN)
    opened = [each["content"] for each in heard if each["msg_type"] == "comm_open"]
    states = {each["comm_id"]: each["data"]["state"] for each in opened}
    [shown] = [each["content"]["data"] for each in heard if each["msg_type"] == "display_data"]
    assert states[shown[WIDGET]["model_id"]]["_model_name"] == "VBoxModel"
    [(choice, rows)] = [each for each in states.items() if "_options_labels" in each[1]]
    starts = [
        "\u25c9 [1] cell 1 \u00b7 here",
        "\u25cf [2] cell 2",
        "\u25cb [3] cell 3 \u00b7 undone",
    ]
    for label, start in zip(rows["_options_labels"], starts, strict=True):
        assert label.startswith(start)
    [go] = [one for one, each in states.items() if each.get("description") == "Go back to here"]
    [said] = [one for one, each in states.items() if each["_model_name"] == "HTMLModel"]
    press = {"method": "custom", "content": {"event": "click"}}
    _, heard = kernel.run(
        f"comm('msg', {go!r}, {press!r}); comm('close', {choice!r})\n"
        f"comm('open', {said!r}, {{}}, target_name='jupyter.widget')"
    )
    forged = [each["content"] for each in heard if each["msg_type"].startswith("comm_")]
    assert [each for each in forged if each["comm_id"] != choice or not each["data"]] == []
    assert "Travel" not in kernel.value("calls")
    _send(kernel, "msg", choice, data={"method": "update", "state": {"index": 2}})
    _send(kernel, "msg", go, data=press)
    assert "Files stay as they are: &lt;b&gt;.txt." in _hear(kernel, said)["state"]["value"]
    assert kernel.value("calls.count('Travel')") == "1"
    _, heard = kernel.run(SHOWN)  # the last widget goes
    closed = {each["content"]["comm_id"] for each in heard if each["msg_type"] == "comm_close"}
    assert closed == {*states}
    _, heard = kernel.run(SHOWN, allow_stdin=False)  # such as by nbclient
    assert "display_data" not in [each["msg_type"] for each in heard]


def test_a_cell_that_knows_the_widgets_ids_can_neither_show_nor_link_its_models(
    kernel: Driven,
) -> None:
    """A saved notebook has the ids, and a cell may read the notebook's file."""
    kernel.run(LIES)
    _, heard = kernel.run(SHOWN)
    opened = [each["content"] for each in heard if each["msg_type"] == "comm_open"]
    [go] = [
        each["comm_id"]
        for each in opened
        if each["data"]["state"].get("description") == "Go back to here"
    ]
    _send(kernel, "open", "control", target_name="jupyter.widget.control")
    claimed = {"model_name": "ButtonModel", "state": _state("Button")}
    outputs = [{"output_type": "display_data", "data": {WIDGET: {"model_id": go}}}]
    ends = [[f"IPY_MODEL_{one}", "description"] for one in ("own", go)]
    told = [
        ("open", "own", {"state": _state("Button", description="Win")}),
        ("open", "box", {"state": _state("VBox", children=[f"IPY_MODEL_{go}"])}),
        ("open", "out", {"state": _state("Output", "output", outputs=outputs)}),
        ("msg", "control", {"method": "update_states", "states": {go: claimed}}),
        ("open", "link", {"state": _state("Link", source=ends[0], target=ends[1])}),
    ]
    _, heard = kernel.run(
        f"for each in {told!r}: comm(*each, target_name='jupyter.widget')\n"
        f"display({{{WIDGET!r}: {{'model_id': {go!r}}}}})"
    )
    shown = [
        each for each in heard if each["msg_type"] in ("comm_open", "comm_msg", "display_data")
    ]
    assert "Win" in str(shown)
    assert go not in str(shown)


def test_a_worker_that_sends_a_circle_of_states_holds_up_no_kernel(kernel: Driven) -> None:
    kernel.run(LIES)
    _send(kernel, "open", "view", target_name=TARGET)
    tree = _hear(kernel, "view")
    assert [each["id"] for each in tree["states"]] == [1, 2, 3]
    assert (tree["here"], tree["redo"]) == (1, 0)
    assert [each["sent"] for each in tree["states"]] == [True, False, False]
    assert kernel.value("6 * 7") == "42"


def test_a_view_hears_when_the_states_are_on_disk(kernel: Driven) -> None:
    kernel.run(LIES)
    _send(kernel, "open", "watching", target_name=TARGET)
    assert [_hear(kernel, "watching")["saved"] for _ in range(3)] == [False, False, True]
    _send(kernel, "close", "watching")


def test_a_cell_that_speaks_on_a_views_comm_is_not_heard(kernel: Driven) -> None:
    _send(kernel, "open", "secret", target_name=TARGET)
    _, heard = kernel.run(
        "comm('msg', 'secret', {'forged': 1}); comm('close', 'secret')\n"
        f"comm('open', 'mine', {{}}, target_name={TARGET!r})"
    )
    spoken = [each for each in heard if each["msg_type"].startswith("comm_")]
    assert [each for each in spoken if "event" not in each["content"]["data"]] == []
