"""Running a cell, and the reply to it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from wasm_kernel_agent import hints
from wasm_kernel_agent.display import mime_data, plain_object
from wasm_kernel_agent.host import flush, note
from wasm_kernel_agent.notebook_face import parent_of
from wasm_kernel_agent.signals import SignalHandlers, Stdin
from wasm_kernel_agent.tracebacks import text_of

_displayhook = sys.__displayhook__

Reply = dict[str, Any]


class CellRunner:
    """Runs the cells of one session, in the order in which the host asks."""

    def __init__(self, shell: Any, signals: SignalHandlers, stdin: Stdin) -> None:
        self._shell = shell
        self._signals = signals
        self._stdin = stdin

    def execute(self, request: Reply) -> Reply:
        """Runs a cell. Returns the reply with the fields of Jupyter's `execute_reply`."""
        shell = self._shell
        self._stdin.install(bool(request.get("allow_stdin", False)))
        shell.awaiter.make_current()
        shell.set_parent(parent_of(request))
        shell.memory_bytes = request.get("memory_bytes", 0)
        hints.advice.update(request.get("advice") or {})
        shell.catch_up(request.get("execution_count"), request.get("alone", []))
        self._take_payload()
        env = request.get("env")
        if not env:
            return self._executed(request)
        with _variables(env):
            return self._executed(request)

    def _executed(self, request: Reply) -> Reply:
        shell = self._shell
        try:
            error = self._run(request)
            self._run_tasks(is_interrupted=isinstance(error, KeyboardInterrupt))
        finally:
            flush()
            end_cell(shell)
        reply: Reply = {"status": "ok", "execution_count": shell.execution_count - 1}
        if error is not None:
            reply |= {
                "status": "error",
                "ename": type(error).__name__,
                "evalue": text_of(error),
                "traceback": shell.last_traceback or [],
            }
        reply["user_expressions"] = {}
        if error is None and request.get("user_expressions"):
            reply["user_expressions"] = self._expressions(request["user_expressions"])
        reply["payload"] = [_payload(each) for each in self._take_payload()]
        return reply

    def _take_payload(self) -> list[Any]:
        """Returns what the front end should do beside showing outputs, and forgets it."""
        manager = self._shell.payload_manager
        payload: list[Any] = manager.read_payload()
        if payload:  # to set a trait takes longer than to read it
            manager.clear_payload()
        return payload

    def _run(self, request: Reply) -> BaseException | None:
        """Runs the cell. Returns its error, which was shown already, or None."""
        shell = self._shell
        cell = partial(
            shell.run_cell,
            _without_surrogates(request["code"]),
            store_history=bool(request.get("store_history", True)),
            silent=bool(request.get("silent", False)),
            cell_id=request.get("cell_id"),
        )
        try:
            result = self._signals.interruptible(cell)
        except KeyboardInterrupt as interrupt:
            shell.showtraceback((KeyboardInterrupt, interrupt, None))
            return interrupt
        error: BaseException | None = result.error_before_exec or result.error_in_exec
        if shell.ended is not None and isinstance(error, asyncio.CancelledError):
            error = shell.ended
        # a value that could not be shown fails its cell, as under ipykernel
        return error if error is not None else shell.display_error

    def _run_tasks(self, *, is_interrupted: bool) -> None:
        """Continues cells' unfinished tasks and, unless the cell was interrupted, threads."""
        run = partial(self._shell.awaiter.run_tasks, runs_threads=not is_interrupted)
        try:
            self._signals.interruptible(run)
        except KeyboardInterrupt:
            note("tasks and threads of this cell were interrupted; tasks go on with the next one")

    def _expressions(self, expressions: dict[str, str]) -> Reply:
        evaluate: Callable[[], Any] = lambda: self._shell.user_expressions(expressions)  # noqa: E731
        try:
            answers = self._signals.interruptible(evaluate)
        except KeyboardInterrupt:
            return {}
        return {name: _expression(answer) for name, answer in answers.items()}


@contextmanager
def _variables(env: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for a while."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def end_cell(shell: Any) -> None:
    """Ends things that a cell or a callback left half done, such as an interrupted debugger."""
    sys.displayhook = _displayhook
    shell.displayhook.finish_displayhook()
    shell.display_trap._nested_level = 0
    tracebacks = shell.InteractiveTB
    if tracebacks.pdb is not None and "stop_here" in vars(tracebacks.pdb):
        tracebacks.pdb = None  # a debugger that was interrupted never stops again
    shell.builtin_trap._nested_level = 0
    shell.builtin_trap.deactivate()


def _expression(answer: Any) -> Reply:
    if answer.get("status") != "ok":
        return plain_object(answer)
    metadata = plain_object(answer.get("metadata"))
    return {"status": "ok", "data": mime_data(answer["data"]), "metadata": metadata}


def _payload(payload: Any) -> Reply:
    if payload.get("source") == "page":
        data, start = mime_data(payload.get("data")), int(payload.get("start", 0))
        return {"source": "page", "data": data, "start": start}
    return plain_object(payload)


def _without_surrogates(code: str) -> str:
    """`code` with lone surrogates replaced: tokenizer, history and hashes encode it as UTF-8."""
    if code.isascii():
        return code
    return code.encode("utf-8", "replace").decode("utf-8")
