"""Tables and JSON for a terminal: pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from wasm_kernel.result import readable
from wasm_kernel.sessions.overview import Overview

Row = Sequence[str]


def shown(text: str) -> str:
    """`text` on one line, with whatever does not print escaped: names are the guest's choice."""
    return text if text.isprintable() else repr(text)[1:-1]


def table(headings: Row, rows: Sequence[Row]) -> str:
    """Columns, as wide as they must be."""
    lines = [list(headings), *([shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def facts(rows: Sequence[Row]) -> str:
    """A table of names and values, without headings."""
    return table(rows[0], rows[1:]) if rows else ""


def as_json(value: Any) -> str:
    """JSON for other programs: times in ISO 8601, paths as text."""
    return json.dumps(value, indent=2, default=_plain)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def when(time: datetime | None) -> str:
    """A time in this machine's zone."""
    return "unknown" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M")


def as_dict(one: Overview) -> dict[str, Any]:
    """A session for other programs."""
    return asdict(one)


HEADINGS = ("SESSION", "LAST USED", "FILES", "SIZE", "STATES", "MEMORY", "")


def row_of(one: Overview) -> Row:
    """A session in one line."""
    return (
        one.session_id,
        when(one.updated_at),
        f"{one.files:,}",
        readable(one.file_bytes),
        f"{one.history_states:,}",
        readable(one.history_bytes),
        "open" if one.in_use else "",
    )


def facts_of(one: Overview) -> list[Row]:
    """A session in many lines."""
    return [
        ("session", one.session_id),
        ("folder", str(one.workspace)),
        ("created", when(one.created_at)),
        ("last used", when(one.updated_at)),
        ("files", f"{one.files:,} ({readable(one.file_bytes)})"),
        ("states of memory", f"{one.history_states:,} ({readable(one.history_bytes)})"),
        ("named checkpoints", ", ".join(one.checkpoints) or "none"),
        ("open in a process", "yes" if one.in_use else "no"),
    ]


def file_row(workspace: Path, path: str) -> Row:
    """A file of a session, with its size and time."""
    try:
        status = (workspace / path).stat()
    except OSError:
        return (path, "gone", "")
    return (
        path,
        readable(status.st_size),
        when(datetime.fromtimestamp(status.st_mtime).astimezone()),
    )
