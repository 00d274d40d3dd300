"""The upkeep of a root of sessions: keeps their disk space within a limit and an age.

For lack of room, only histories are removed: saved variables, earlier versions of files, fetched
packages. Each session may take its fair share of the limit: sessions that take less than an equal
part leave the rest to the others. Only a session that takes more than its share loses its history,
and only while it is not in use; until then it is not counted. So a session that fills the disk does
not push out others: its own history goes as soon as it is closed. Of the sessions that take too
much, the one with the most bytes times idle time goes first.

Files are removed only by age, if the session's notebook is gone and a user was told some time
before. If no notebook is known, the files may be needed: they stay.

The same rounds remove compiled code from the cache that was not used for a month: by then the
kernel that began the rounds has noted what it uses.

Sessions of a running service are left alone, asleep or awake: the service has its own limits.

A kernel does upkeep on a thread of low priority, outside of its confined process. Of all kernels
with one root, one at a time does a round, some minutes after the last round. No session needs a
round to succeed: failed work is tried again in the next round.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.folders.locks import SERVED, is_served
from wasm_kernel.folders.places import UPKEEP, WARNS, Place, state_subfolder, upkeep_name
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.result import first_of
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.disk_use import DiskUse, idle_seconds, stamp_of
from wasm_kernel.sessions.notebooks import notebooks_of
from wasm_kernel.sessions.removal import Deleter, Rule, evict, last_cell, remove_evicted
from wasm_kernel.sessions.root import SessionsRoot

DAY = 24 * 3600.0
IDLE_SECONDS = 600.0
"""A session that was used more recently keeps its history: a kernel that died may come back."""

TOLD_SECONDS = 14 * DAY
"""The time between a warning and the deletion of files."""

_ROUND_SECONDS, _OVERDUE_SECONDS = 300.0, 3600.0
_FIRST_SECONDS, _SOON_SECONDS = 60.0, 5.0  # after a kernel's start
AGAIN_SECONDS = DAY  # between two warnings
_TICK_SECONDS = 0.01  # the most by which the time of a file that is written now is behind
_RECORDS_BYTES = 64 * 1024 * 1024
_NAMED_MOST = 5
_LOG = logging.getLogger("wasm_kernel")

_LEAVING = (
    "[wasm-kernel] The notebooks of some old sessions are gone ({names}). The files that they left "
    "in their sessions will be deleted two weeks after you were told so. To keep them, put the "
    "notebooks back, or see `wasm-kernel sessions list` and use `wasm-kernel sessions export`.\n"
)


class Record(Struct, frozen=True):
    """The known facts of a session: its disk space, and its notebook if that is gone.

    Its files may be deleted since `due`, and a user was told at `told`, in seconds since 1970; 0 if
    not.
    """

    session_id: str
    use: DiskUse
    notebook: str = ""
    due: float = 0.0
    told: float = 0.0


Records = dict[str, Record]
"""Records by the names of private folders, which differ for a later session of the same id."""


def gone_notebooks(root: SessionsRoot) -> Mapping[str, str]:
    """Returns the paths of notebooks that are gone, by the ids of their sessions in a root."""
    paths = {name: [each.file for each in found] for name, found in notebooks_of(root).items()}
    return {name: str(found[0]) for name, found in paths.items() if all(map(_is_gone, found))}


def _is_gone(notebook: Path) -> bool:
    """Returns whether a notebook is gone, though its folder exists (its disk may be unmounted)."""
    with contextlib.suppress(OSError):
        return notebook.parent.is_dir() and not os.path.lexists(notebook)
    return False


def fair_share(sizes: Collection[int], most: int) -> int:
    """Returns how many bytes each session may take, so that all together take at most `most`.

    Sessions that take less leave the rest to the others. If all fit, it is the largest size.
    """
    left = most
    for count, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size * count > left:
            return left // count
        left -= size
    return max(sizes, default=0)


def to_evict(records: Mapping[str, Record], most: int) -> list[str]:
    """Returns the keys of the sessions that lose their histories.

    A session in use that takes more than its share is not counted: its history goes when the
    session is closed, and no other history goes instead.
    """
    sizes = {key: record.use.total for key, record in records.items()}
    weights: dict[str, float] = {}  # bytes times seconds, of the sessions to evict
    while sum(sizes.values()) > most:
        share = fair_share(sizes.values(), most)
        over = {key: _weight(records[key]) for key, size in sizes.items() if size > share}
        stuck = [key for key, weight in over.items() if not weight or key in weights]
        for key in stuck:
            del sizes[key]
        if not stuck:
            key = max(over, key=lambda key: over[key])
            weights[key] = over[key]
            sizes[key] -= records[key].use.history
    room = most - sum(sizes.values())
    for key in sorted(weights, key=lambda key: weights[key]):
        if records[key].use.history <= room:  # it can stay after all
            room -= records[key].use.history
            del weights[key]
    return list(weights)


def _weight(record: Record) -> float:
    """Returns the weight for removing a history, in bytes times seconds; 0 if it can't go now."""
    idle = idle_seconds(record.use.stamp)
    return 0.0 if record.use.in_use or idle < IDLE_SECONDS else idle * record.use.history


class Upkeep:
    """The upkeep of one root, for one kernel.

    All sessions together may take `most_bytes`; 0 means no limit. After `days` without use,
    histories are removed, and files whose notebook is gone; 0 means never.
    """

    def __init__(self, root: SessionsRoot, *, most_bytes: int, days: float) -> None:
        self._root = root
        self._most_bytes = most_bytes
        self._age_seconds = days * DAY
        name = upkeep_name(root.path)
        self._records, self._told = f"{name}.json", f"{name}.told"
        self._lock, self._warns = f"{name}.lock", f"{name}{WARNS}"

    # -- now and then

    def run(self) -> None:
        """Runs rounds on this thread, at the lowest priority; never returns."""
        with contextlib.suppress(OSError):  # the priority of this thread alone, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        time.sleep(_SOON_SECONDS if self._since_last() > _OVERDUE_SECONDS else _FIRST_SECONDS)
        while True:
            try:
                if self._since_last() > _ROUND_SECONDS:
                    self.round()
            except Exception:
                _LOG.exception("sessions could not be kept within their bound")
            time.sleep(_ROUND_SECONDS)

    def _since_last(self) -> float:
        """Returns the seconds since any kernel's last round."""
        if (place := state_subfolder(UPKEEP)) is None:
            return _OVERDUE_SECONDS + 1
        with place:
            found = place.status(self._records)
        return abs(time.time() - found.st_mtime) if found is not None else _OVERDUE_SECONDS + 1

    def round(self) -> None:
        """Checks all sessions and the cache once; removes due histories, sessions and code.

        Raises `OSError` if the round's records can't be written.
        """
        if (place := state_subfolder(UPKEEP, make=True)) is None:
            return
        with place:
            lock = FileLock(self._lock, place)
            if not lock.acquire():
                return  # another kernel runs a round just now
            try:
                self._round(place)
                with contextlib.suppress(OSError):  # there is no cache yet
                    Cache().remove_unused()
            finally:
                lock.release()

    def _round(self, place: Place) -> None:
        with contextlib.suppress(FileNotFoundError), Folder.open(self._root.path) as top:
            known = _read(place, self._records)
            found = _Sessions(top, self._root)
            for name in filter(ids.is_id, top.names()):
                found.measure(name, known)
            for key, record in list(found.records.items()):
                if record.use.history and self._is_old(record):
                    found.evict(key, "age", self._age_seconds)
            while self._most_bytes and (keys := to_evict(found.records, self._most_bytes)):
                for key in keys:
                    found.evict(key, "room", IDLE_SECONDS)
            told = place.status(self._told)
            gone = gone_notebooks(self._root)
            for key, record in list(found.records.items()):
                notebook = gone.get(record.session_id)
                self._let_files_go(found, key, notebook, 0.0 if told is None else told.st_mtime)
            place.write_record(self._records, found.records)
            if any(record.due for record in found.records.values()):
                os.close(place.open_regular(self._warns, os.O_WRONLY | os.O_CREAT))
            else:
                place.remove(self._warns)

    def _is_old(self, record: Record) -> bool:
        idle = idle_seconds(record.use.stamp)
        return bool(self._age_seconds) and not record.use.in_use and idle >= self._age_seconds

    def _let_files_go(self, found: _Sessions, key: str, notebook: str | None, told: float) -> None:
        """Removes a session whose notebook is gone, if a user was told long enough ago."""
        record = found.records[key]
        if not (notebook and self._is_old(record) and ids.uuid_in(record.session_id)):
            found.records[key] = replace(record, notebook="", due=0.0, told=0.0)
            return
        now = time.time()
        due = record.due or now - _TICK_SECONDS
        told = record.told or (told if told >= due else 0.0)
        found.records[key] = replace(record, notebook=notebook, due=due, told=told)
        if told and now - told >= TOLD_SECONDS and found.remove(record, self._age_seconds):
            del found.records[key]

    # -- what users are told

    def deletions(self) -> dict[str, float]:
        """Returns when sessions' files will be deleted, in seconds since 1970, by their ids."""
        if (place := state_subfolder(UPKEEP)) is None:
            return {}
        with place:
            known = _read(place, self._records).values()
        return {each.session_id: each.told + TOLD_SECONDS for each in known if each.told}

    def warnings(self) -> tuple[str, ...]:
        """Returns the notices for a user at a kernel's start, once a day."""
        if (place := state_subfolder(UPKEEP)) is None:
            return ()
        with place:
            written, told = place.status(self._records), place.status(self._told)
            last = 0.0 if told is None else told.st_mtime
            due = [each for each in _read(place, self._records).values() if each.due]
            if written is None or not due or 0 <= time.time() - last < AGAIN_SECONDS:
                return ()
            with contextlib.suppress(OSError):
                os.close(place.open_regular(self._told, os.O_WRONLY | os.O_CREAT))
                # users were told only of the records written by then
                os.utime(self._told, (written.st_mtime,) * 2, dir_fd=place.fd)
        names = sorted({ascii(Path(each.notebook).name)[1:-1] for each in due})
        return (_LEAVING.format(names=", ".join(first_of(names, _NAMED_MOST))),)


class _Sessions:
    """The sessions of a root in one round; `records` has the known facts of each."""

    def __init__(self, top: Folder, root: SessionsRoot) -> None:
        self._top, self._root = top, root
        self._is_served = is_served(root.path)
        self.records: Records = {}

    def measure(self, name: str, known: Records) -> None:
        """Measures a session, if it may have changed and no running service has it."""
        with contextlib.suppress(OSError), self._root.visit(name) as (workspace, private):
            if private is None or (self._is_served and private.status(SERVED) is not None):
                return
            remove_evicted(private)
            key = private.path.name
            before = known.get(key)
            if before is None or not before.use.holds(private):
                use = DiskUse.measure(workspace, private)
                before = Record(name, use) if before is None else replace(before, use=use)
            self.records[key] = before

    def evict(self, key: str, why: str, seconds: float) -> None:
        record, gone = self.records[key], False
        with contextlib.suppress(OSError), self._root.visit(record.session_id) as (_, private):
            if private is not None and private.path.name == key:
                gone = evict(private, why, seconds)
        if not gone:
            self.records[key] = replace(record, use=replace(record.use, in_use=True))
            return
        _LOG.info("the history of session %s was removed (%s)", record.session_id, why)
        self.records[key] = replace(record, use=replace(record.use, history=0))
        self.measure(record.session_id, self.records)

    def remove(self, record: Record, seconds: float) -> bool:
        """Removes a session with its files, if it was not used for `seconds`."""
        rule = Rule(seconds, self._last_use)
        try:
            Deleter(self._root, self._top).delete(record.session_id, rule)
        except (OSError, WasmKernelError):
            return False
        _LOG.info("session %s was removed: its notebook is gone", record.session_id)
        return True

    def _last_use(self, name: str, workspace: Folder) -> float | None:
        """Returns when a cell last ended in a session, or a process last opened or left it."""
        with self._root.private_of(name)() as (private, _):
            opened = time.time() - idle_seconds(stamp_of(private))
        ended = last_cell(name, workspace)
        return None if ended is None else max(opened, ended)


def _read(place: Place, name: str) -> Records:
    """Returns the records of the last round; none if they can't be read."""
    with contextlib.suppress(OSError):
        return place.read_record(name, Records, _RECORDS_BYTES)
    return {}
