"""The agent: one turn after another, each a request from the host and a reply to it."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from typing import Any

from wasm_kernel_agent import bundles, loop, queries, seeds
from wasm_kernel_agent.boot import finish, make_shell, prepare_guest
from wasm_kernel_agent.cells import Cells
from wasm_kernel_agent.comms import Comms
from wasm_kernel_agent.door import FRAME_BYTES, Door
from wasm_kernel_agent.shell import GuestShell, text_of
from wasm_kernel_agent.signals import Signals
from wasm_kernel_agent.stdin import Stdin
from wasm_kernel_agent.streams import Streams
from wasm_kernel_agent.vitals import Vitals

_WORKSPACE = "/app"

Reply = dict[str, Any]


class Agent:
    """Serves the host's turns. One an interpreter; `keep` is what must stay alive with it."""

    def __init__(self, door: Door, keep: object = None, *, in_guest: bool = True) -> None:
        self.door = door
        self._keep = keep
        self._in_guest = in_guest
        self._signals = Signals(door)
        self._streams = Streams()
        self.shell: GuestShell | None = None
        self._answers: dict[object, Callable[[Reply], Reply]] = {}
        self._vitals: Vitals | None = None

    def turn(self) -> None:
        """One turn: ask, serve, reply. Whatever goes wrong in between, a reply is sent."""
        self._signals.noted = False
        self._signals.hold()
        request = self.door.send({"op": "next"})
        try:
            reply = self._serve(request)
            self._mend()
        except BaseException as problem:
            reply = self._failed(problem)
        self._done(reply)

    def _mend(self) -> None:
        """Make sure that the next turn can begin."""
        self._streams.mend()
        if self._vitals is not None:
            self._vitals.mend()

    def _serve(self, request: Reply) -> Reply:
        op = request.get("op")
        if op == "boot" and self.shell is None:
            return self._boot()
        if self.shell is None:
            return _error("ProtocolError", "the guest was not booted")
        if op in self._answers:
            return self._answers[op](request)
        if isinstance(op, str) and op in queries.ANSWERS:
            return self._query(op, request)
        return _error("ProtocolError", f"unknown request: {op!r:.80}")

    def _boot(self) -> Reply:
        if self._in_guest:
            self._streams.install()
            self._signals.install()
        shell = make_shell(self.door)
        shell.agent = self
        stdin = Stdin(self.door)
        comms = Comms(shell, self._signals, stdin, self.door)
        loop.hear_with(comms)
        self._answers = {
            "execute": Cells(shell, self._signals, stdin).execute,
            "comm": comms.serve,
            "comms": comms.agree,
            "start": self._start,
        }
        if self._in_guest:
            prepare_guest(shell)
        self.shell = shell
        self._vitals = Vitals(shell)
        if self._in_guest:
            finish(self)
        return {"status": "ok"}

    def _start(self, request: Reply) -> Reply:
        count = request.get("execution_count")
        if self.shell is not None and isinstance(count, int):
            self.shell.count_from(count)
            self.shell.memory_bytes = request.get("memory_bytes", 0)
        os.environ.update(request.get("env") or {})
        if request.get("fresh", True):
            seeds.refresh()
            if self._in_guest:
                self._go_home()
        elif request.get("reseed", False):
            seeds.refresh(everything=True)
        return {"status": "ok"}

    def _go_home(self) -> None:
        os.chdir(_WORKSPACE)
        if self.shell is not None:
            self.shell.user_ns["_dh"] = [_WORKSPACE]  # the folders that `%cd -` goes back to

    def _query(self, op: str, request: Reply) -> Reply:
        answer = queries.ANSWERS[op]
        try:
            reply: Reply = self._signals.interruptible(lambda: answer(self.shell, request))
        except (Exception, KeyboardInterrupt):
            return _nothing(op, request)
        return reply

    def _failed(self, problem: BaseException) -> Reply:
        """The reply where the agent's own code failed; what a cell can break is put back."""
        lines: list[str] = []
        with contextlib.suppress(BaseException):
            lines = traceback.format_exception(problem)
        with contextlib.suppress(BaseException):
            if self._vitals is not None:
                self._vitals.mend_all()
            self._streams.mend()
        kind, text = type(problem).__name__, text_of(problem)
        with contextlib.suppress(BaseException):
            if self.shell is not None:
                self.shell.outbox.error(kind, text, lines)
        return _error(kind, text, lines)

    def _done(self, reply: Reply) -> None:
        try:
            self.door.send({"op": "done", "reply": reply})
        except (TypeError, ValueError, RecursionError):
            self.door.send({"op": "done", "reply": _carried(reply)})


def _carried(reply: Reply) -> Reply:
    """`reply` without what no frame can carry, such as a payload that is too large."""
    kept = {}
    for name, value in reply.items():
        with contextlib.suppress(Exception):
            text = bundles.jsonable(value)
            if len(repr(text)) < FRAME_BYTES // 8:
                kept[name] = text
    kept.setdefault("payload", [])
    kept.setdefault("user_expressions", {})
    return kept


def _error(ename: str, evalue: str, lines: list[str] | None = None) -> Reply:
    return {
        "status": "error",
        "ename": ename,
        "evalue": evalue,
        "traceback": lines or [],
        "execution_count": 0,
        "user_expressions": {},
        "payload": [],
    }


def _nothing(op: str, request: Reply) -> Reply:
    """The reply of a query that came to nothing."""
    reply = dict(queries.EMPTY[op])
    if op == "complete":
        cursor = request.get("cursor_pos")
        at = cursor if isinstance(cursor, int) else len(str(request.get("code", "")))
        reply["cursor_start"] = reply["cursor_end"] = at
    return reply
