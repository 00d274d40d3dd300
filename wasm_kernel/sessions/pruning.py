"""Deleting the sessions that nobody has used for long: found, planned, then deleted.

The age of a session is that of `updated_at` in its metadata: the end of its last cell, successful
or not. A session without metadata is never deleted, nor one that another process has open or that a
cell runs in. An idle sandbox of this process is closed. Only sessions named by a UUID are deleted;
an old one whose id somebody chose is skipped. A link to a session is another name of it
(`paths.py`): the session counts once, by its own id, and its links are removed with it. No other
link is followed.

If a cell asks for it, the broker does it: a confined kernel can't reach other sessions. The broker
gets a number of hours and a yes or no, and no path.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import SessionInUse, WasmKernelError, describe
from wasm_kernel.events import SandboxLogger, heard_by
from wasm_kernel.folders import orphans
from wasm_kernel.folders.locks import is_used
from wasm_kernel.folders.overlap import check_opening
from wasm_kernel.folders.places import PrivateFolders
from wasm_kernel.folders.private import PrivateFolderError
from wasm_kernel.guests import commands
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder, open_named, real_path
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.result import PruneResult
from wasm_kernel.sessions import ids, metadata, removal
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.open_sandboxes import ANOTHER_PROCESS, OPEN_SANDBOXES
from wasm_kernel.sessions.paths import WORKSPACE_ROOT, aliases_in, remove_links

_NO_METADATA, _CORRUPTED = "no_metadata", "corrupted_metadata"
_CHOSEN_ID = "not_a_uuid"  # whoever chose the id may count on the session
_PRUNED = (
    "This sandbox was closed because prune_sessions was to delete its session: no cell had run in "
    "it for more than {hours:g} hours. Get the session again with get_session_sandbox: it goes on "
    "with what is left, or begins empty."
)


class PruneError(WasmKernelError, ValueError):
    """Pruning was asked for in a way that makes no sense; nothing was deleted."""


class NoWorkspaceRoot(WasmKernelError, FileNotFoundError):
    """A sessions' folder that does not exist."""


@dataclass(frozen=True)
class SessionAge:
    """The age of a session, or the reason why it is not known.

    Attributes:
        session_id: The session's id.
        age: The time since its last cell; None if its metadata does not say.
        reason: Why not, in one word.
        problem: The error that kept its metadata from being read at all.
    """

    session_id: str
    age: timedelta | None = None
    reason: str = ""
    problem: OSError | None = None


@dataclass(frozen=True)
class PrunePlan:
    """The sessions to be deleted, the oldest first, and those that can't be judged."""

    candidates: tuple[SessionAge, ...]
    skipped: tuple[SessionAge, ...]
    failed: tuple[SessionAge, ...]


def plan_pruning(found: Sequence[SessionAge], limit: timedelta) -> PrunePlan:
    """Returns what is to be done: sessions older than `limit` go, if a UUID names them. Pure."""
    old = [one for one in found if one.age is not None and one.age > limit]
    gone = [one for one in old if ids.uuid_in(one.session_id)]
    chosen = [replace(one, reason=_CHOSEN_ID) for one in old if not ids.uuid_in(one.session_id)]
    return PrunePlan(
        tuple(sorted(gone, key=lambda one: one.age or limit, reverse=True)),
        (*(one for one in found if one.reason), *chosen),
        tuple(one for one in found if one.problem is not None),
    )


def prune_sessions(
    older_than_hours: float,
    workspace_root: Path | str = WORKSPACE_ROOT,
    dry_run: bool = False,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
) -> PruneResult:
    """Deletes the sessions in which no cell has run for long, whether it succeeded or not.

    Sessions without metadata, with corrupted metadata, or with an id that is not a UUID are
    skipped. A session is spared if another process has it open or a cell of this process runs in
    it. Other sandboxes of this process on such sessions are closed, and later calls on them say
    why. If a session can't be deleted, the others are, and it keeps its id. If the clock went back,
    a session that seems to come from the future is not old.

    Args:
        older_than_hours: Sessions that were last used longer ago than this go; 0 means all.
        workspace_root: The folder that holds the sessions' folders.
        dry_run: Says what would be deleted; nothing is changed.
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
    told = heard_by(logger)
    place = real_path(workspace_root)
    with _opened(Path(workspace_root)) as root:
        check_opening(place, place, (), private_root)
        told.log_event(
            events.PRUNE_STARTED,
            threshold=older_than_hours,
            workspace_root=str(workspace_root),
            dry_run=dry_run,
        )
        privates = PrivateFolders(place, private_root)
        if not dry_run:
            orphans.sweep_now_and_then()
        result = _Pruning(root, privates, limit, dry_run, told).run()
    told.log_event(
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
def _opened(root: Path) -> Iterator[int]:
    try:
        folder = open_named(root)
    except (FileNotFoundError, NotADirectoryError):
        raise NoWorkspaceRoot(
            "workspace_root is no folder that exists. Nothing was deleted. Name the folder that "
            "holds the sessions' folders."
        ) from None
    with folder:
        yield folder.fd


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


def survey(root: int, now: datetime) -> list[SessionAge]:
    """Returns the age of every session.

    A folder that is not named by a UUID is a session's if it has metadata.

    Args:
        root: A descriptor of the sessions' folder.
        now: The present time.
    """
    with os.scandir(root) as listing:
        names = [entry.name for entry in listing if entry.is_dir(follow_symlinks=False)]
    seen = (_seen(root, name, now) for name in sorted(names) if ids.is_id(name))
    return [one for one in seen if one and (one.age is not None or ids.uuid_in(one.session_id))]


def _seen(root: int, name: str, now: datetime) -> SessionAge | None:
    """The age of one session; None if it is deleted by now."""
    try:
        with walks.opened_folder(name, root) as folder:
            age = _age(folder, name, now)
        return SessionAge(name, age) if age is not None else SessionAge(name, reason=_NO_METADATA)
    except MetadataCorrupted:
        return SessionAge(name, reason=_CORRUPTED)
    except FileNotFoundError:
        return None
    except OSError as problem:
        return SessionAge(name, problem=problem)


def _age(folder: int, session_id: str, now: datetime) -> timedelta | None:
    known = metadata.read(folder, session_id)
    return now - known.updated_at if known is not None else None


class _UsedMeanwhile(Exception):
    """A session that was used after it had been found old."""


class _Used(Exception):
    """A session that somebody uses; the word says who."""


class _Pruning:
    """One pruning, and its results so far."""

    def __init__(
        self,
        root: int,
        privates: PrivateFolders,
        limit: timedelta,
        dry_run: bool,
        logger: SandboxLogger,
    ) -> None:
        self._root = root
        self._privates = privates
        self._place = privates.root
        self._limit = limit
        self._dry_run = dry_run
        self._log = logger.log_event
        self._deleted: list[str] = []
        self._skipped: dict[str, str] = {}
        self._in_use: dict[str, str] = {}
        self._errors: dict[str, str] = {}
        self._links: dict[str, list[str]] = {}
        self._bytes = self._private_bytes = 0

    def run(self) -> PruneResult:
        """Finds the old sessions, and deletes them."""
        left = {} if self._dry_run else removal.finish_removals(self._root)
        self._links = aliases_in(self._place)
        plan = plan_pruning(survey(self._root, metadata.now()), self._limit)
        for one in plan.skipped:
            self._skip(one.session_id, one.reason)
        for one in plan.failed:
            self._log(events.PRUNE_CANDIDATE, session_id=one.session_id)
            self._fail(one.session_id, one.problem or OSError())
        for one in plan.candidates:
            self._prune(one)
        for name, problem in left.items():
            if name not in self._errors and name not in self._deleted:
                self._fail(name, problem)
        return PruneResult(
            deleted_sessions=self._deleted,
            skipped_sessions=list(self._skipped),
            reclaimed_bytes=self._bytes,
            reclaimed_private_bytes=self._private_bytes,
            errors=self._errors,
            dry_run=self._dry_run,
            skip_reasons=self._skipped,
            in_use=self._in_use,
        )

    def _prune(self, one: SessionAge) -> None:
        try:
            sizes = self._candidate(one)
            if not self._dry_run:
                sizes = self._remove(one)
        except _Used as used:
            self._spare(one.session_id, str(used))
        except SessionInUse:
            self._spare(one.session_id, ANOTHER_PROCESS)
        except (_UsedMeanwhile, FileNotFoundError):
            return  # somebody used it, or deleted it, since it was found
        except (OSError, MetadataCorrupted, PrivateFolderError) as problem:
            self._fail(one.session_id, problem)
        else:
            self._deleted.append(one.session_id)
            self._bytes += sizes[0]
            self._private_bytes += sizes[1]

    def _candidate(self, one: SessionAge) -> tuple[int, int]:
        """Logs a candidate; refuses a folder that its owner made read-only, to keep it.

        Returns:
            The bytes of its workspace and, in a dry run, of its private folder.
        """
        with walks.opened_folder(one.session_id, self._root) as folder:
            size = walks.size_of(folder)
            hours = (one.age or timedelta()) / timedelta(hours=1)
            self._log(
                events.PRUNE_CANDIDATE, session_id=one.session_id, age_hours=hours, size_bytes=size
            )
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            private = self._look(one, folder) if self._dry_run else 0
        return size, private

    def _look(self, one: SessionAge, folder: int) -> int:
        """Checks that nobody uses the session; returns the bytes of its private folder."""
        workspace = self._place / one.session_id
        if used := OPEN_SANDBOXES.user(workspace):
            raise _Used(used)
        found = self._privates.find(one.session_id, Folder(folder))
        if found is None:
            return 0
        with found.folder:
            if not OPEN_SANDBOXES.has(workspace) and is_used(found.folder):
                raise SessionInUse
            return walks.size_of(found.folder.fd)

    def _remove(self, one: SessionAge) -> tuple[int, int]:
        sizes: list[tuple[int, int]] = []

        def confirm(folder: int, private: Folder) -> None:
            """Checks, now that nobody can use it any more, that the session is still old."""
            self._check_age(folder, one.session_id)
            sizes.append((walks.size_of(folder, force=True), walks.size_of(private.fd, force=True)))

        with walks.opened_folder(one.session_id, self._root) as folder:
            self._check_age(folder, one.session_id)
        why = _PRUNED.format(hours=self._limit / timedelta(hours=1))
        if used := OPEN_SANDBOXES.retire(self._place / one.session_id, why):
            raise _Used(used)
        removal.remove(self._root, one.session_id, self._privates, confirm)
        remove_links(self._root, self._links.get(one.session_id, []))
        self._log(events.PRUNE_DELETED, session_id=one.session_id)
        return sizes[0]

    def _check_age(self, folder: int, session_id: str) -> None:
        age = _age(folder, session_id, metadata.now())
        if age is None or age <= self._limit:
            raise _UsedMeanwhile

    def _skip(self, session_id: str, reason: str) -> None:
        self._skipped[session_id] = reason
        self._log(events.PRUNE_SKIPPED, session_id=session_id, reason=reason)

    def _spare(self, session_id: str, user: str) -> None:
        self._in_use[session_id] = user
        self._log(events.PRUNE_IN_USE, session_id=session_id, reason=user)

    def _fail(self, session_id: str, problem: Exception) -> None:
        self._errors[session_id] = describe(problem)
        self._log(events.PRUNE_FAILED, session_id=session_id, error=self._errors[session_id])


_USAGE = (
    "Usage: %prune_sessions --older-than 24h [--apply]. The time is in minutes, hours, days or "
    "weeks (30m, 24h, 7d, 2w). Nothing was deleted."
)
_SHOWN_MOST = 500
_EVENTS_MOST = 20_000
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([mhdw])")


class PruneSessions(Struct, frozen=True):
    """A request to delete the sessions in which no cell has run for so many hours."""

    hours: float
    dry_run: bool = True


class Pruned(Struct, frozen=True):
    """The result of a pruning, for a cell: lists and tables are cut, the summary is whole.

    Attributes:
        events: The events of the pruning, for the kernel's own log.
        cancelled: It ended early, between two sessions; then only the events are known.
    """

    summary: str = ""
    deleted: list[str] = []
    skipped: dict[str, str] = {}
    in_use: dict[str, str] = {}
    errors: dict[str, str] = {}
    reclaimed_bytes: int = 0
    reclaimed_private_bytes: int = 0
    dry_run: bool = True
    events: tuple[tuple[str, dict[str, Any]], ...] = ()
    cancelled: bool = False


def hours_of(text: str) -> float | None:
    """Returns the hours in a text such as `24h`, `30m`, `7d` or `2w`; None for other texts."""
    found = _TIME.fullmatch(text)
    return float(found[1]) * _HOURS[found[2]] if found else None


def request_of(line: str) -> PruneSessions:
    """Returns the request that the words of `%prune_sessions` make.

    Raises:
        commands.CommandRefused: they can't be read.
    """
    words = line.replace("=", " ").split()
    apply = words.count("--apply")
    rest = [word for word in words if word != "--apply"]
    hours = hours_of(rest[1]) if len(rest) == 2 and rest[0] == "--older-than" else None
    if hours is None or apply > 1:
        raise commands.CommandRefused(_USAGE)
    return PruneSessions(hours, not apply)


def prune_command(logger: SandboxLogger) -> commands.CommandHandler:
    """Returns the handler of `%prune_sessions`; `logger` gets the events."""

    def run(line: commands.CommandLine, context: commands.CommandContext) -> Any:
        pruned = context.broker.call(request_of(line.line), Pruned, context)
        for event, fields in pruned.events:
            logger.log_event(event, **fields)
        if pruned.cancelled:
            raise Cancelled
        told: dict[str, Any] = msgspec.to_builtins(pruned)
        return {name: told[name] for name in told if name not in ("events", "cancelled")}

    return run


def prune(
    root: Path, private_root: Path | str | None = None
) -> Callable[[PruneSessions, Task], Pruned]:
    """Returns the handler of `PruneSessions`: it prunes the sessions in `root` only."""

    def handle(request: PruneSessions, task: Task) -> Pruned:
        heard = _Events(task)
        logger = SandboxLogger(heard)
        try:
            result = prune_sessions(
                request.hours, root, request.dry_run, logger, private_root=private_root
            )
        except _CutShort:
            return Pruned(events=tuple(heard.events), cancelled=True)
        return _reply(result, tuple(heard.events))

    return handle


class _CutShort(BaseException):
    """Ends a pruning between two sessions; an `Exception` of a logger would be ignored."""


class _Events:
    """A logger that keeps events, and ends the pruning if nobody waits for it any more."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        if self._task.cancelled:
            raise _CutShort
        if len(self.events) < _EVENTS_MOST or event == events.PRUNE_COMPLETED:
            self.events.append((event, fields))

    warning = info


def _reply(result: PruneResult, told: tuple[tuple[str, dict[str, Any]], ...]) -> Pruned:
    summary = str(result).partition("\n")[0]
    parts = (result.deleted_sessions, result.skip_reasons, result.in_use, result.errors)
    left = sum(len(part) for part in parts)
    if left > _SHOWN_MOST:
        summary += f" Of {left:,} sessions, only the first are listed."
    skipped, in_use, errors = (dict([*table.items()][:_SHOWN_MOST]) for table in parts[1:])
    return Pruned(
        summary=summary,
        deleted=result.deleted_sessions[:_SHOWN_MOST],
        skipped=skipped,
        in_use=in_use,
        errors=errors,
        reclaimed_bytes=result.reclaimed_bytes,
        reclaimed_private_bytes=result.reclaimed_private_bytes,
        dry_run=result.dry_run,
        events=told,
    )
