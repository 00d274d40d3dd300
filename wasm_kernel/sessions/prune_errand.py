"""`%prune_sessions`: from the words in a cell to `prune_sessions`, here or in a process outside.

A kernel's own process can't reach other sessions once its walls stand. The porter does it then,
who is handed a number of hours and a yes or no, and no path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.errands import Caller, Errand, ErrandInterrupted, ErrandRefused, Json
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.record import record
from wasm_kernel.result import PruneResult

USAGE = (
    "Usage: %prune_sessions --older-than 24h [--apply]. The time is in minutes, hours, days or "
    "weeks (30m, 24h, 7d, 2w). Nothing was deleted."
)
OFF = (
    "%prune_sessions is off in this kernel, as a notebook that somebody else wrote could delete "
    "your other sessions with it. Nothing was deleted. To turn it on, start the kernel with "
    "WasmKernel.prune_sessions=True; `wasm-kernel sessions prune` does the same from a terminal."
)
_SHOWN_MOST = 500
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([mhdw])")

Tell = Callable[[str], None]
Prune = Callable[[float, bool, Tell, Callable[[], bool]], Mapping[str, Any]]
"""Prunes: gets the hours, whether it is a dry run, who hears events, and whether to stop."""


@record
class Wish:
    """What the words of `%prune_sessions` ask for."""

    hours: float
    apply: bool


def hours_of(text: str) -> float | None:
    """The hours that a text such as `24h`, `30m`, `7d` or `2w` means; None where it means none."""
    found = _TIME.fullmatch(text)
    return float(found[1]) * _HOURS[found[2]] if found else None


def wish_of(line: str) -> Wish:
    """The wish that a line holds.

    Raises:
        ErrandRefused: it holds none.
    """
    words = line.replace("=", " ").split()
    apply = words.count("--apply")
    rest = [word for word in words if word != "--apply"]
    hours = hours_of(rest[1]) if len(rest) == 2 and rest[0] == "--older-than" else None
    if hours is None or apply > 1:
        raise ErrandRefused(USAGE)
    return Wish(hours, bool(apply))


def pruning(prune: Prune, logger: SandboxLogger) -> Errand:
    """The errand behind `%prune_sessions`; `logger` hears the events."""

    def run(order: CommandLine, caller: Caller) -> Json:
        wish = wish_of(order.line)
        heard = prune(wish.hours, not wish.apply, lambda text: _replay(text, logger), _gone(caller))
        if heard.get("stopped"):
            raise ErrandInterrupted
        return dict(heard)

    return run


def _gone(caller: Caller) -> Callable[[], bool]:
    return lambda: caller.gone


class _Stopped(BaseException):
    """The pruning is to end between two sessions. A logger's exceptions would stop nothing."""


@record
class _Forwarded:
    """A logger whose events go to somebody else as text; it ends the pruning where it must end."""

    tell: Tell
    stopped: Callable[[], bool]

    def info(self, event: str, **fields: Any) -> None:
        """Pass an event on."""
        if self.stopped():
            raise _Stopped
        self.tell(json.dumps([event, fields]))

    warning = info


def _replay(text: str, logger: SandboxLogger) -> None:
    event, fields = json.loads(text)
    logger.log_event(str(event), **dict(fields))


def pruner(root: Path, private_root: Path | str | None = None) -> Prune:
    """Prunes the sessions in a folder, in this process.

    It checks what it is handed: whoever asks may be somebody else than we think.
    """

    def prune(
        hours: float, dry_run: bool, tell: Tell, stopped: Callable[[], bool]
    ) -> Mapping[str, Any]:
        from wasm_kernel.sessions.pruning import prune_sessions

        logger = SandboxLogger(_Forwarded(tell, stopped))
        try:
            result = prune_sessions(
                hours, root, dry_run=dry_run is not False, logger=logger, private_root=private_root
            )
        except _Stopped:
            return {"stopped": True}
        return as_json(result)

    return prune


def as_json(result: PruneResult) -> dict[str, Any]:
    """A result as JSON that fits into a message: lists and tables are cut, the summary is whole."""
    summary = str(result).partition("\n")[0]
    parts = (result.deleted_sessions, result.skip_reasons, result.in_use, result.errors)
    left = sum(len(part) for part in parts)
    if left > _SHOWN_MOST:
        summary += f" Of {left:,} sessions, only the first are listed."
    return {
        "summary": summary,
        "deleted": result.deleted_sessions[:_SHOWN_MOST],
        "skipped": dict([*result.skip_reasons.items()][:_SHOWN_MOST]),
        "in_use": dict([*result.in_use.items()][:_SHOWN_MOST]),
        "errors": dict([*result.errors.items()][:_SHOWN_MOST]),
        "reclaimed_bytes": result.reclaimed_bytes,
        "reclaimed_private_bytes": result.reclaimed_private_bytes,
        "dry_run": result.dry_run,
    }
