"""Comm messages at the kernel, over real sockets, on a fake sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.conftest import SECONDS, Driven, starting_in
from wasm_kernel.frontends.jupyter.page import header_of

ECHO = "def on_comm(message, listener): seen.append(message); listener.comm(message)\nseen = []"


COMMS = ("c", "c1", "c8", "c9")
NAMES = ("on_comm", "seen", "at", "open_comms")


@pytest.fixture
def kernel(lasting: Driven) -> Iterator[Driven]:
    """The file's kernel; after the test no comm is open, and none has a target."""
    yield lasting
    lasting.settle()
    lasting.run(
        f"for each in {COMMS}: comm('close', each)\nfor each in {NAMES}: globals().pop(each, None)"
    )
    lasting.settle()


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """A kernel that shows everything unchanged."""
    with starting_in(tmp_path_factory.mktemp("trusted")) as start:
        yield start("--WasmKernel.outputs=trusted")


def say(kernel: Driven, kind: str, content: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """Sends a comm message; returns the messages under it, up to idle."""
    session = kernel.kc.session
    message = session.msg(kind, content, metadata=fields.get("metadata"))
    session.send(kernel.kc.shell_channel.socket, message, buffers=fields.get("buffers"))
    heard: list[dict[str, Any]] = []
    while True:
        got = kernel.kc.get_iopub_msg(timeout=SECONDS)
        if got["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            heard.append(got)
            if got["content"].get("execution_state") == "idle":
                return heard


def test_what_a_cell_says_on_a_comm_is_published_with_its_buffers(trusted: Driven) -> None:
    _, heard = trusted.run(
        "comm('open', 'c1', {'a': 1}, target_name='t', metadata={'version': '2'},"
        " buffers=(b'x', b'yz'))\ncomm('msg', 'c1', {'b': 2})\ncomm('close', 'c1')"
    )
    opened, said, closed = (m for m in heard if m["msg_type"].startswith("comm_"))
    assert opened["content"] == {
        "comm_id": "c1",
        "data": {"a": 1},
        "target_name": "t",
        "target_module": None,
    }
    assert [bytes(buffer) for buffer in opened["buffers"]] == [b"x", b"yz"]
    assert opened["metadata"]["version"] == "2"
    assert said["content"] == {"comm_id": "c1", "data": {"b": 2}}
    assert (closed["msg_type"], closed["content"]) == ("comm_close", {"comm_id": "c1", "data": {}})
    trusted.run(ECHO)  # and the other way
    heard = say(trusted, "comm_msg", {"comm_id": "c1", "data": {"v": 3}}, buffers=[b"abc"])
    assert [m["msg_type"] for m in heard] == ["status", "comm_msg", "status"]
    assert heard[1]["content"]["data"] == {"v": 3}
    assert trusted.value("[(m.kind, m.buffers) for m in seen]") == "[('msg', (b'abc',))]"


def test_messages_that_come_while_a_cell_computes_wait_for_it_in_order(kernel: Driven) -> None:
    kernel.run(ECHO + "\nat = []")
    first = kernel.kc.execute("behind(4); at.append(len(seen))")
    session, socket = kernel.kc.session, kernel.kc.shell_channel.socket
    for value in range(3):
        session.send(socket, session.msg("comm_msg", {"comm_id": "c1", "data": {"v": value}}))
    second = kernel.kc.execute("at.append(len(seen))")
    assert kernel.reply(first)["status"] == "ok"
    assert kernel.reply(second)["status"] == "ok"
    assert kernel.value("at, [m.data['v'] for m in seen]") == "([0, 3], [0, 1, 2])"


def test_the_last_messages_of_a_cell_keep_their_parent_while_comms_wait(kernel: Driven) -> None:
    kernel.run(ECHO)
    cells = []
    session, socket = kernel.kc.session, kernel.kc.shell_channel.socket
    for _ in range(3):
        cells.append(kernel.kc.execute("behind(1)"))
        session.send(socket, session.msg("comm_msg", {"comm_id": "c1", "data": {}}))
    states: dict[str, list[str]] = {}
    while "idle" not in states.get(cells[-1], []):
        got = kernel.kc.get_iopub_msg(timeout=SECONDS)
        if got["msg_type"] == "status":
            parent = got["parent_header"].get("msg_id")
            states.setdefault(parent, []).append(got["content"]["execution_state"])
    assert [states[cell] for cell in cells] == [["busy", "idle"]] * 3


def test_a_failed_cell_does_not_swallow_comm_messages(kernel: Driven) -> None:
    kernel.run(ECHO)
    failed = kernel.kc.execute("behind(2); 1/0")
    behind = kernel.kc.execute("pass")
    session = kernel.kc.session
    sent = session.msg("comm_msg", {"comm_id": "c1", "data": {}})
    session.send(kernel.kc.shell_channel.socket, sent)
    assert kernel.reply(failed)["status"] == "error"
    assert kernel.reply(behind)["status"] == "aborted"
    assert kernel.value("len(seen)") == "1"


def test_front_ends_are_told_which_comms_are_open(kernel: Driven) -> None:
    kernel.run("open_comms = {'a': 't', 'b': 'u'}")
    for target, found in ((None, ["a", "b"]), ("t", ["a"]), ("nothing", [])):
        reply = kernel.reply(kernel.kc.comm_info(target))
        assert (reply["status"], sorted(reply["comms"])) == ("ok", found)
        assert all(set(comm) == {"target_name"} for comm in reply["comms"].values())


def test_a_page_does_not_wait_for_a_first_start(
    start: Callable[..., Driven], tmp_path: Path
) -> None:
    kernel = start(FAKE_START=str(tmp_path / "go"))
    opened = {"comm_id": "c1", "target_name": "jupyter.widget.control", "data": {}}
    heard = say(kernel, "comm_open", opened)
    assert [m["content"] for m in heard if m["msg_type"] == "comm_close"] == [
        {"comm_id": "c1", "data": {}}
    ]
    assert kernel.reply(kernel.kc.comm_info())["comms"] == {}
    (tmp_path / "go").touch()
    assert kernel.value("1") == "1"


def test_a_message_whose_callback_is_stopped_says_why(kernel: Driven) -> None:
    kernel.run(
        "from wasm_kernel.errors import Interrupted\n"
        "def on_comm(message, listener): raise Interrupted(0.3)"
    )
    heard = say(kernel, "comm_msg", {"comm_id": "c1", "data": {}})
    (told,) = (m["content"]["text"] for m in heard if m["msg_type"] == "stream")
    assert "did not answer the interrupt within 0.3 seconds" in told


def test_an_odd_message_is_answered_with_idle(kernel: Driven) -> None:
    kernel.run(ECHO)
    odd = {"comm_id": 5}, {"comm_id": "c", "target_name": 3}, {"comm_id": "c", "data": [1]}
    for content in ({}, *odd):
        assert say(kernel, "comm_open", content)[-1]["content"]["execution_state"] == "idle"
    assert kernel.value("1") == "1"


def test_the_guest_is_told_a_messages_name_and_not_who_sent_it() -> None:
    header = {"msg_id": "m", "msg_type": "comm_msg", "username": "ada", "session": "s", "date": 1}
    assert header_of({"header": header}) == {"msg_id": "m", "msg_type": "comm_msg"}
    assert header_of({}) == {}


# -- in safe mode

HTML = {
    "_model_module": "@jupyter-widgets/controls",
    "_model_name": "HTMLModel",
    "_view_module": "@jupyter-widgets/controls",
    "_view_name": "HTMLView",
}
ATTACK = "<b>x</b><script>alert(1)</script>"


def opening(state: dict[str, Any]) -> str:
    return f"comm('open', 'c1', {{'state': {state!r}}}, target_name='jupyter.widget')"


def test_widgets_are_cleaned_and_what_they_lost_is_told_once(kernel: Driven) -> None:
    update = {"method": "update", "state": {"value": ATTACK}}
    _, heard = kernel.run(
        opening(HTML | {"value": ATTACK}) + f"\nfor _ in range(3): comm('msg', 'c1', {update!r})"
    )
    sent = [m["content"]["data"]["state"]["value"] for m in heard if "comm_" in m["msg_type"]]
    assert sent == ["<b>x</b>"] * 4
    notices = [m["content"]["text"] for m in heard if m["msg_type"] == "stream"]
    assert len(notices) == 1
    assert "scripts" in notices[0]
    assert "trusted" in notices[0]


def test_a_channel_to_anything_else_is_closed_at_both_ends(kernel: Driven) -> None:
    kernel.run("def on_comm(message, listener): seen.append((message.kind, message.comm_id))")
    _, heard = kernel.run("seen = []; comm('open', 'c9', {}, target_name='mine')")
    assert "comm_open" not in [m["msg_type"] for m in heard]
    assert "mine" in next(m["content"]["text"] for m in heard if m["msg_type"] == "stream")
    assert kernel.value("seen") == "[('close', 'c9')]"


def test_the_page_opens_channels_to_widgets_only(kernel: Driven) -> None:
    kernel.run(ECHO)
    heard = say(kernel, "comm_open", {"comm_id": "c8", "target_name": "mine", "data": {}})
    assert [m["msg_type"] for m in heard] == ["status", "stream", "comm_close", "status"]
    assert kernel.value("seen") == "[]"


def test_static_shows_no_widget_and_says_so_once(start: Callable[..., Driven]) -> None:
    kernel = start("--WasmKernel.outputs=static")
    _, heard = kernel.run("\n".join([opening(HTML)] * 3))
    assert [m["msg_type"] for m in heard] == ["status", "execute_input", "stream", "status"]
    opened = {"comm_id": "c8", "target_name": "jupyter.widget.control", "data": {}}
    heard = say(kernel, "comm_open", opened)
    assert [m["msg_type"] for m in heard] == ["status", "comm_close", "status"]
