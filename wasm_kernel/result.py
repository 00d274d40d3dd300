"""What a cell came to: `SandboxResult`, and the pieces it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CellError:
    """A cell's error as Jupyter shows it: class name, text, and the lines of the traceback."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """One rich output of a cell.

    `kind` is `display`, `update`, `result`, `error` or `clear`; `data` maps MIME types to content,
    `metadata` and `transient` are as in Jupyter's messages.
    """

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    transient: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
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
