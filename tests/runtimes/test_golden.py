"""The golden frames: the bytes that the agent writes, and the bytes that it must understand."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import StdinNotImplementedError
from wasm_kernel_agent.comms import CommServer, GuestComm, GuestCommManager
from wasm_kernel_agent.display import Outbox
from wasm_kernel_agent.host import FrameChannel, run_host_command
from wasm_kernel_agent.host_functions import OfferedFunctions, _AwaitedCalls
from wasm_kernel_agent.magics.basics import parse_limits
from wasm_kernel_agent.notebook_face import KernelFace
from wasm_kernel_agent.signals import SignalHandlers, Stdin

GOLDEN = Path(__file__).resolve().parents[2] / "runtimes" / "golden"
ANSWER = b"{}"


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes().strip()


def clean_exit(channel: FrameChannel) -> None:
    with pytest.raises(SystemExit):
        SignalHandlers(channel).kill(os.getpid(), signal.SIGTERM)


def ask(channel: FrameChannel) -> None:
    stdin = Stdin(channel)
    stdin.allowed = True
    with pytest.raises(StdinNotImplementedError):
        stdin.input("name? ")


def command(channel: FrameChannel) -> None:
    shell = SimpleNamespace(agent=SimpleNamespace(channel=channel))
    assert run_host_command(shell, "prune_sessions", "--older-than 24h") is None


REPLY = {
    "status": "ok",
    "execution_count": 1,
    "user_expressions": {},
    "payload": [{"source": "set_next_input", "text": "x", "replace": False}],
}
IMAGE = {"text/plain": "'é'", "image/png": b"\x89PNG\r"[:4]}
VALUES = {"application/json": {"a": (1, float("nan"), None)}}
STATE = {"state": {"value": "é", "max": float("inf")}, "buffer_paths": [["a"]]}
UPDATE = {"method": "update", "state": {"value": 3}}


def talk(kind: str, **fields: Any) -> Callable[[FrameChannel], None]:
    def say(channel: FrameChannel) -> None:
        one = GuestComm(comm_id="c1", primary=False, target_name="jupyter.widget")
        one._closed = True
        one.send_frame = channel.send
        one.publish_msg(kind, **fields)

    return say


def function(channel: FrameChannel, **kind: bool) -> Callable[..., Any]:
    """Makes a function of the host, in place of all earlier ones."""
    either, by_name = {"name": "args", "kind": 2}, {"name": "kwargs", "kind": 4}
    OfferedFunctions(channel).offer([{"name": "look_up", "parameters": [either, by_name], **kind}])
    made: Callable[..., Any] = vars(builtins).pop("look_up")
    return made


def call_later(channel: FrameChannel) -> None:
    """Begins to await a function of the host."""
    made = function(channel, is_async=True)
    with contextlib.suppress(KeyError):  # the answer has no number
        made(1, b"\x89PNG"[:4], high=float("inf"), big=2**70).send(None)


def read_stream(channel: FrameChannel) -> None:
    """Reads a stream of the host that has no items."""

    def call(data: bytes) -> bytes:
        return b'{"stream":7}' if json.loads(data)["op"] == "call" else channel._call(data)

    assert [*function(FrameChannel(call), is_stream=True)()] == []


def leave_stream(channel: FrameChannel) -> None:
    """Takes one item of a stream of the host."""

    def call(data: bytes) -> bytes:
        answers = {"call": b'{"stream":7}', "item": b'{"value":1}'}
        op = json.loads(data)["op"]
        return answers[op] if op in answers else channel._call(data)

    stream = function(FrameChannel(call), is_stream=True)()
    assert next(stream) == 1
    stream.close()


def await_calls(channel: FrameChannel) -> None:
    """Waits for the awaited calls of the host."""
    _AwaitedCalls(channel).wait(0.05)


class Shell:
    """The parts of a shell through which a comm message passes."""

    def __init__(self) -> None:
        self.parent_header: dict[str, Any] = {}
        self.kernel = KernelFace(self, GuestCommManager(lambda frame: {}))

    def set_parent(self, parent: dict[str, Any]) -> None:
        self.parent_header = parent


def hear(op: str) -> Callable[[FrameChannel], None]:
    """Hand the agent a message; return its frames of this op."""

    def listen(channel: FrameChannel) -> None:
        def call(data: bytes) -> bytes:
            if json.loads(data)["op"] == op:
                channel._call(data)
            return b'{"message":' + golden("request_comm") + b"}"

        shell: Any = Shell()
        CommServer(shell, SignalHandlers(channel), Stdin(channel), FrameChannel(call)).serve_next()

    return listen


OPENED = {"target_name": "jupyter.widget", "target_module": None}
WRITES: dict[str, Callable[[FrameChannel], Any]] = {
    "frame_next": lambda channel: channel.send({"op": "next"}),
    "frame_display": lambda channel: Outbox(channel).send_bundle(
        "display", IMAGE, {"image/png": {"width": 2}}, transient={"display_id": "a"}
    ),
    "frame_update_display": lambda channel: Outbox(channel).send_bundle(
        "update_display", VALUES, None, transient={"display_id": "a"}
    ),
    "frame_clear_output": lambda channel: Outbox(channel).send(
        {"op": "clear_output", "wait": True}
    ),
    "frame_result": lambda channel: Outbox(channel).send_bundle(
        "result", {"text/plain": "2"}, {}, execution_count=1
    ),
    "frame_error": lambda channel: Outbox(channel).send_error(
        "ValueError", "ü", ["\x1b[31mValueError\x1b[39m: ü"]
    ),
    "frame_input": ask,
    "frame_comm_open": talk(
        "comm_open",
        data=STATE,
        metadata={"version": "2.1.0"},
        buffers=[memoryview(b"\x89PNG")],
        **OPENED,
    ),
    "frame_comm_msg": talk("comm_msg", data=UPDATE),
    "frame_comm_close": talk("comm_close"),
    "frame_comm_next": hear("comm_next"),
    "frame_comm_done": hear("comm_done"),
    "frame_comm_target": lambda channel: GuestCommManager(channel.send).register_target(
        "jupyter.widget", print
    ),
    "frame_limit": lambda channel: channel.send(
        {"op": "limit", **parse_limits("seconds=0.5 fuel=1e9")}
    ),
    "frame_terminate": clean_exit,
    "frame_command": command,
    "frame_call": call_later,
    "frame_item": read_stream,
    "frame_drop": leave_stream,
    "frame_finished": await_calls,
    "frame_done": lambda channel: channel.send({"op": "done", "reply": REPLY}),
}


def test_every_golden_frame_has_its_writer() -> None:
    assert {path.stem for path in GOLDEN.glob("frame_*.json")} == set(WRITES)


@pytest.mark.parametrize("name", WRITES)
def test_the_agent_writes_the_golden_frame(name: str) -> None:
    sent: list[bytes] = []

    def call(data: bytes) -> bytes:
        sent.append(data)
        return golden("answer_refused") if name == "frame_input" else golden("answer_taken")

    WRITES[name](FrameChannel(call))
    assert sent == [golden(name)]


@pytest.fixture
def stdin_answered() -> Iterator[Callable[[str], str]]:
    def answered(name: str) -> str:
        stdin = Stdin(FrameChannel(lambda data: golden(name)))
        stdin.allowed = True
        return stdin.input("? ")

    yield answered


def test_golden_lines_interrupts_refusals_are_told(stdin_answered: Callable[[str], str]) -> None:
    assert stdin_answered("answer_value") == "Žofie"
    with pytest.raises(KeyboardInterrupt):
        stdin_answered("answer_interrupted")
    with pytest.raises(StdinNotImplementedError, match="takes no input"):
        stdin_answered("answer_refused")


FIELDS = {
    "execute": {"status", "execution_count", "user_expressions", "payload"},
    "complete": {"status", "matches", "cursor_start", "cursor_end", "metadata"},
    "inspect": {"status", "found", "data", "metadata"},
    "is_complete": {"status", "indent"},
    "history": {"status", "history"},
    "start": {"status"},
    "comm": {"status"},
    "comms": {"status", "comms", "targets"},
}


@pytest.mark.parametrize("op", FIELDS)
def test_golden_request_gets_the_reply_it_should(serve: Callable[..., list[Any]], op: str) -> None:
    [turn] = serve(json.loads(golden(f"request_{op}")))
    assert set(turn.reply) == FIELDS[op]
    assert turn.reply["status"] != "error"
