"""The agent: one turn after another, each a request from the host and a reply to it.

The host must reach the living agent whatever a cell did to `sys.modules`: a cell may delete this
package from it, or replace `builtins.__import__`. So the agent is `sys.displayhook` between turns:
the host runs the expression `0`, which needs no name, and the interpreter hands its value to the
agent. While a turn runs, `sys.displayhook` is the interpreter's own, or IPython's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wasm_kernel_agent import chart_data, completion, event_loop, reseed, shell_commands, variables
from wasm_kernel_agent.boot import lay_out_memory, make_shell, preload_packages, prepare_guest
from wasm_kernel_agent.cells import CellRunner
from wasm_kernel_agent.comms import CommServer
from wasm_kernel_agent.display import jsonable
from wasm_kernel_agent.host import FRAME_BYTES, FrameChannel, StandardStreams, guest_channel
from wasm_kernel_agent.host_functions import OfferedFunctions
from wasm_kernel_agent.repair import ShellRepair
from wasm_kernel_agent.shell import GuestShell
from wasm_kernel_agent.signals import SignalHandlers, Stdin
from wasm_kernel_agent.tracebacks import text_of

_WORKSPACE = "/app"
_NEXT = b'{"op":"next"}'
_displayhook = sys.__displayhook__

Reply = dict[str, Any]


class Agent:
    """Serves the host's turns. There is one in each interpreter.

    Args:
        channel: The way to the host.
        in_guest: False in tests under ordinary CPython, which must not be patched.
    """

    def __init__(self, channel: FrameChannel, *, in_guest: bool = True) -> None:
        self.channel = channel
        self._in_guest = in_guest
        self._signals = SignalHandlers(channel)
        self._streams = StandardStreams()
        self._functions = OfferedFunctions(channel)
        self.shell: GuestShell | None = None
        self._answers: dict[object, Callable[[Reply], Reply]] = {}
        self._repair: ShellRepair | None = None
        self._env: Reply = {}

    def turn(self, _: object = None) -> None:
        """Asks for a request, serves it and replies. A reply is sent whatever goes wrong."""
        sys.displayhook = _displayhook
        self._signals.begin_turn()
        request = self.channel.call(_NEXT)
        try:
            reply = self._serve(request)
            self._repair_shell()
        except BaseException as problem:
            reply = self._failed(problem)
        sys.displayhook = self.turn
        self._done(reply)

    def _repair_shell(self) -> None:
        """Makes sure that the next turn can begin."""
        shell_commands.end_programs()
        self._streams.repair()
        if self._repair is not None:
            self._repair.repair()

    def _serve(self, request: Reply) -> Reply:
        op = request.get("op")
        if op == "boot" and self.shell is None:
            return self._boot(preload=request.get("preload") is True)
        if self.shell is None:
            return _error("ProtocolError", "the guest was not booted")
        if op in self._answers:
            return self._answers[op](request)
        if isinstance(op, str) and op in completion.ANSWERS:
            return self._query(op, request)
        return _error("ProtocolError", f"unknown request: {op!r:.80}")

    def _boot(self, *, preload: bool) -> Reply:
        if self._in_guest:
            self._streams.install()
            self._signals.install()
        shell = make_shell(self.channel)
        shell.agent = self
        stdin = Stdin(self.channel)
        comms = CommServer(shell, self._signals, stdin, self.channel)
        event_loop.serve_while_waiting(comms)
        self._answers = {
            "execute": CellRunner(shell, self._signals, stdin).execute,
            "comm": comms.serve,
            "comms": comms.resync,
            "start": self._start,
            "variables": partial(variables.answer, shell),
        }
        if self._in_guest:
            prepare_guest(shell)
            if preload:
                preload_packages(shell)
        self.shell = shell
        stdin.install(allowed=False)
        self._repair = ShellRepair(shell)
        if self._in_guest and preload:
            lay_out_memory(self)
        return {"status": "ok"}

    def _start(self, request: Reply) -> Reply:
        count = request.get("execution_count")
        if self.shell is not None and isinstance(count, int):
            self.shell.count_from(count)
        self._set_variables(request.get("env") or {})
        self._functions.offer(request.get("functions") or [])
        if request.get("fresh", True):
            reseed.reseed()
        elif request.get("reseed", False):
            reseed.reseed(everything=True)
        if request.get("chart_data", False) and self.shell is not None:
            chart_data.add_formatters(self.shell)
        if self._in_guest:
            self._enter(request.get("folder", _WORKSPACE), anew=request.get("fresh", True))
        return {"status": "ok"}

    def _set_variables(self, env: Reply) -> None:
        """Sets the environment variables that this memory was not given yet.

        Cells may have changed the others, and restored memory keeps these changes.
        """
        os.environ.update(env.items() - self._env.items())
        self._env = env

    def _enter(self, folder: str, *, anew: bool) -> None:
        """Goes to a folder as the session begins, or if the folder of saved memory does not
        exist here.
        """
        if anew or not os.path.isdir("."):  # noqa: PTH112 - a cell may have changed Path
            os.chdir(folder)
            if self.shell is not None:
                self.shell.user_ns["_dh"] = [Path(folder)]  # for `%cd -`

    def _query(self, op: str, request: Reply) -> Reply:
        answer = completion.ANSWERS[op]
        try:
            reply: Reply = self._signals.interruptible(lambda: answer(self.shell, request))
        except (Exception, KeyboardInterrupt):
            return _empty_answer(op, request)
        return reply

    def _failed(self, problem: BaseException) -> Reply:
        """The reply after the agent's own code failed. Puts back whatever a cell can break."""
        lines: list[str] = []
        with contextlib.suppress(BaseException):
            lines = traceback.format_exception(problem)
        with contextlib.suppress(BaseException):
            if self._repair is not None:
                self._repair.repair_everything()
            self._streams.repair()
        kind, text = type(problem).__name__, text_of(problem)
        with contextlib.suppress(BaseException):
            if self.shell is not None:
                self.shell.outbox.send_error(kind, text, lines)
        return _error(kind, text, lines)

    def _done(self, reply: Reply) -> None:
        try:
            self.channel.send({"op": "done", "reply": reply})
        except (TypeError, ValueError, RecursionError):
            self.channel.send({"op": "done", "reply": _sendable(reply)})


def _sendable(reply: Reply) -> Reply:
    """Returns `reply` without the parts that no frame can carry, such as a payload that is too
    large.
    """
    kept = {}
    for name, value in reply.items():
        with contextlib.suppress(Exception):
            text = jsonable(value)
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


def _empty_answer(op: str, request: Reply) -> Reply:
    """The reply to a query that failed or was interrupted."""
    reply = dict(completion.EMPTY[op])
    if op == "complete":
        cursor = request.get("cursor_pos")
        at = cursor if isinstance(cursor, int) else len(str(request.get("code", "")))
        reply["cursor_start"] = reply["cursor_end"] = at
    return reply


def turn() -> None:
    """Serves the first turn of this interpreter. The agent that it makes serves the others."""
    Agent(guest_channel()).turn()
