"""The family of a session: its existing forks, their forks, and so on.

A cell can ask for forks, and each has files and states of its own. So all forks of a family
together have the limits of one session. The first fork is always allowed, as it takes only as much
as its parent.

A fork's metadata has its origin. The process of a session can write to its own metadata, so an
attacker in that process could leave the family. So the lineage is read before that process runs a
guest, and never again while it lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from wasm_kernel.errors import ForkError
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import wait_lock
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import readable
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.disk_use import DiskUse
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.root import SessionsRoot

_STEP_SECONDS = 0.1
_WAITS_MOST = 600  # steps of the wait for another process that makes a fork
_BUSY = "another fork is being made"
_FULL = (
    "all forks of a session, and forks of those, may take {bytes} and {files:,} files on disk "
    "together, as much as one session; with this one they would take {wanted} and {names:,} files"
)


class ForkLimits(Struct, frozen=True):
    """The limits of all forks of a session together: their bytes on disk, their files.

    `advice` is a sentence on how to raise them; empty if the reader can't do that.
    """

    bytes: int
    files: int
    advice: str = ""

    @classmethod
    def of(cls, policy: ExecutionPolicy) -> ForkLimits:
        """Returns the limits of one session under a policy."""
        size = policy.workspace_bytes + policy.history_bytes + policy.files_history_bytes
        advice = policy.door.raising("workspace_bytes", "workspace_files")
        return cls(size, policy.workspace_files, advice)


@contextmanager
def room_for_fork(
    root: SessionsRoot, parent: SandboxFolders, first: str, limits: ForkLimits, task: Task
) -> Iterator[None]:
    """Checks the room for a fork of a session, and locks out other forks during the block.

    `first` is the first session of the line. The first fork of a family always has room. Raises
    `ForkError` or `Cancelled`.
    """
    with Folder.open(root.path) as top:
        _wait_turn(top, task)
        forks = [use for name in top.names() if (use := _of_fork(root, name, first, task))]
        if forks:
            _check([*forks, DiskUse.measure(parent.workspace, parent.private)], limits)
        yield


def _wait_turn(top: Folder, task: Task) -> None:
    with suppress(OSError):  # a file system without locks
        for _ in range(_WAITS_MOST):
            if wait_lock(top.fd, _STEP_SECONDS):
                return
            if task.cancelled:
                raise Cancelled
        raise ForkError(_BUSY, "Try again.")


def _of_fork(root: SessionsRoot, name: str, first: str, task: Task) -> DiskUse | None:
    """Returns the disk space of a fork of the family; None if the name is not one."""
    if task.cancelled:
        raise Cancelled
    if not ids.is_id(name):
        return None
    with suppress(OSError, MetadataCorrupted), root.visit(name) as (workspace, private):
        known = metadata.read(workspace, name)
        if private is not None and known and known.lineage and known.lineage.first == first:
            return DiskUse.measure(workspace, private)
    return None


def _check(uses: list[DiskUse], limits: ForkLimits) -> None:
    wanted, names = sum(use.total for use in uses), sum(use.names for use in uses)
    if wanted > limits.bytes or names > limits.files:
        said = _FULL.format(
            bytes=readable(limits.bytes), files=limits.files, wanted=readable(wanted), names=names
        )
        raise ForkError(said, f"Delete forks that you no longer need. {limits.advice}")
