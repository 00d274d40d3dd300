"""From a turn that is over to the `SandboxResult` that people see."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wasm_kernel import events
from wasm_kernel.errors import GuestStopped
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turn import Turn
from wasm_kernel.guests import protocol
from wasm_kernel.result import CellError, SandboxResult

_NEVER_RAN = CellError(
    "KeyboardInterrupt", "The cell was interrupted before the sandbox was ready.", ()
)


def never_ran(workspace: Path, session_id: str | None) -> SandboxResult:
    """Returns the result of a cell that was cancelled before it began. Any thread may ask."""
    return SandboxResult(
        success=False,
        stdout="",
        stderr="",
        exit_code=1,
        error=_NEVER_RAN,
        fuel_consumed=None,
        memory_used_bytes=0,
        duration=0.0,
        files_created=(),
        files_modified=(),
        files_deleted=(),
        workspace_path=workspace,
        metadata={"session_id": session_id} if session_id else {},
    )


def as_error(stopped: GuestStopped) -> protocol.Error:
    """Returns a lost guest in the shape of an error of the cell."""
    name, text = type(stopped).__name__, str(stopped)
    return protocol.Error(name, text, (f"\x1b[31m{name}\x1b[39m: {text}",))


def result_of(
    turn: Turn,
    stopped: GuestStopped | None,
    runner: GuestRunner,
    duration: float,
    session_id: str | None,
) -> SandboxResult:
    """Returns the result of a cell.

    Args:
        turn: The cell's turn.
        stopped: How its guest was lost, or None if it came back.
        runner: The guest, for what it used and changed.
        duration: Wall-clock seconds.
        session_id: The session's id, if there is one.
    """
    reply: Mapping[str, Any] = turn.reply or {}
    if stopped is not None:  # what a lost guest said of its end is no end
        reply = {"status": "error", "execution_count": runner.next_count, "payload": []}
    error, files = _cell_error(turn, reply), runner.changes.compare()
    return SandboxResult(
        success=error is None,
        stdout=turn.output.text("stdout"),
        stderr=turn.output.text("stderr"),
        exit_code=getattr(stopped, "code", 1) if error else 0,
        error=error,
        fuel_consumed=runner.fuel.consumed,
        memory_used_bytes=runner.memory_bytes,
        duration=duration,
        files_created=tuple(sorted(files.created)),
        files_modified=tuple(sorted(files.modified)),
        files_deleted=tuple(sorted(files.deleted)),
        workspace_path=runner.folders.real,
        outputs=tuple(turn.output.outputs),
        reply=reply,
        metadata={"session_id": session_id} if session_id else {},
    )


def log(
    logger: SandboxLogger,
    runtime: str,
    turn: Turn,
    stopped: GuestStopped | None,
    result: SandboxResult,
) -> None:
    """Sends the events of a cell that has ended."""
    limits = set(turn.limits)
    if stopped is not None:
        if stopped.setting:
            limits.add(stopped.setting)
        trap = type(stopped).__name__
        logger.log_event(events.EXECUTION_TRAP, runtime=runtime, trap=trap)
    for limit in sorted(limits):
        logger.log_event(events.EXECUTION_LIMIT, runtime=runtime, limit=limit)
    logger.log_execution_complete(runtime, result)


def _cell_error(turn: Turn, reply: Mapping[str, Any]) -> CellError | None:
    if turn.error is not None and (turn.reply is None or reply.get("status") != "ok"):
        return CellError(turn.error.ename, turn.error.evalue, turn.error.traceback)
    if reply.get("status", "ok") == "ok":
        return None
    lines = reply.get("traceback")
    return CellError(
        str(reply.get("ename", "Error")),
        str(reply.get("evalue", "")),
        tuple(str(line) for line in lines) if isinstance(lines, list) else (),
    )
