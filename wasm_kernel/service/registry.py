"""The registry of a service: its sessions, their number and size, and those that it deleted."""

from __future__ import annotations

import threading
import time

from msgspec import Struct

from wasm_kernel.errors import SessionInUse
from wasm_kernel.service.limits import ServiceLimits
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.session_worker import State
from wasm_kernel.sessions.disk_use import DiskUse
from wasm_kernel.sessions.metadata import Lineage
from wasm_kernel.sessions.root import SessionsRoot

_GONE_MOST = 10_000  # deleted sessions that are remembered, for the error text


def check_owner(owner: str, asks: str) -> None:
    """Raises `SessionInUse` if the caller, `asks`, is not the owner of a session."""
    if owner != asks:
        raise SessionInUse(
            "This session belongs to another owner. Nothing was changed. Name its owner, or "
            "create a session."
        )


class SessionInfo(Struct, frozen=True):
    """The facts that a service knows of a session.

    Attributes:
        session_id: Its id, by which it is found again.
        owner: Its owner, as `create` got it.
        language: The guest's language, such as `python`.
        created: When the service made or opened it, in seconds since 1970.
        last_used: When a call of it began or ended last.
        state: `starting`, `idle`, `busy` or `asleep`.
        guest_bytes: The size of the guest's memory, as of the last cell.
        host_bytes: The memory that its worker shares with no other process; 0 if it is asleep.
        cpu_seconds: The processor time of its workers, as of the last call that ended.
        fuel: The fuel that its cells burnt, if it was counted.
        disk_bytes: The bytes of its files and history on disk; None if they were not measured.
        cells: How many cells have ended.
        commits: How many states of its memory are kept, as of the last call that ended.
        requests: How many requests its cells sent to the network, since the service has opened it.
        request_bytes: The bytes of these requests and their answers.
    """

    session_id: str
    owner: str
    language: str
    created: float
    last_used: float
    state: State
    guest_bytes: int
    host_bytes: int
    cpu_seconds: float
    fuel: int
    disk_bytes: int | None
    cells: int
    commits: int
    requests: int = 0
    request_bytes: int = 0


class SessionEntry(Struct):
    """A session of the registry, its sandbox and its owner.

    Forks of it get `lineage`. `disk_bytes` was measured at the time `measured`; a time of 0 means
    that it is the parent's size.
    """

    sandbox: Sandbox
    owner: str
    created: float
    lineage: Lineage
    disk_bytes: int = 0
    measured: float = 0.0

    def measure(self, root: SessionsRoot) -> int:
        """Returns the session's bytes on disk; measures them anew if it was used since."""
        session = self.sandbox.worker
        if session.last_used >= self.measured or session.state == "busy":
            self.measured = time.time()
            with root.visit(self.sandbox.session_id) as (folder, private):
                if private is not None:
                    self.disk_bytes = DiskUse.measure(folder, private).total
        return self.disk_bytes

    def sandbox_of(self, owner: str) -> Sandbox:
        """Returns the sandbox; `SessionInUse` if it belongs to another owner."""
        check_owner(self.owner, owner)
        return self.sandbox

    def info(self, disk_bytes: int | None = None) -> SessionInfo:
        """Returns the facts about it; the caller measures the disk."""
        session = self.sandbox.worker
        worker, usage = session.worker, session.usage
        requests, size = (0, 0) if session.network is None else session.network.used
        return SessionInfo(
            session_id=self.sandbox.session_id,
            owner=self.owner,
            language=session.opened.language,
            created=self.created,
            last_used=session.last_used,
            state=session.state,
            guest_bytes=usage.figures.memory_bytes,
            host_bytes=worker.memory_bytes if worker is not None else 0,
            cpu_seconds=usage.cpu_seconds,
            fuel=usage.fuel,
            disk_bytes=disk_bytes,
            cells=usage.cells,
            commits=usage.figures.commits,
            requests=requests,
            request_bytes=size,
        )


class Registry:
    """The sessions that a service knows in a root. Any thread may use it.

    A session counts until its sandbox is closed.
    """

    def __init__(self, root: SessionsRoot) -> None:
        self._root = root
        self._guard = threading.RLock()
        self._entries: dict[str, SessionEntry] = {}
        self._gone: dict[str, str] = {}

    def entries(self) -> list[SessionEntry]:
        """Returns all entries, also those of closed sandboxes that are not asleep yet."""
        with self._guard:
            return [*self._entries.values()]

    def get(self, session_id: str) -> SessionEntry | None:
        """Returns the entry of a session whose sandbox is open; None if there is none."""
        with self._guard:
            entry = self._entries.get(session_id)
        return None if entry is None or entry.sandbox.closed else entry

    def known(self, session_id: str) -> SessionEntry:
        """Returns the entry of a session; `FileNotFoundError` says why there is none anymore."""
        with self._guard:
            if (entry := self._entries.get(session_id)) is not None:
                return entry
        raise self.missing(session_id)

    def missing(self, session_id: str) -> FileNotFoundError:
        """Returns the error of a session that is not there."""
        return FileNotFoundError(self.why_gone(session_id) or f"There is no session {session_id}.")

    def why_gone(self, session_id: str) -> str:
        """Returns why a session was deleted; empty if that is not known."""
        return self._gone.get(session_id, "")

    # -- sessions come and go

    def check_room(self, limits: ServiceLimits, owner: str, more: int, more_bytes: int) -> None:
        """Raises `LimitReached` unless `more` sessions fit, with `more_bytes` on disk."""
        with self._guard:
            counted = [each for each in self._entries.values() if not each.sandbox.closed]
        limits.check_sessions(len(counted), sum(each.owner == owner for each in counted), more)
        limits.check_disk(sum(each.disk_bytes for each in counted), more_bytes, self._root.path)

    def add(self, entry: SessionEntry, limits: ServiceLimits) -> SessionEntry:
        """Adds a session, or returns the entry that another thread has added.

        Raises `LimitReached` if there is no room.
        """
        name = entry.sandbox.session_id
        with self._guard:
            if (known := self.get(name)) is not None:
                return known
            self.check_room(limits, entry.owner, 1, entry.disk_bytes)
            self._entries[name] = entry
            return entry

    def remove(self, session_id: str, why_gone: str = "") -> SessionEntry | None:
        """Removes and returns the entry of a session; `why_gone` is empty if it stays on disk."""
        with self._guard:
            if why_gone:
                self._gone[session_id] = why_gone
                if len(self._gone) > _GONE_MOST:
                    del self._gone[next(iter(self._gone))]
            return self._entries.pop(session_id, None)

    # -- the disk

    def measure(self, seconds: float) -> None:
        """Measures sessions on disk that were used since the last time; stops after `seconds`."""
        until = time.monotonic() + seconds
        for entry in sorted(self.entries(), key=lambda each: each.measured):
            if time.monotonic() > until:
                return
            entry.measure(self._root)
