"""Plain values that rooms pass to each other and to callers: results of cells and of travelling in
a session's history, and the messages of widgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

DATA_SUFFIXES = (
    *(".csv", ".tsv", ".txt", ".log", ".json", ".jsonl", ".ndjson", ".geojson"),
    *(".csv.gz", ".tsv.gz", ".txt.gz", ".json.gz", ".jsonl.gz"),
    *(".parquet", ".feather", ".arrow", ".xlsx", ".pdf"),
    *(".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff"),
    *(".wav", ".mp3", ".ogg", ".flac", ".mp4", ".webm"),
)
"""The suffixes of data files: no program runs or obeys such a file because of its suffix."""

SHORT_MOST, FILES_MOST = 100, 100  # characters; files of each kind

_Short = Annotated[str, Meta(max_length=SHORT_MOST)]
_Files = Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=FILES_MOST)]
_Count = Annotated[int, Meta(ge=0, lt=2**62)]
_STEP = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Ran(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the cell before a commit ran, for people.

    Attributes:
        cell_id: The front end's id of the cell; empty if there is none, or it is long.
        error: The name of its error; empty after success.
        seconds: How long it took.
        fuel: The fuel that it burnt; None if none is counted.
        sent: True if it sent requests to the network.
        created: Some of the files that it made; `modified` and `deleted` are like it.
        more: How many further files it made, changed or deleted.
    """

    cell_id: _Short = ""
    error: _Short = ""
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    fuel: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    sent: bool = False
    created: _Files = ()
    modified: _Files = ()
    deleted: _Files = ()
    more: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True)
class CellError:
    """A cell's error as Jupyter shows it.

    Attributes:
        ename: The name of its class, or of the limit that ended the cell.
        evalue: Its text.
        traceback: The lines of the traceback, with colours for terminals; the last one is the
            error's own.
    """

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """One rich output of a cell, as the cell made it: HTML and SVG in it may hold script.

    Attributes:
        kind: `display`, `update`, `result`, `error` or `clear`.
        data: Its content by MIME type: text, base64 of binary data, or JSON.
        metadata: As in Jupyter's messages.
        transient: As in Jupyter's messages; `display_id` names an output that is updated later.
    """

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    transient: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SandboxResult:
    """The result of one `execute`, also if the code failed.

    Attributes:
        success: True if the code ended without an error.
        stdout: The text on standard output, cut at the policy's cap.
        stderr: The same for standard error.
        exit_code: 0 after success, the process's status if the code ended it, otherwise 1.
        error: The Python error, or the trap in the same shape; None after success.
        fuel_consumed: Fuel burnt; None if the sandbox runs unmetered code.
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


class CellResult(Struct, frozen=True):
    """A cell's result without its outputs, which its listener got; see `SandboxResult`."""

    success: bool
    exit_code: int
    error: CellError | None
    fuel_consumed: Annotated[int, Meta(ge=0, lt=2**62)] | None
    memory_used_bytes: Annotated[int, Meta(ge=0, le=2**32)]
    duration: Annotated[float, Meta(ge=0)]
    files_created: tuple[str, ...]
    files_modified: tuple[str, ...]
    files_deleted: tuple[str, ...]
    reply: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A state that memory can be brought back to.

    Attributes:
        name: Its name, empty if it has none.
        cell: The execution count of the cell after which it was taken; 0 for the beginning, and
            for a cell of an earlier run.
        label: That cell's first line.
        time: The time at which it was taken, in seconds since 1970.
        bytes: The space that it takes, in bytes.
        here: True if memory is at this state now.
        id: Its number in the history.
        parent: The number of the state at which its cell began, 0 for the beginning. Going back
            and running other cells makes branches.
    """

    name: str
    cell: _Count
    label: str
    time: Annotated[float, Meta(ge=-(2**40), le=2**40)]
    bytes: _Count
    here: bool
    id: Annotated[int, Meta(ge=1, lt=2**62)]
    parent: _Count


@dataclass(frozen=True)
class Travelled:
    """The outcome of going back in the history, or of coming forward again.

    Attributes:
        cells: The first lines of the cells whose effects are gone, or are there again, oldest
            first.
        files_back: Paths of files in the workspace that are there again, or have their old content
            again.
        files_removed: Paths of files that were removed, as they did not exist before.
        files_missed: Paths of files that could not be brought back, each with the reason.
        files_left: Paths of files that differ from that state and were left alone, as files did not
            travel; `rollback(files=True)` takes their changes back, too.
    """

    cells: tuple[str, ...] = ()
    files_back: tuple[str, ...] = ()
    files_removed: tuple[str, ...] = ()
    files_missed: Mapping[str, str] = field(default_factory=dict)
    files_left: tuple[str, ...] = ()


COMMS_MOST = 50_000
"""The number of comms that may be open at once in a session; a widget has three."""


CommKind = Literal["open", "msg", "close"]


class CommMessage(Struct, frozen=True):
    """One message on a comm, in either direction, as Jupyter's `comm_*` messages have it.

    A comm is a channel between an object in the guest, such as a widget, and the front end's page.

    Attributes:
        kind: `open`, `msg` or `close`.
        comm_id: The comm's name, which both ends know.
        data: The content, as JSON.
        target_name: The target that answers at the other end; only with `open`.
        target_module: A page's module to load the target from; only with `open`.
        metadata: The message's metadata.
        buffers: Binary content, which `data` refers to by position.
    """

    kind: CommKind
    comm_id: str
    data: Mapping[str, Any] = {}
    target_name: str = ""
    target_module: str | None = None
    metadata: Mapping[str, Any] = {}
    buffers: tuple[bytes, ...] = ()


class VariableValue(Struct, frozen=True):
    """A variable's value: its type, a short text, which may be empty, and its size in bytes."""

    type: str
    text: str
    size: int


class VariableChange(Struct, frozen=True):
    """A variable's value before and after; None if there was none."""

    name: str
    before: VariableValue | None
    after: VariableValue | None


class VariableChanges(Struct, frozen=True):
    """Variables that differ; `is_partial` if there are more variables than were looked at."""

    variables: list[VariableChange]
    is_partial: bool = False


def first_of(names: Sequence[str], most: int) -> list[str]:
    """Returns the first names; the last entry says how many more there are, if any."""
    more = len(names) - most
    return [*names[:most], *([f"and {more:,} more"] if more > 0 else [])]


def readable_time(seconds: float) -> str:
    """Returns a time in words, such as `12 ms`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def readable(size: int) -> str:
    """Returns a number of bytes in words, such as `1.5 MiB`."""
    if size < _STEP:
        return f"{size} bytes" if size != 1 else "1 byte"
    power = 1
    while power < len(_UNITS) and round(size / _STEP**power, 1) >= _STEP:
        power += 1
    return f"{size / _STEP**power:.1f} {_UNITS[power - 1]}"
