"""`ServiceLimits`: the limits of a service's sessions, in number and in resources."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from wasm_kernel.errors import LimitReached
from wasm_kernel.linux.files import FREE_BYTES, is_full
from wasm_kernel.policy import MIB, check_limit
from wasm_kernel.result import readable

WORKER_BYTES = 64 * MIB
"""The most memory that a worker takes beside its guest's."""
_NEEDED = ("queue", "answer_seconds")


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """The limits of a service; None means no limit, except for `queue` and `answer_seconds`.

    Attributes:
        sessions: How many sessions it knows, asleep or awake.
        owner_sessions: How many of them may belong to one owner.
        memory_bytes: The bytes of memory for all workers together: for each, its policy's
            `memory_bytes` and 64 MiB. Idle sessions are put to sleep to make room.
        disk_bytes: The bytes on disk for all sessions together; beyond it none is made or forked.
            Each is measured some time after its last cell, and a fork counts as its parent until
            then. No session is made on a disk with less than 256 MiB left.
        queue: How many cells of one session may wait while another one runs.
        idle_seconds: The time without a call after which a session is put to sleep: its process
            ends, and the next call wakes it.
        expire_seconds: The time without a call after which a session is deleted, with its files.
        answer_seconds: The silence after which a worker is ended, if a call waits for it.
    """

    sessions: int | None = 10_000
    owner_sessions: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    queue: int = 16
    idle_seconds: float | None = 120.0
    expire_seconds: float | None = None
    answer_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in _NEEDED:
                check_limit(name, value)
            elif value is not None:
                check_limit(name, value, ", or None for no limit")

    def check_sessions(self, known: int, own: int, more: int) -> None:
        """Raises `LimitReached` unless there may be `more` sessions.

        `known` is the number of all sessions, `own` that of the owner's.
        """
        if self.sessions is not None and known + more > self.sessions:
            raise LimitReached(
                "sessions",
                f"This service takes {self.sessions:,} sessions, and has {known:,}.",
                "Close or delete one, or raise sessions.",
            )
        if self.owner_sessions is not None and own + more > self.owner_sessions:
            raise LimitReached(
                "owner_sessions",
                f"An owner may have {self.owner_sessions:,} sessions, and this one has {own:,}.",
                "Close or delete one of them, or raise owner_sessions.",
            )

    def check_disk(self, taken: int, more: int, root: Path) -> None:
        """Raises `LimitReached` unless `more` bytes fit within the limit and on the disk."""
        if self.disk_bytes is not None and taken + more > self.disk_bytes:
            raise LimitReached(
                "disk_bytes",
                f"The sessions of this service may take {readable(self.disk_bytes)} on disk, and "
                f"take {readable(taken)}.",
                "Delete some, or raise disk_bytes.",
            )
        if is_full(next(each for each in (root, *root.parents) if each.is_dir())):
            raise LimitReached(
                "disk_bytes",
                f"The disk of the sessions' folder has less than {readable(FREE_BYTES)} left.",
                "Delete files there that are no longer needed, such as old sessions.",
            )
