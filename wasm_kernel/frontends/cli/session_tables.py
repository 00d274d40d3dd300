"""The tables of `wasm-kernel sessions`, about sessions and their files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from wasm_kernel.outputs.terminal import printable
from wasm_kernel.result import readable
from wasm_kernel.sessions.overview import Overview
from wasm_kernel.state.tables import padded

Row = Sequence[str]

HEADINGS: Row = (
    *("SESSION", "LAST USED", "AGE", "FILES", "OF FILES", "STATES", "ON DISK", "NOTEBOOK", ""),
)


def table(*rows: Row) -> str:
    """Rows as text in columns."""
    return padded([[printable(cell) for cell in row] for row in rows])


def _when(time: datetime | None) -> str:
    return "unknown" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M")


def _age(time: datetime | None) -> str:
    """Returns the age of a time, in the largest unit of which it has at least two."""
    minutes = 0 if time is None else max(0, int((datetime.now(UTC) - time).total_seconds() // 60))
    for unit, name in ((24 * 60, "days"), (60, "hours")):
        if minutes >= 2 * unit:
            return f"{minutes // unit} {name}"
    return "" if time is None else f"{minutes} min"


def notes_on(session: Overview) -> str:
    """Returns notes on a session beside its figures; empty if there are none."""
    notebook = session.parent_notebook
    parent = f"{session.forked_from:.8}" if notebook is None else notebook.name
    notes = [
        (f"fork of {parent}", session.forked_from),
        ("open", session.in_use),
        ("variables were removed to make room", session.evicted == "room"),
        ("variables were removed after a long time", session.evicted == "age"),
        ("notebook is gone", session.is_orphaned),
        (f"files go after {_when(session.deleted_at)}", session.deleted_at is not None),
        ("has more files than are counted", session.has_more_files),
    ]
    return "; ".join(note for note, holds in notes if holds)


def row_of(session: Overview) -> Row:
    """Returns the row of a session in a list, under `HEADINGS`."""
    return (
        session.session_id,
        _when(session.updated_at),
        _age(session.updated_at),
        f"{session.files:,}",
        readable(session.file_bytes),
        f"{session.history_states:,}",
        readable(session.disk_bytes),
        "" if session.notebook is None else session.notebook.name,
        notes_on(session),
    )


def facts_of(session: Overview) -> list[Row]:
    """Returns the rows of a table about one session."""
    return [
        ("session", session.session_id),
        ("folder", str(session.workspace)),
        ("created", _when(session.created_at)),
        ("last used", _when(session.updated_at)),
        ("files", f"{session.files:,} ({readable(session.file_bytes)})"),
        ("states of memory", f"{session.history_states:,} ({readable(session.history_bytes)})"),
        ("on disk", readable(session.disk_bytes)),
        ("named checkpoints", ", ".join(session.checkpoints) or "none"),
        ("notebook", "unknown" if session.notebook is None else str(session.notebook)),
        ("forked off", session.forked_from or "none"),
        ("open in a process", "yes" if session.in_use else "no"),
        ("notes", notes_on(session) or "none"),
    ]


def file_row(workspace: Path, path: str) -> Row:
    """Returns the row of a file, with its size and time."""
    try:
        status = (workspace / path).stat()
    except OSError:
        return (path, "gone", "")
    return (path, readable(status.st_size), _when(datetime.fromtimestamp(status.st_mtime, UTC)))
