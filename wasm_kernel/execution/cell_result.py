"""The result, the record and the events of a cell that has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from wasm_kernel import events
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turn import Turn
from wasm_kernel.guests.protocol import without_surrogates
from wasm_kernel.result import FILES_MOST, SHORT_MOST, CellError, CellResult, Ran
from wasm_kernel.wasi_files.changes import Comparison

_FILES_CHARACTERS = 4096  # characters of the names of changed files in a state's record


def result_of(turn: Turn, runner: GuestRunner) -> CellResult:
    """Returns the result of a cell's turn, with the memory, fuel and files of `runner`."""
    reply = dict(turn.reply or {})
    if turn.stopped is not None:  # a reply of a guest that was lost afterwards does not count
        reply = {"status": "error", "execution_count": turn.number, "payload": []}
    error, files = _cell_error(turn, reply), runner.changes.compare()
    return CellResult(
        success=error is None,
        exit_code=getattr(turn.stopped, "code", 1) if error else 0,
        error=error,
        fuel_consumed=runner.fuel.consumed,
        memory_used_bytes=runner.memory_bytes,
        duration=turn.seconds,
        files_created=tuple(sorted(files.created)),
        files_modified=tuple(sorted(files.modified)),
        files_deleted=tuple(sorted(files.deleted)),
        reply=reply,
    )


def ran_of(turn: Turn, runner: GuestRunner) -> Ran:
    """Returns how a cell ran, for the record of the state that it left."""
    error = _cell_error(turn, turn.reply or {})
    cell_id = without_surrogates(turn.cell.cell_id or "")
    with contextlib.suppress(OSError):  # without the files, rather than not at all
        return Ran(
            cell_id=cell_id if len(cell_id) <= SHORT_MOST else "",
            error="" if error is None else without_surrogates(error.ename[:SHORT_MOST]),
            seconds=turn.seconds or turn.seconds_yet,
            fuel=runner.fuel.consumed,
            sent=turn.number in runner.commands.travel.reached,
            **_some_files(runner.changes.compare()),
        )
    return Ran()


def _some_files(files: Comparison) -> dict[str, Any]:
    """Returns as many of the changed files as a record has room for."""
    room, more = _FILES_CHARACTERS, 0
    found: dict[str, Any] = {}
    kinds = {"created": files.created, "modified": files.modified - files.created}
    for kind, paths in {**kinds, "deleted": files.deleted}.items():
        kept: list[str] = []
        for path in sorted(paths):
            room -= len(path)
            if room > 0 and len(kept) < FILES_MOST:
                kept.append(without_surrogates(path))
        found[kind] = tuple(kept)
        more += len(paths) - len(kept)
    return {**found, "more": more}


def log_outcome(logger: SandboxLogger, runtime: str, turn: Turn, result: CellResult) -> None:
    """Sends the events of a cell that has ended."""
    limits = set(turn.limits_met)
    if turn.stopped is not None:
        if turn.stopped.setting:
            limits.add(turn.stopped.setting)
        trap = type(turn.stopped).__name__
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
