"""Sessions that look as if they had been left long ago, and the metadata of sessions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from wasm_kernel.sessions import ids


def metadata_of(workspace: Path) -> dict[str, Any]:
    """The metadata of a session."""
    found: dict[str, Any] = json.loads((workspace / ".metadata.json").read_text())
    return found


def aged(workspace: Path, hours: float) -> None:
    """Writes the metadata of a session whose last cell ended this many hours ago."""
    then = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
    fields = {"session_id": workspace.name, "created_at": then, "updated_at": then, "version": 1}
    (workspace / ".metadata.json").write_text(json.dumps(fields))


def aged_session(root: Path, hours: float, content: bytes = b"", *, name: str = "") -> Path:
    """Makes the folder of a session that was last used this many hours ago, and a file in it."""
    workspace = root / (name or ids.new())
    workspace.mkdir(parents=True)
    aged(workspace, hours)
    if content:
        (workspace / "data.bin").write_bytes(content)
    return workspace
