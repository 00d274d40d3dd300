"""Connection files: the session that they name, and why they are refused; channels."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from tests.faces import PATIENCE
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.jupyter.channels import Publisher, ShellChannel
from wasm_kernel.frontends.jupyter.connection import KernelConnection, KernelSockets, RequestThread
from wasm_kernel.frontends.jupyter.ports import Ports, listen
from wasm_kernel.kernels.settings import connection_path, session_of_file

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


def test_a_file_without_a_key_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_text(json.dumps({"key": "", "shell_port": 1}))
    with pytest.raises(WasmKernelError, match="holds no key"):
        connection(path).open(allow_unsigned=False)
    opened = connection(path)
    opened.open(allow_unsigned=True)
    assert opened.shell_port == 1


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


def test_a_file_of_our_own_has_a_key_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernel.json"
    opened = connection(path)
    opened.open(allow_unsigned=False)
    opened.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["key"]
    opened.cleanup()
    assert not path.exists()


def test_a_request_that_is_under_way_when_the_control_channel_ends_ends_too() -> None:
    told, begun = list[str](), threading.Event()
    thread = RequestThread(daemon=True)  # type: ignore[no-untyped-call]  # ipykernel's

    async def request(name: str, seconds: float) -> None:
        begun.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            told.append(f"{name} cancelled")
        else:
            told.append(f"{name} done")

    for name, seconds in (("slow", 3600.0), ("quick", 0.01)):
        thread.io_loop.add_callback(request, name, seconds)
    thread.start()
    assert begun.wait(60)
    thread.stop()
    thread.join(60)
    assert told == ["quick done", "slow cancelled"]


def test_a_client_that_sends_without_end_does_not_keep_the_loop_from_all_else() -> None:
    """Before, a client without the key kept the kernel busy until it was killed, and took its
    memory.
    """
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


def test_requests_that_come_before_or_while_a_reply_leaves_are_handed_on() -> None:
    """An error's reply aborts the cells that were sent before it; no request is left behind."""
    context, order = zmq.Context(), list[bytes]()

    async def take() -> None:
        socket, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        senders, all_there = list[bytes](), asyncio.Event()

        def receive(message: list[zmq.Frame]) -> None:
            senders.append(message[0].bytes)
            order.append(message[1].bytes)
            if message[1].bytes == b"late":
                all_there.set()

        class Slow:
            """The socket, which sends another request of the client while a reply leaves."""

            def __getattr__(self, name: str) -> Any:
                return getattr(socket, name)

            def send_multipart(self, parts: list[bytes]) -> None:
                order.append(parts[1])
                client.send(b"late")
                socket.send_multipart(parts)

        with closing(socket), closing(client):
            socket.bind("inproc://shell")
            client.connect("inproc://shell")
            channel = ShellChannel(Slow())  # type: ignore[arg-type]
            channel.on_recv(receive)
            client.send(b"first")
            while not senders:
                await asyncio.sleep(0)
            client.send(b"second")
            channel.send_multipart([senders[0], b"reply"])
            await asyncio.wait_for(all_there.wait(), PATIENCE)
            asyncio.get_running_loop().remove_reader(socket.fileno())

    try:
        asyncio.run(take())
    finally:
        context.destroy(linger=0)
    assert order == [b"first", b"second", b"reply", b"late"]


def test_half_a_character_is_sent_as_it_came(tmp_path: Path) -> None:
    """msgspec refuses it; a reply repeats whatever a client says of itself."""
    connection = KernelConnection(connection_file=str(tmp_path / "connection.json"))
    connection.open(allow_unsigned=False)
    session, sent = connection.session, {"x": "\udc80 \ud800"}
    _, parts = session.feed_identities(session.serialize(session.msg("status", sent)))
    assert session.deserialize(parts)["content"] == sent


def test_a_clients_first_message_is_its_welcome_however_much_is_published() -> None:
    session, context, ended = Session(key=b"k"), zmq.Context(), threading.Event()
    socket = context.socket(zmq.XPUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    publisher = Publisher(socket, session)

    def publish() -> None:
        while not ended.is_set():
            publisher.send_multipart(session.serialize(session.msg("status"), b"status"))

    busy = threading.Thread(target=publish)
    busy.start()
    try:
        first = [first_message(context, session, port) for _ in range(50)]
    finally:
        ended.set()
        busy.join()
        publisher.close()
        context.destroy(linger=0)
    assert {message["msg_type"] for message in first} == {"iopub_welcome"}


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
    """Before, a topic of 60 MB from anyone who reached the port took 6 GB of the kernel."""
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
        publisher.look()
    _, parts = session.feed_identities(client.recv_multipart())
    return session.deserialize(parts)


def first_message(context: zmq.Context[Any], session: Session, port: int) -> dict[str, Any]:
    """Returns the first message of a new client."""
    with closing(context.socket(zmq.SUB)) as client:
        client.subscribe(b"")
        client.connect(f"tcp://127.0.0.1:{port}")
        assert client.poll(PATIENCE * 1000)
        _, parts = session.feed_identities(client.recv_multipart())
        return session.deserialize(parts)
