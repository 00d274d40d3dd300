"""`SessionInfo`: the facts that a service knows of a session."""

from __future__ import annotations

from msgspec import Struct

from wasm_kernel.service.session_worker import SessionWorker, State


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

    @classmethod
    def of(
        cls, session: SessionWorker, owner: str, created: float, disk_bytes: int | None
    ) -> SessionInfo:
        """Returns the current facts of a session."""
        worker, usage = session.worker, session.usage
        requests, size = (0, 0) if session.network is None else session.network.used
        return cls(
            session_id=session.opened.session_id,
            owner=owner,
            language=session.opened.language,
            created=created,
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
