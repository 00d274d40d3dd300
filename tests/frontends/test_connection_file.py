"""The connection file and its sockets; messages of clients, and replies to them."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
from jupyter_client.session import Session

from tests.faces import PATIENCE
from wasm_kernel.errors import CompileError, WasmKernelError
from wasm_kernel.frontends.jupyter.app import WasmKernelApp
from wasm_kernel.frontends.jupyter.channels import Publisher, ShellChannel, StdinChannel
from wasm_kernel.frontends.jupyter.connection import KernelConnection, KernelSockets
from wasm_kernel.frontends.jupyter.page import Page, header_of
from wasm_kernel.frontends.jupyter.ports import Ports, listen
from wasm_kernel.frontends.jupyter.timeline import TARGET, KernelTimeline
from wasm_kernel.kernels import messages
from wasm_kernel.kernels.settings import connection_path, session_of_file
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CellError, Checkpoint, CommMessage, Ran, SandboxResult
from wasm_kernel.service.messages import States

UUID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"


def test_a_connection_file_names_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session_of_file(tmp_path / f"kernel-{UUID}.json") == UUID
    path, named = tmp_path / "kernel-x.json", []
    for key in ("k", "k", "l"):
        path.write_text(json.dumps({"key": key}))
        named.append(session_of_file(path))
    assert named[0] == named[1] != named[2]
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))  # a plain name belongs into it
    assert connection_path("kernel-none.json") == tmp_path / "kernel-none.json"


def connection(path: Path) -> KernelConnection:
    return KernelConnection(connection_file=str(path))


def test_a_file_without_a_key_is_refused_and_one_for_others_closed(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_text(json.dumps({"key": "", "shell_port": 1}))
    with pytest.raises(WasmKernelError, match="holds no key"):
        connection(path).open(allow_unsigned=False)
    opened = connection(path)
    opened.open(allow_unsigned=True)
    assert opened.shell_port == 1
    path = tmp_path / "open.json"
    path.write_text(json.dumps({"key": "secret"}))
    path.chmod(0o666)
    connection(path).open(allow_unsigned=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"transport": "tcp", "ip": "a.host", "shell_port": 9999}']
)
def test_a_file_that_names_no_address_is_left_to_the_kernel(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert listen(["-f", str(path)]).descriptors == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ip": 3}'])
def test_a_damaged_file_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(WasmKernelError):
        connection(path).open(allow_unsigned=False)


def test_a_file_of_our_own_has_a_key_and_half_characters_are_sent(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernel.json"
    opened = connection(path)
    opened.open(allow_unsigned=False)
    opened.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["key"]
    opened.cleanup()
    assert not path.exists()
    opened = connection(tmp_path / "connection.json")
    opened.open(allow_unsigned=False)
    session, sent = opened.session, {"x": "\udc80 \ud800"}
    _, parts = session.feed_identities(session.serialize(session.msg("status", sent)))
    assert session.deserialize(parts)["content"] == sent


def test_a_client_that_sends_without_end_does_not_keep_the_loop_from_all_else() -> None:
    """Formerly, a client without the key kept the kernel busy to its end, and took its memory."""
    most, context, turns = 200, zmq.Context(), list[int]()

    async def take() -> None:
        received, all_there, loop = list[object](), asyncio.Event(), asyncio.get_running_loop()

        def receive(message: object) -> None:
            received.append(message)
            loop.call_soon(lambda: turns.append(len(received)))
            if len(received) == most:
                all_there.set()

        socket, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        with closing(socket), closing(client):
            socket.bind("inproc://shell")
            client.connect("inproc://shell")
            for _ in range(most):
                client.send(b"")
            channel = ShellChannel(socket)
            channel.on_recv(receive)
            await asyncio.wait_for(all_there.wait(), PATIENCE)
            loop.remove_reader(socket.fileno())

    try:
        asyncio.run(take())
    finally:
        context.destroy(linger=0)
    assert len(set(turns)) > most / 2


def test_topics_without_end_are_not_told_to_all_others() -> None:
    session, context = Session(key=b"k"), zmq.Context()
    socket = context.socket(zmq.XPUB)
    address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    publisher = Publisher(socket, session)
    stranger = context.socket(zmq.XSUB)
    try:
        stranger.connect(address)
        for topic in (*(b"topic %d" % n for n in range(500)), b""):
            stranger.send(b"\x01" + topic)
        welcomes = 0
        while (welcome := heard(stranger, session, publisher))["content"]["subscription"]:
            welcomes += 1
    finally:
        publisher.close()
        context.destroy(linger=0)
    assert welcome["msg_type"] == "iopub_welcome"
    assert welcomes == 100


def test_a_client_that_subscribes_to_a_long_topic_is_disconnected(tmp_path: Path) -> None:
    """Formerly, a topic of 60 MB from anyone who reached the port took 6 GB of the kernel."""
    opened = connection(tmp_path / "connection.json")
    opened.open(allow_unsigned=False)
    sockets, context = KernelSockets(opened, Ports()), zmq.Context()
    try:
        client, ended = context.socket(zmq.XSUB), 0
        events = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        client.connect(f"tcp://127.0.0.1:{opened.iopub_port}")
        client.send(b"\x01kernel.status")
        welcome = heard(client, opened.session, sockets.iopub)["content"]
        client.send(b"\x01" + bytes(100_000))
        ended = events.poll(int(PATIENCE * 1000))
    finally:
        sockets.close()
        context.destroy(linger=0)
    assert welcome == {"subscription": "kernel.status"}
    assert ended


def heard(client: zmq.Socket[Any], session: Session, publisher: Publisher) -> dict[str, Any]:
    """Returns the next message of a client, while the publisher looks for clients."""
    until = time.monotonic() + PATIENCE
    while not client.poll(1):
        assert time.monotonic() < until
        publisher.welcome()
    _, parts = session.feed_identities(client.recv_multipart())
    return session.deserialize(parts)


TAKEN_PORT = """
import os, socket, sys, threading
from wasm_kernel.frontends.jupyter import connection as ours
from wasm_kernel.frontends.jupyter.connection import KernelConnection, KernelSockets
from wasm_kernel.frontends.jupyter.ports import Ports

ours._SECONDS_IN_USE = 60.0
taken = socket.create_server(("127.0.0.1", 0))
port = taken.getsockname()[1]
connection = KernelConnection(connection_file=sys.argv[1], shell_port=port)
connection.open(allow_unsigned=False)
threading.Timer(0.3, taken.close).start()
KernelSockets(connection, Ports())
os._exit(connection.shell_port != port)
"""


def test_a_port_that_is_free_a_moment_later_is_listened_on(tmp_path: Path) -> None:
    """A restarted kernel has the ports of the last one, which other processes may have taken."""
    command = [sys.executable, "-c", TAKEN_PORT, str(tmp_path / "k.json")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_question_waits_for_a_client_that_connects_late() -> None:
    session = Session(key=b"secret")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        answered = threading.Thread(target=_answer_late, args=(context, port, session))
        answered.start()
        channel = StdinChannel(router, session)
        until = time.monotonic() + PATIENCE
        said = channel.ask(
            "name?", False, parent={}, ident=b"me", interrupted=lambda: time.monotonic() > until
        )
        answered.join()
    assert said == "Ada"


def _answer_late(context: zmq.Context[Any], port: int, session: Session) -> None:
    time.sleep(0.2)
    with context.socket(zmq.DEALER) as client:
        client.linger = int(PATIENCE * 1000)
        client.identity = b"me"
        client.connect(f"tcp://127.0.0.1:{port}")
        if client.poll(PATIENCE * 1000):
            session.recv(client, 0)
            session.send(client, "input_reply", {"value": "Ada"})


SAFELY = Cleaner(Mode.SAFE)


def result(error: CellError | None = None, **reply: Any) -> SandboxResult:
    return SandboxResult(
        error is None, "", "", 0, error, None, 0, 0.0, (), (), (), Path(), (), reply
    )  # fmt: skip


def test_replies_keep_their_shape_and_guests_hear_of_no_sender() -> None:
    reply = messages.execute_reply(result(user_expressions=[1], payload={"a": 1}), 4, SAFELY)
    assert reply == {"status": "ok", "execution_count": 4, "user_expressions": {}, "payload": []}
    header = {"msg_id": "m", "msg_type": "comm_msg", "username": "ada", "session": "s", "date": 1}
    assert header_of({"header": header}) == {"msg_id": "m", "msg_type": "comm_msg"}
    assert header_of({}) == {}


@pytest.mark.parametrize(
    ("problem", "name", "words"),
    [
        (CompileError("It does not compile."), "CompileError", "It does not compile."),
        (
            PermissionError(13, "Permission denied", "/a/path/of/the/host"),
            "PermissionError",
            "The sandbox could not be started: Permission denied.",
        ),
        (LookupError("/a/path"), "LookupError", "The kernel failed in a way that it never should"),
    ],
)
def test_why_a_start_failed_is_told_in_words(problem: Exception, name: str, words: str) -> None:
    error = messages.of_problem(problem)
    assert error.ename == name
    assert error.evalue.startswith(words)
    assert "/a/path" not in error.evalue


@pytest.mark.parametrize("value", ["x", [1], {"ename": 1}, None, {"status": "ok", "data": 3}])
def test_a_malformed_user_expression_does_no_harm(value: Any) -> None:
    reply = messages.execute_reply(result(user_expressions={"it": value}), 1, SAFELY)
    assert reply["user_expressions"]["it"]["status"] in ("ok", "error")


@pytest.mark.parametrize(
    "item", [1, {}, {"source": "edit_magic", "filename": "x"}, {"source": ["page"]}]
)
def test_an_unknown_payload_is_dropped(item: Any) -> None:
    assert messages.payloads([item], SAFELY, lambda: False) == []


def test_payloads_are_capped_in_number_and_size() -> None:
    text = "x" * (messages.PAYLOAD_CHARACTERS + 1)
    many = [{"source": "set_next_input", "text": text}] * 100
    found = messages.payloads(many, SAFELY, lambda: False)
    assert len(found) == messages.PAYLOADS
    assert found[0]["text"].endswith("[cut: it is longer than a cell may send]")


@pytest.mark.parametrize("count", [True, -1, "3", 2**60, None, 1.5])
def test_an_invalid_count_is_not_believed(count: Any) -> None:
    assert messages.count_of({"execution_count": count}) is None


def test_only_known_kinds_of_completions_pass() -> None:
    types = [{"text": "a\x07", "type": "function", "start": 0, "label": "<img src=x>"}, 7]
    hostile = {"matches": ["a"], "metadata": {"_jupyter_types_experimental": types, "x": "<b>"}}
    metadata = messages.complete_reply(hostile, 1)["metadata"]
    assert metadata["_jupyter_types_experimental"][0] == {
        "text": "a", "type": "function", "signature": "", "start": 0
    }  # fmt: skip
    assert set(metadata) == {"_jupyter_types_experimental"}


def state(one: int, parent: int) -> Checkpoint:
    return Checkpoint("", one, f"cell {one}", 0.0, 1, one == 1, one, parent)


def tree_of(states: States) -> Any:
    """The tree that a view gets when a worker has these states."""
    told: asyncio.Queue[CommMessage] = asyncio.Queue()

    def call(request: object) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(states)
        return future

    async def tree() -> Any:
        sandbox: Any = SimpleNamespace(call=call, policy=ExecutionPolicy())
        timeline = KernelTimeline(sandbox, lambda parent, message: told.put_nowait(message))
        timeline.answer({}, CommMessage("open", "view", target_name=TARGET))
        return (await asyncio.wait_for(told.get(), PATIENCE)).data

    trees: list[Any] = []
    thread = threading.Thread(target=lambda: trees.append(asyncio.run(tree())), daemon=True)
    thread.start()  # a loop without an end fails this test alone
    thread.join(PATIENCE)
    return trees[0]


def test_a_circle_of_states_holds_up_no_kernel() -> None:
    states = [state(1, 2), state(2, 1), state(3, 99)]
    found = tree_of(States(states, 77, {1: Ran(sent=True), 5: Ran()}, saved=True))
    assert [each["id"] for each in found["states"]] == [1, 2, 3]
    assert (found["here"], found["redo"]) == (1, 0)
    assert [each["sent"] for each in found["states"]] == [True, False, False]


def test_a_kernel_remembers_a_thousand_cells_at_most() -> None:
    """Before, a worker that was taken over could fill the memory of its front end with cells."""
    states = [state(one, 0) for one in range(1, 1501)]
    ran = {each.id: Ran(cell_id=f"cell {each.id}") for each in states}
    assert len(tree_of(States(states, ran=ran, saved=True))["gone"]) <= 1000


def test_a_note_of_a_worker_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a worker that was taken over could write lines into it that seemed others'."""
    app = WasmKernelApp()
    monkeypatch.setattr(app, "log", logging.getLogger("heard"))
    app._show_note("[wasm-kernel] said\r\x1b[2J\n[I ServerApp] forged\n")
    assert caplog.messages == [r"said\r\n[I ServerApp] forged"]


def test_a_cell_of_blank_lines_holds_up_no_kernel() -> None:
    """Before, the search for `%timeline` took time that grew with their square."""
    page, began = cast(Page, SimpleNamespace(cleaner=SAFELY)), time.process_time()
    asyncio.run(Page.show_timeline(page, "x = 1\n" + "\n" * 100_000 + "y", {}))
    assert time.process_time() - began < 2.0
