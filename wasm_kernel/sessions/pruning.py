"""Pruning: deleting the sessions that have not been used for long.

The age of a session is that of `updated_at` in its metadata: the end of its last cell, successful
or not. A session without metadata is never deleted, nor one that another process has open or that a
cell runs in. An idle sandbox of this process is closed. Only sessions named by a UUID are deleted;
an old one whose id a person chose is skipped. A link to a session is another name of it
(`root.py`): the session counts once, by its own id, and its links are removed with it. No other
link is followed.

If a cell asks for pruning, the broker does it, as a confined kernel can't reach other sessions. The
broker gets a number of hours and a yes or no, but no path.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import SessionInUse, WasmKernelError, describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders import orphans
from wasm_kernel.folders.hiding import check_opening
from wasm_kernel.folders.locks import is_used
from wasm_kernel.folders.places import PrivateFolderError
from wasm_kernel.guests.base import CommandContext, CommandHandler, CommandLine, CommandRefused
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder, open_named
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.sessions import ids, metadata, removal
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.open_sandboxes import ANOTHER_PROCESS, OPEN_SANDBOXES
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.prune_result import PruneResult
from wasm_kernel.sessions.root import SessionsRoot, remove_links

_NO_METADATA, _CORRUPTED = "no_metadata", "corrupted_metadata"
_CHOSEN_ID = "not_a_uuid"  # the person who chose the id may rely on the session
_PRUNED = (
    "This sandbox was closed because prune_sessions was to delete its session: no cell had run in "
    "it for more than {hours:g} hours. Get the session again with get_session_sandbox: it goes on "
    "with what is left, or begins empty."
)


class PruneError(WasmKernelError, ValueError):
    """The error of a request to prune that makes no sense; nothing was deleted."""


class NoWorkspaceRoot(WasmKernelError, FileNotFoundError):
    """The error of a sessions' folder that does not exist."""


def prune_sessions(
    older_than_hours: float,
    workspace_root: Path | str = WORKSPACE_ROOT,
    dry_run: bool = False,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
) -> PruneResult:
    """Deletes the sessions in which no cell, successful or not, has run for long.

    Sessions without metadata, with corrupted metadata, or with an id that is not a UUID are
    skipped. A session is spared if another process has it open or a cell of this process runs in
    it. Idle sandboxes of this process on old sessions are closed, and later calls on them say why.
    If a session can't be deleted, it keeps its id, and the others are deleted. If the clock went
    back, a session that seems to come from the future is not old.

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
    limit, begun = _hours(older_than_hours), time.monotonic()
    log = SandboxLogger.of(logger)
    root = SessionsRoot(workspace_root, private_root)
    with _opened(root) as folder:
        check_opening(root.path, root.path, (), private_root)
        log.log_event(
            events.PRUNE_STARTED,
            threshold=older_than_hours,
            workspace_root=str(workspace_root),
            dry_run=dry_run,
        )
        if not dry_run:
            orphans.sweep_now_and_then()
        result = _Pruning(root, folder, limit, dry_run, log).run()
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


@contextmanager
def _opened(root: SessionsRoot) -> Iterator[Folder]:
    try:
        folder = open_named(root.named)
    except (FileNotFoundError, NotADirectoryError):
        raise NoWorkspaceRoot(
            "workspace_root is no folder that exists. Nothing was deleted. Name the folder that "
            "holds the sessions' folders."
        ) from None
    with folder:
        yield folder


def _hours(hours: float) -> timedelta:
    number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not number or hours < 0 or (isinstance(hours, float) and not math.isfinite(hours)):
        raise PruneError(
            f"older_than_hours must be a finite number of hours, at least 0, not {hours!r}. "
            "Nothing was deleted."
        )
    try:
        return timedelta(hours=hours)
    except OverflowError:
        return timedelta.max


class _Spared(Exception):
    """The reason why a session is not deleted: its user.

    Empty if it was used or deleted since it was found.
    """


class _Pruning:
    """One pruning, and its results so far."""

    def __init__(
        self,
        root: SessionsRoot,
        folder: Folder,
        limit: timedelta,
        dry_run: bool,
        logger: SandboxLogger,
    ) -> None:
        self._root, self._folder = root, folder
        self._limit = limit
        self._dry_run = dry_run
        self._log = logger.log_event
        self._result = PruneResult(dry_run=dry_run)
        self._links: dict[str, list[str]] = {}
        self._unread: dict[str, OSError] = {}
        self._bytes = self._private_bytes = 0

    def run(self) -> PruneResult:
        """Finds the old sessions, and deletes them, the oldest first."""
        left = {} if self._dry_run else removal.finish_removals(self._folder)
        self._links = self._root.aliases()
        now = metadata.now()
        judged = {name: self._judged(name, now) for name in self._names()}
        ages = {name: age for name, age in judged.items() if age is not None}
        for name in sorted(ages, key=lambda name: ages[name], reverse=True):
            self._prune(name, ages[name])
        for name, problem in left.items():
            if name not in {*self._result.errors, *self._result.deleted_sessions}:
                self._fail(name, problem)
        return replace(
            self._result,
            skipped_sessions=list(self._result.skip_reasons),
            reclaimed_bytes=self._bytes,
            reclaimed_private_bytes=self._private_bytes,
        )

    def _names(self) -> list[str]:
        with os.scandir(self._folder.fd) as listing:
            names = [entry.name for entry in listing if entry.is_dir(follow_symlinks=False)]
        return sorted(filter(ids.is_id, names))

    def _judged(self, name: str, now: datetime) -> timedelta | None:
        """Returns the age of a session to delete; None for others, whose skip reasons are noted.

        A folder that is not named by a UUID is a session's if it has metadata. An unreadable
        session is as old as its folder, which every cell changes.
        """
        is_uuid = bool(ids.uuid_in(name))
        try:
            with self._folder.enter(name) as folder:
                age = _age(folder, name, now)
        except FileNotFoundError:
            return None
        except OSError as problem:
            self._unread[name] = problem
            age = _age_of_folder(self._folder, name, now) if is_uuid else None
            return age if age is not None and age > self._limit else None
        except MetadataCorrupted:
            if is_uuid:
                self._skip(name, _CORRUPTED)
            return None
        if age is None:
            if is_uuid:
                self._skip(name, _NO_METADATA)
            return None
        if age > self._limit and not is_uuid:
            self._skip(name, _CHOSEN_ID)
        return age if age > self._limit and is_uuid else None

    def _prune(self, name: str, age: timedelta) -> None:
        try:
            sizes = self._candidate(name, age)
            if not self._dry_run:
                sizes = self._remove(name)
        except _Spared as spared:
            if str(spared):
                self._spare(name, str(spared))
        except SessionInUse:
            self._spare(name, ANOTHER_PROCESS)
        except FileNotFoundError:
            return  # another process deleted it since it was found
        except (OSError, MetadataCorrupted, PrivateFolderError) as problem:
            self._fail(name, problem)
        else:
            self._result.deleted_sessions.append(name)
            self._bytes += sizes[0]
            self._private_bytes += sizes[1]

    def _candidate(self, name: str, age: timedelta) -> tuple[int, int]:
        """Logs a candidate; returns the bytes of its workspace and, in a dry run, private folder.

        Refuses a folder that its owner made read-only, to keep it, and one that can't be read.
        """
        if (problem := self._unread.get(name)) is not None:
            self._log(
                events.PRUNE_CANDIDATE,
                session_id=name,
                age_hours=age / timedelta(hours=1),
                size_bytes=self._seen_bytes(name),
            )
            raise problem
        with self._folder.enter(name) as folder:
            size, hours = walks.size_of(folder.fd), age / timedelta(hours=1)
            self._log(events.PRUNE_CANDIDATE, session_id=name, age_hours=hours, size_bytes=size)
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fd, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return size, self._look(name, folder) if self._dry_run else 0

    def _seen_bytes(self, name: str) -> int:
        with suppress(OSError), self._folder.enter(name) as folder:
            return walks.size_of(folder.fd)
        return 0

    def _look(self, name: str, folder: Folder) -> int:
        """Checks that the session is not in use; returns the bytes of its private folder."""
        workspace = self._root.path / name
        if used := OPEN_SANDBOXES.user(workspace):
            raise _Spared(used)
        found = self._root.privates.find(name, folder)
        if found is None:
            return 0
        with found:
            if not OPEN_SANDBOXES.has(workspace) and is_used(found):
                raise SessionInUse
            return walks.size_of(found.fd)

    def _remove(self, name: str) -> tuple[int, int]:
        sizes: list[int] = []

        def confirm(folder: Folder, private: Folder) -> None:
            """Checks under the session's lock that the session is still old."""
            self._check_age(folder, name)
            sizes.extend(walks.size_of(each.fd, force=True) for each in (folder, private))

        with self._folder.enter(name) as folder:
            self._check_age(folder, name)
        why = _PRUNED.format(hours=self._limit / timedelta(hours=1))
        if used := OPEN_SANDBOXES.retire(self._root.path / name, why):
            raise _Spared(used)
        removal.remove(self._folder, name, self._root.privates, confirm)
        remove_links(self._folder, self._links.get(name, []))
        self._log(events.PRUNE_DELETED, session_id=name)
        return sizes[0], sizes[1]

    def _check_age(self, folder: Folder, name: str) -> None:
        age = _age(folder, name, metadata.now())
        if age is None or age <= self._limit:
            raise _Spared

    def _skip(self, name: str, reason: str) -> None:
        self._result.skip_reasons[name] = reason
        self._log(events.PRUNE_SKIPPED, session_id=name, reason=reason)

    def _spare(self, name: str, user: str) -> None:
        self._result.in_use[name] = user
        self._log(events.PRUNE_IN_USE, session_id=name, reason=user)

    def _fail(self, name: str, problem: Exception) -> None:
        why = self._result.errors[name] = describe(problem)
        self._log(events.PRUNE_FAILED, session_id=name, error=why)


def _age(folder: Folder, session_id: str, now: datetime) -> timedelta | None:
    known = metadata.read(folder, session_id)
    return now - known.updated_at if known is not None else None


def _age_of_folder(root: Folder, name: str, now: datetime) -> timedelta | None:
    status = root.status(name)
    return None if status is None else now - datetime.fromtimestamp(status.st_mtime, UTC)


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
        heard = _Events(task)
        logger = SandboxLogger(heard)
        try:
            result = prune_sessions(
                request.hours, root.named, request.dry_run, logger, private_root=root.private_root
            )
        except _CutShort:
            return Pruned(events=tuple(heard.events), cancelled=True)
        return Pruned(_reply_of(result), tuple(heard.events))

    return handle


class _CutShort(BaseException):
    """Ends a pruning between two sessions; an `Exception` from a logger would be ignored."""


class _Events:
    """A logger that keeps events, and ends the pruning if it was cancelled."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        if self._task.cancelled:
            raise _CutShort
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
