"""`Expiry`: deletes the sessions of a service that had no call for some time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from wasm_kernel import events
from wasm_kernel.errors import SessionInUse, WasmKernelError, describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.linux.broker import log_failure
from wasm_kernel.linux.folders import Folder
from wasm_kernel.service.records import SessionRecords
from wasm_kernel.service.registry import Registry
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.removal import Deleter, NotDue, Rule, last_cell
from wasm_kernel.sessions.root import SessionsRoot

_LOG = logging.getLogger("wasm_kernel.service")
_SCAN_SECONDS = 60.0  # between two searches for sessions that earlier services left
_EXPIRED = (
    "This session was deleted, as it had not been used for {seconds:g} seconds. Its variables and "
    "files are gone. Create another one."
)


def call_logged(work: Callable[..., None], *about: Any) -> None:
    """Calls `work`, and logs its errors, which must not end the calling thread."""
    try:
        work(*about)
    except (WasmKernelError, OSError) as problem:
        _LOG.warning("a session can't be put to sleep or deleted: %s", describe(problem))
    except Exception as problem:
        log_failure("looking after sessions", problem)


class Expiry:
    """The rule by which a service deletes its sessions, and those that earlier services left.

    A session of the service expires if it is asleep, and neither it nor the sessions with the same
    files had a call for `seconds`. A session that an earlier service left expires if no cell ended
    in it for `seconds`.
    """

    def __init__(
        self,
        root: SessionsRoot,
        registry: Registry,
        records: SessionRecords,
        seconds: float,
        logger: SandboxLogger,
    ) -> None:
        self._root, self._registry, self._records = root, registry, records
        self._logger = logger
        self._rule = Rule(seconds, self._last_use, begins=self._close)
        self._why = _EXPIRED.format(seconds=seconds)
        self._scanned = -math.inf
        # when each session's last use was first seen: the system's own clock may be set
        self._seen: dict[tuple[SessionWorker, float], float] = {}
        self._sharing: dict[str, list[SessionWorker]] = {}  # by the folder of their files
        self._due: dict[str, float] = {}  # when another service's session is next read

    def delete_expired(self) -> None:
        """Deletes the sessions that have expired by now."""
        if not self._root.path.is_dir():
            return
        workers, now = [each.sandbox.worker for each in self._registry.entries()], time.monotonic()
        uses = [(each, each.last_used) for each in workers]
        self._seen = {use: self._seen.get(use, now) for use in uses}
        old = [each for (each, _), seen in self._seen.items() if self._rule.is_due(now - seen)]
        names = [each.opened.session_id for each in old]
        self._sharing = {}
        for each in workers if old else ():
            self._sharing.setdefault(_files_of(each), []).append(each)
        with Folder.open(self._root.path) as top:
            deleter = Deleter(self._root, top)
            if time.monotonic() > self._scanned + _SCAN_SECONDS:
                deleter.finish_earlier()
                names += self._others(top)
                self._scanned = time.monotonic()
            for name in names:
                call_logged(self._delete, name, deleter)

    def _others(self, top: Folder) -> list[str]:
        """Returns the sessions of other services that may be due by now."""
        there, now = {name for name in top.names() if ids.is_id(name)}, time.time()
        self._due = {name: due for name, due in self._due.items() if name in there}
        unknown = (name for name in there if self._registry.get(name) is None)
        return [name for name in unknown if self._due.get(name, 0.0) < now]

    def _delete(self, name: str, deleter: Deleter) -> None:
        try:
            deleter.delete(name, self._rule)
            self._logger.log_event(events.SESSION_DELETED, session_id=name)
        except FileNotFoundError:  # another process deleted it
            if self._registry.get(name) is not None:
                self._close(name)
        except (NotDue, SessionInUse, MetadataCorrupted, NotADirectoryError):
            pass  # something else may have such a name

    def _close(self, name: str) -> None:
        if (entry := self._registry.remove(name, self._why)) is not None:
            entry.sandbox.close(why=self._why)

    def _last_use(self, name: str, workspace: Folder) -> float | None:
        """Returns when a session had its last call; None if it is awake, or no service's."""
        if (entry := self._registry.get(name)) is None:
            used = last_cell(name, workspace) if self._records.read(name) else None
            if used is not None:
                self._due[name] = used + (self._rule.seconds or 0.0)
            return used
        worker = entry.sandbox.worker
        sharing = self._sharing.get(_files_of(worker), [worker])
        if any(each.state != "asleep" for each in sharing):
            return None
        elsewhere = last_cell(name, workspace) or 0.0  # on a server that shares the folder
        return max(elsewhere, *(each.last_used for each in sharing))


def _files_of(worker: SessionWorker) -> str:
    """Returns the folder of a session's files, which may be another session's folder."""
    return worker.opened.files_of or worker.opened.workspace
