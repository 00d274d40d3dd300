"""Pruning: deleting the sessions that have not been used for long.

The age of a session is that of `updated_at` in its metadata: the end of its last cell, successful
or not. A session without metadata is never deleted, nor one that another process has open or that a
cell runs in. An idle sandbox of this process is closed. Only sessions named by a UUID are looked
at: a person who chose an id may rely on the session. A link to a session is another name of it
(`root.py`): the session counts once, by its own id, and its links are removed with it. No other
link is followed.

If a cell asks for pruning, the broker does it, as a confined worker can't reach other sessions. The
broker gets a number of hours and a yes or no, but no path.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import SessionInUse, WasmKernelError, describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.hiding import check_opening
from wasm_kernel.folders.places import PrivateFolderError
from wasm_kernel.guests.base import CommandContext, CommandHandler, CommandLine, CommandRefused
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder, open_named
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.result import readable
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.open_sandboxes import CellRuns
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.removal import Deleter, NotDue, Rule
from wasm_kernel.sessions.root import SessionsRoot

_HOUR = 3600.0
_NO_METADATA, _CORRUPTED = "no_metadata", "corrupted_metadata"
_RUNNING_CELL, _ANOTHER_PROCESS = "running_cell", "another_process"
_PRUNED = (
    "This sandbox was closed because prune_sessions was to delete its session: no cell had run in "
    "it for more than {hours:g} hours. Get the session again with get_session_sandbox: it goes on "
    "with what is left, or begins empty."
)


class PruneError(WasmKernelError, ValueError):
    """The error of a request to prune that makes no sense; nothing was deleted."""


class NoWorkspaceRoot(WasmKernelError, FileNotFoundError):
    """The error of a sessions' folder that does not exist."""


@dataclass(frozen=True)
class PruneResult:
    """The result of `prune_sessions`.

    Attributes:
        deleted_sessions: The ids of the deleted sessions, the oldest first; in a dry run, of those
            that would be deleted.
        skipped_sessions: The ids of sessions that were left alone, without readable metadata.
        reclaimed_bytes: The size of all files in the deleted sessions' workspaces; a file with two
            names counts once.
        errors: Why a session could not be deleted, by its id. The next pruning tries again.
        dry_run: True if nothing was really deleted.
        skip_reasons: Why a session was skipped, by its id: `no_metadata` or `corrupted_metadata`.
        in_use: The users of old sessions that were spared, by the sessions' ids: `running_cell` in
            this process, or `another_process`.
        reclaimed_private_bytes: The size of the deleted sessions' private files, such as variables
            and earlier versions of files, which lie elsewhere.
    """

    deleted_sessions: list[str] = field(default_factory=list)
    skipped_sessions: list[str] = field(default_factory=list)
    reclaimed_bytes: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False
    skip_reasons: dict[str, str] = field(default_factory=dict)
    in_use: dict[str, str] = field(default_factory=dict)
    reclaimed_private_bytes: int = 0

    def __str__(self) -> str:
        """Returns a summary for people: counts, bytes, and each reason and error."""
        mode, would = ("Dry run: ", "would be ") if self.dry_run else ("", "")
        own = self.reclaimed_private_bytes
        private = f", and {_specified(own)} of private files" if own else ""
        used = f"{len(self.in_use)} in use, " if self.in_use else ""
        summary = (
            f"{mode}{_counted(len(self.deleted_sessions))} {would}deleted, "
            f"{len(self.skipped_sessions)} skipped, {used}"
            f"{_specified(self.reclaimed_bytes)} {would}reclaimed{private}."
        )
        skipped = [f"  skipped {name}: {why}" for name, why in self.skip_reasons.items()]
        spared = [f"  in use {name}: {why.replace('_', ' ')}" for name, why in self.in_use.items()]
        failed = [f"  failed {name}: {why}" for name, why in self.errors.items()]
        return "\n".join([summary, *skipped, *spared, *failed])


def _counted(sessions: int) -> str:
    return f"{sessions} session" if sessions == 1 else f"{sessions} sessions"


def _specified(size: int) -> str:
    """Returns a size as the specification's summary has it, where 1,048,576 bytes are 1 MB."""
    return readable(size).replace("iB", "B")


def prune_sessions(
    older_than_hours: float,
    workspace_root: Path | str = WORKSPACE_ROOT,
    dry_run: bool = False,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
) -> PruneResult:
    """Deletes the sessions in which no cell, successful or not, has run for long.

    Sessions without metadata, or with corrupted metadata, are skipped. Folders whose name is not a
    UUID, such as sessions with an id that you chose, are ignored. A session is spared if another
    process has it open or a cell of this process runs in it. Idle sandboxes of this process on old
    sessions are closed, and later calls on them say why. If a session can't be deleted, it keeps
    its id, and the others are deleted. If the clock went back, a session that seems to come from
    the future is not old.

    Args:
        older_than_hours: Sessions that were last used longer ago are deleted; 0 means all.
        workspace_root: The folder that holds the sessions' folders.
        dry_run: Only return what would be deleted; nothing is changed.
        logger: Gets `session.prune.*`; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Returns:
        The sessions that were deleted, skipped or spared, the errors, and the freed bytes.

    Raises:
        PruneError: `older_than_hours` is not a number of hours.
        NoWorkspaceRoot: there is no such folder.
        OverlapError: it is one of the host's own folders.
    """
    root = SessionsRoot(workspace_root, private_root)
    return _prune_root(root, older_than_hours, dry_run, SandboxLogger.of(logger), QUIET)


def _prune_root(
    root: SessionsRoot, hours: float, dry_run: bool, log: SandboxLogger, task: Task
) -> PruneResult:
    """Prunes a root, as `prune_sessions`. Raises `Cancelled` between two sessions."""
    seconds, begun = _seconds(hours), time.monotonic()
    rule = Rule(seconds, closes=_PRUNED.format(hours=seconds / _HOUR))
    try:
        folder = open_named(root.named)
    except (FileNotFoundError, NotADirectoryError):
        raise NoWorkspaceRoot(
            "workspace_root is not a folder that exists. Nothing was deleted. Name the folder that "
            "holds the sessions' folders."
        ) from None
    with folder:
        check_opening(root.path, root.path, (), root.private_root)
        log.log_event(
            events.PRUNE_STARTED, threshold=hours, workspace_root=str(root.named), dry_run=dry_run
        )
        result = _Pruning(root, folder, rule, dry_run, log).run(task)
    log.log_event(
        events.PRUNE_COMPLETED,
        deleted_count=len(result.deleted_sessions),
        skipped_count=len(result.skipped_sessions),
        in_use_count=len(result.in_use),
        error_count=len(result.errors),
        reclaimed_bytes=result.reclaimed_bytes,
        reclaimed_private_bytes=result.reclaimed_private_bytes,
        duration=time.monotonic() - begun,
    )
    return result


def _seconds(hours: float) -> float:
    number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not number or hours < 0 or (isinstance(hours, float) and not math.isfinite(hours)):
        raise PruneError(
            f"older_than_hours must be a finite number of hours, at least 0, not {hours!r}. "
            "Nothing was deleted."
        )
    return min(hours, 1e300) * _HOUR  # any number of hours fits


class _Pruning:
    """One pruning, and the results that it has by now."""

    def __init__(
        self, root: SessionsRoot, folder: Folder, rule: Rule, dry_run: bool, logger: SandboxLogger
    ) -> None:
        self._root, self._folder, self._rule = root, folder, rule
        self._deleter = Deleter(root, folder)
        self._log = logger.log_event
        self._result = PruneResult(dry_run=dry_run)
        self._unread: dict[str, OSError] = {}
        self._bytes = self._private_bytes = 0

    def run(self, task: Task) -> PruneResult:
        """Finds the old sessions, and deletes them, the oldest first."""
        result = self._result
        left = {} if result.dry_run else self._deleter.finish_earlier()
        judged = {name: self._judged(name) for name in self._names()}
        ages = {name: age for name, age in judged.items() if age is not None}
        for name in sorted(ages, key=lambda name: ages[name], reverse=True):
            if task.cancelled:
                raise Cancelled
            self._prune(name, ages[name])
        for name, problem in left.items():
            if name not in {*result.errors, *result.deleted_sessions}:
                self._fail(name, problem)
        return replace(
            result,
            skipped_sessions=list(result.skip_reasons),
            reclaimed_bytes=self._bytes,
            reclaimed_private_bytes=self._private_bytes,
        )

    def _names(self) -> list[str]:
        with os.scandir(self._folder.fd) as listing:
            names = [entry.name for entry in listing if entry.is_dir(follow_symlinks=False)]
        return sorted(filter(ids.uuid_in, names))

    def _judged(self, name: str) -> float | None:
        """Returns the age of a session to delete; None for others, whose skip reasons are noted.

        An unreadable session is as old as its folder, which every cell changes.
        """
        reason = _NO_METADATA
        try:
            with self._folder.enter(name) as folder:
                age = self._rule.age(name, folder)
        except FileNotFoundError:
            return None
        except OSError as problem:
            self._unread[name] = problem
            status = self._folder.status(name)
            if status is None:
                return None
            age = time.time() - status.st_mtime
        except MetadataCorrupted:
            age, reason = None, _CORRUPTED
        if age is None:
            self._result.skip_reasons[name] = reason
            self._log(events.PRUNE_SKIPPED, session_id=name, reason=reason)
        return age if self._rule.is_due(age) else None

    def _prune(self, name: str, age: float) -> None:
        try:
            size, private_size = self._candidate(name, age)
            if self._result.dry_run:
                self._deleter.check_free(name)
            else:
                self._deleter.delete(name, self._rule)
                self._log(events.PRUNE_DELETED, session_id=name)
        except (FileNotFoundError, NotDue):
            return  # another process deleted or used it since it was found
        except SessionInUse as problem:
            user = _RUNNING_CELL if isinstance(problem, CellRuns) else _ANOTHER_PROCESS
            self._result.in_use[name] = user
            self._log(events.PRUNE_IN_USE, session_id=name, reason=user)
        except (OSError, MetadataCorrupted, PrivateFolderError) as problem:
            self._fail(name, problem)
        else:
            self._result.deleted_sessions.append(name)
            self._bytes += size
            self._private_bytes += private_size

    def _candidate(self, name: str, age: float) -> tuple[int, int]:
        """Logs a candidate; returns the bytes of its workspace and its private folder.

        Refuses a folder that its owner made read-only, to keep it, and one that can't be read.
        """
        problem, size, private_size = self._unread.get(name), 0, 0
        try:
            with self._root.visit(name) as (folder, private):
                size = walks.size_of(folder.fd)
                if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fd, effective_ids=True):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                if private is not None:
                    private_size = walks.size_of(private.fd)
        except FileNotFoundError:
            raise
        except OSError as found:
            problem = problem or found
        self._log(events.PRUNE_CANDIDATE, session_id=name, age_hours=age / _HOUR, size_bytes=size)
        if problem is not None:
            raise problem
        return size, private_size

    def _fail(self, name: str, problem: Exception) -> None:
        why = self._result.errors[name] = describe(problem)
        self._log(events.PRUNE_FAILED, session_id=name, error=why)


_USAGE = (
    "Usage: %prune_sessions --older-than 24h [--dry-run | --apply]. The time is in minutes, hours, "
    "days or weeks (30m, 24h, 7d, 2w). Nothing was deleted."
)
_SHOWN_MOST = 500
_EVENTS_MOST = 20_000
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([mhdw])")


class PruneSessions(Struct, frozen=True):
    """A request to delete the sessions in which no cell has run for a number of hours."""

    hours: float
    dry_run: bool = True


class Pruned(Struct, frozen=True):
    """The reply to `PruneSessions`: lists and tables are cut, the summary is whole.

    The events are for the kernel's own log. If the pruning was cancelled between two sessions, the
    reply is empty.
    """

    reply: dict[str, Any] = {}
    events: tuple[tuple[str, dict[str, Any]], ...] = ()
    cancelled: bool = False


def hours_of(text: str) -> float | None:
    """Returns the hours in a text such as `24h`, `30m`, `7d` or `2w`; None for other texts."""
    found = _TIME.fullmatch(text)
    return float(found[1]) * _HOURS[found[2]] if found else None


def request_of(line: str) -> PruneSessions:
    """Parses the words of `%prune_sessions` into a request, or raises `CommandRefused`."""
    words = line.replace("=", " ").split()
    modes = [word for word in words if word in ("--apply", "--dry-run")]
    rest = [word for word in words if word not in modes]
    hours = hours_of(rest[1]) if len(rest) == 2 and rest[0] == "--older-than" else None
    if hours is None or len(modes) > 1:
        raise CommandRefused(_USAGE)
    return PruneSessions(hours, dry_run=modes != ["--apply"])


def prune_command(logger: SandboxLogger) -> CommandHandler:
    """Returns the handler of `%prune_sessions`; `logger` gets the events."""

    def run(line: CommandLine, context: CommandContext) -> Any:
        pruned = context.broker.call(request_of(line.line), Pruned, context)
        for event, fields in pruned.events:
            logger.log_event(event, **fields)
        if pruned.cancelled:
            raise Cancelled
        return pruned.reply

    return run


def prune(root: SessionsRoot) -> Callable[[PruneSessions, Task], Pruned]:
    """Returns the handler of `PruneSessions`, which prunes only the sessions in `root`."""

    def handle(request: PruneSessions, task: Task) -> Pruned:
        heard = _FirstEvents()
        try:
            result = _prune_root(root, request.hours, request.dry_run, SandboxLogger(heard), task)
        except Cancelled:
            return Pruned(events=tuple(heard.events), cancelled=True)
        return Pruned(_reply_of(result), tuple(heard.events))

    return handle


class _FirstEvents:
    """A logger that keeps the first events, and the last one."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        if len(self.events) < _EVENTS_MOST or event == events.PRUNE_COMPLETED:
            self.events.append((event, fields))

    warning = info


def _reply_of(result: PruneResult) -> dict[str, Any]:
    summary = str(result).partition("\n")[0]
    tables = {"skipped": result.skip_reasons, "in_use": result.in_use, "errors": result.errors}
    left = len(result.deleted_sessions) + sum(map(len, tables.values()))
    if left > _SHOWN_MOST:
        summary += f" Of {left:,} sessions, only the first are listed."
    return {
        "summary": summary,
        "deleted": result.deleted_sessions[:_SHOWN_MOST],
        **{name: dict(islice(table.items(), _SHOWN_MOST)) for name, table in tables.items()},
        "reclaimed_bytes": result.reclaimed_bytes,
        "reclaimed_private_bytes": result.reclaimed_private_bytes,
        "dry_run": result.dry_run,
    }
