"""Running cells, and what the reply to one says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from wasm_kernel_agent import bundles
from wasm_kernel_agent.integers import IntegerNotice
from wasm_kernel_agent.kernel import parent_of
from wasm_kernel_agent.outbox import flush, note
from wasm_kernel_agent.shell import text_of
from wasm_kernel_agent.signals import Signals
from wasm_kernel_agent.stdin import Stdin

Reply = dict[str, Any]


class Cells:
    """Runs the cells of one session, in the order in which the host asks."""

    def __init__(self, shell: Any, signals: Signals, stdin: Stdin) -> None:
        self._shell = shell
        self._signals = signals
        self._stdin = stdin
        self._integers = IntegerNotice()

    def execute(self, request: Reply) -> Reply:
        """Run a cell as `request` says; the reply as Jupyter's `execute_reply` has it."""
        shell = self._shell
        self._stdin.install(bool(request.get("allow_stdin", False)))
        shell.awaiter.make_current()
        shell.set_parent(parent_of(request))
        shell.catch_up(request.get("execution_count"), request.get("alone", []))
        shell.payload_manager.clear_payload()
        try:
            error = self._run(request)
            self._after(request)
        finally:
            flush()
            settle(shell)
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
        reply["payload"] = [_payload(each) for each in shell.payload_manager.read_payload()]
        shell.payload_manager.clear_payload()
        return reply

    def _run(self, request: Reply) -> BaseException | None:
        """Run the cell; its error, or None. The error itself was shown already."""
        shell = self._shell

        def cell() -> Any:
            return shell.run_cell(
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

    def _after(self, request: Reply) -> None:
        """What a cell has begun goes on as far as it can now; what it should know is said."""
        try:
            self._signals.interruptible(self._shell.awaiter.go_on)
        except KeyboardInterrupt:
            note("the tasks that this cell left were interrupted; they go on with the next cell")
        if not request.get("silent"):
            self._integers.look(self._shell.user_ns, request["code"])

    def _expressions(self, expressions: dict[str, str]) -> Reply:
        evaluate: Callable[[], Any] = lambda: self._shell.user_expressions(expressions)  # noqa: E731
        try:
            answers = self._signals.interruptible(evaluate)
        except KeyboardInterrupt:
            return {}
        return {name: _expression(answer) for name, answer in answers.items()}


def settle(shell: Any) -> None:
    """End what a cell or a callback left half done, such as a debugger that was interrupted."""
    sys.displayhook = sys.__displayhook__
    shell.displayhook.finish_displayhook()
    shell.display_trap._nested_level = 0
    tracebacks = shell.InteractiveTB
    if tracebacks.pdb is not None and "stop_here" in vars(tracebacks.pdb):
        tracebacks.pdb = None  # a debugger that was interrupted never stops again
    if shell.builtin_trap._nested_level:
        shell.builtin_trap._nested_level = 0
        shell.builtin_trap.deactivate()


def _expression(answer: Any) -> Reply:
    if answer.get("status") != "ok":
        return bundles.plain_object(answer)
    kept, notes = bundles.mime_data(answer["data"])
    return {
        "status": "ok",
        "data": bundles.with_notes(kept, notes),
        "metadata": bundles.plain_object(answer.get("metadata")),
    }


def _payload(payload: Any) -> Reply:
    if payload.get("source") == "page":
        kept, notes = bundles.mime_data(payload.get("data"))
        return {
            "source": "page",
            "data": bundles.with_notes(kept, notes),
            "start": int(payload.get("start", 0)),
        }
    return bundles.plain_object(payload)


def _without_surrogates(code: str) -> str:
    """`code` as UTF-8 can carry it: tokenizer, history and hashes all encode it."""
    if code.isascii():
        return code
    return code.encode("utf-8", "replace").decode("utf-8")
