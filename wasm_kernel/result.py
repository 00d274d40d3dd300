"""What came of something: of a cell `SandboxResult` and its pieces, of pruning `PruneResult`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from wasm_kernel.record import record

_STEP = 1024
_UNITS = ("KB", "MB", "GB", "TB", "PB", "EB")


@record
class CellError:
    """A cell's error as Jupyter shows it: class name, text, and the lines of the traceback."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@record
class Output:
    """One rich output of a cell.

    `kind` is `display`, `update`, `result`, `error` or `clear`; `data` maps MIME types to content,
    `metadata` and `transient` are as in Jupyter's messages.
    """

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    transient: Mapping[str, Any] = field(default_factory=dict)


@record
class SandboxResult:
    """What one `execute` came to, whatever the code did.

    Attributes:
        success: True where the code ended without an error.
        stdout: What it wrote to standard output, cut at the policy's cap.
        stderr: The same for standard error.
        exit_code: 0 after success, the process's status where the code ended it, otherwise 1.
        error: The Python error, or the trap in the same shape; None after success.
        fuel_consumed: Fuel burnt; None where the sandbox runs unmetered code.
        memory_used_bytes: The size of the guest's memory after the cell.
        duration: Wall-clock seconds.
        files_created: Files that the cell made, relative to the workspace, sorted.
        files_modified: Files that it wrote to and that were there before or were made by it.
        files_deleted: Files that were there before and are gone.
        workspace_path: The folder the guest sees as `/app`.
        outputs: The cell's rich outputs, in order.
        reply: The guest's own reply: `execution_count`, `user_expressions`, `payload`.
        metadata: Facts about the run, such as the session's id.
    """

    success: bool
    stdout: str
    stderr: str
    exit_code: int
    error: CellError | None
    fuel_consumed: int | None
    memory_used_bytes: int
    duration: float
    files_created: tuple[str, ...]
    files_modified: tuple[str, ...]
    files_deleted: tuple[str, ...]
    workspace_path: Path
    outputs: tuple[Output, ...] = ()
    reply: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@record
class PruneResult:
    """What `prune_sessions` came to.

    Attributes:
        deleted_sessions: The ids of the sessions that were deleted, the oldest first; in a dry
            run, of those that would be.
        skipped_sessions: The ids of sessions that were left alone because they have no metadata, or
            none that can be read.
        reclaimed_bytes: The size of all files in the deleted sessions' workspaces; a file with two
            names counts once.
        errors: Why a session could not be deleted, by its id. Each further pruning tries again.
        dry_run: Whether nothing was really deleted.
        skip_reasons: Why a session was skipped, by its id: `no_metadata` or `corrupted_metadata`.
        in_use: Old sessions that were spared, by their ids, and by whom they are used:
            `running_cell` in this process, or `another_process`.
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
        """A summary for people: counts, bytes, and each reason and error."""
        mode, would = ("Dry run: ", "would be ") if self.dry_run else ("", "")
        own = self.reclaimed_private_bytes
        private = f", and {readable(own)} of private files" if own else ""
        used = f"{len(self.in_use)} in use, " if self.in_use else ""
        summary = (
            f"{mode}{_counted(len(self.deleted_sessions))} {would}deleted, "
            f"{len(self.skipped_sessions)} skipped, {used}"
            f"{readable(self.reclaimed_bytes)} {would}reclaimed{private}."
        )
        skipped = [f"  skipped {name}: {why}" for name, why in self.skip_reasons.items()]
        spared = [f"  in use {name}: {why}" for name, why in self.in_use.items()]
        failed = [f"  failed {name}: {why}" for name, why in self.errors.items()]
        return "\n".join([summary, *skipped, *spared, *failed])


def _counted(sessions: int) -> str:
    return f"{sessions} session" if sessions == 1 else f"{sessions} sessions"


def readable(size: int) -> str:
    """A number of bytes as people read it, such as `1.5 MB`; a kilobyte has 1024."""
    if size < _STEP:
        return f"{size} bytes" if size != 1 else "1 byte"
    power = 1
    while power < len(_UNITS) and round(size / _STEP**power, 1) >= _STEP:
        power += 1
    return f"{size / _STEP**power:.1f} {_UNITS[power - 1]}"
