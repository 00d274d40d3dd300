"""A client that checks a kernel's messages, and their order, against the protocol."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager
from jupyter_kernel_test.msgspec_v5 import validate_message

SECONDS = 60  # for one schedule to come to its end on a busy machine
CONTROL = {"interrupt_request", "shutdown_request"}
OUTPUTS = {"stream", "display_data", "update_display_data", "execute_result", "clear_output"}

Message = dict[str, Any]


@dataclass
class Sent:
    """A request, and the messages that answered it."""

    kind: str
    content: Message
    replies: list[Message] = field(default_factory=list)
    published: list[Message] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """True if all expected messages have come."""
        idle = any(m["content"].get("execution_state") == "idle" for m in self.published)
        return bool(self.replies) and idle


class Watcher:
    """Sends requests without waiting, collects the answers, and checks them. For one thread."""

    def __init__(self, manager: KernelManager) -> None:
        self.client: Any = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)
        self.sent: dict[str, Sent] = {}
        self.answers: dict[str, str] = defaultdict(str)

    def close(self) -> None:
        self.client.stop_channels()

    def send(self, kind: str, content: Message) -> str:
        """Sends a request on its channel and returns its id."""
        message = self.client.session.msg(kind, content)
        channel = "control_channel" if kind in CONTROL else "shell_channel"
        getattr(self.client, channel).send(message)
        identity = str(message["header"]["msg_id"])
        self.sent[identity] = Sent(kind, content)
        return identity

    def run(self, code: str, answer: str = "", **options: bool) -> str:
        """Sends a cell; a question that the cell asks is answered."""
        content: Message = {
            "code": code,
            "silent": False,
            "store_history": True,
            "stop_on_error": True,
        }
        content |= {"user_expressions": {}, "allow_stdin": bool(answer)}
        identity = self.send("execute_request", content | options)
        self.answers[identity] = answer
        return identity

    def settle(self, seconds: float) -> None:
        """Takes messages for this time, or until every request is answered."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(not one.over for one in self.sent.values()):
            self._take()

    def collect(self) -> None:
        """Waits until every request is answered.

        Raises:
            AssertionError: A request is not answered in time, or a message breaks the protocol.
        """
        end = time.monotonic() + SECONDS
        while left := [one for one in self.sent.values() if not one.over]:
            self._take()
            assert time.monotonic() < end, [(one.kind, one.content, one.replies) for one in left]
        for _ in range(3):
            self._take()  # messages that should not come any more
        for identity, one in self.sent.items():
            _check(identity, one)

    def _take(self) -> None:
        client = self.client
        for channel in (client.shell_channel, client.control_channel):
            while message := _next(channel, 0):
                if one := self._of(message):
                    one.replies.append(message)
        while message := _next(client.stdin_channel, 0):
            client.input(self.answers[message["parent_header"]["msg_id"]])
        message = _next(client.iopub_channel, 0.02)
        if message and (one := self._of(message)):
            one.published.append(message)

    def _of(self, message: Message) -> Sent | None:
        """The request that a message belongs to; None if it was sent before this watcher began."""
        return self.sent.get(message["parent_header"].get("msg_id"))


def _next(channel: Any, seconds: float) -> Message | None:
    try:
        message: Message = channel.get_msg(timeout=seconds)
    except Empty:
        return None
    return message


def _check(identity: str, one: Sent) -> None:
    """Checks for one reply of the right kind, between busy and idle, and outputs of cells."""
    assert len(one.replies) == 1, (one.content, one.replies)
    (reply,) = one.replies
    kinds = [message["msg_type"] for message in one.published]
    states = [m["content"]["execution_state"] for m in one.published if m["msg_type"] == "status"]
    assert states == ["busy", "idle"], (one.content, kinds)
    assert kinds[0] == kinds[-1] == "status", (one.content, kinds)
    # the schemas know `abort`; ipykernel and the protocol's text say `aborted`
    aborted = reply["content"]["status"] == "aborted"
    for message in [*([] if aborted else [reply]), *one.published]:
        validate_message(message, message["msg_type"], identity)
    assert reply["msg_type"] == one.kind.replace("_request", "_reply"), (one.kind, reply)
    if one.kind == "execute_request":
        _check_cell(one, reply["content"], kinds[1:-1])
    else:
        assert kinds[1:-1] == [], (one.kind, kinds)


def _check_cell(one: Sent, reply: Message, kinds: list[str]) -> None:
    if reply["status"] == "aborted":
        assert kinds == [], (one.content, kinds)
        return
    if one.content["silent"]:
        assert "execute_input" not in kinds
        assert "execute_result" not in kinds
    else:
        assert kinds[0] == "execute_input", (one.content, kinds)
        assert kinds.count("execute_input") == 1
    if reply["status"] == "error":
        # a misused magic, or an interrupt during a traceback, is reported only on stderr
        assert "error" in kinds or "stream" in kinds, (one.content, reply, kinds)
    else:
        assert "error" not in kinds, (one.content, kinds)
    assert set(kinds) <= OUTPUTS | {"execute_input", "error"}, kinds
