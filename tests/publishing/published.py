"""A session whose files are published beside a notebook, without a guest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from wasm_kernel.linux.task import QUIET, Task
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.names import PublishableNames
from wasm_kernel.publishing.place import PlaceBeside, PublishFiles, WriteOutcome
from wasm_kernel.result import DATA_SUFFIXES
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session


class Publishing:
    """A notebook's folder, which must be the current one, and a session that publishes there."""

    def __init__(self, tmp_path: Path, session_id: str = "one", **place: Any) -> None:
        self.root = tmp_path / "sessions"
        self.book = tmp_path / "book"
        self.book.mkdir(exist_ok=True)
        self.session = Session(SessionsRoot(self.root), session_id)
        self.app = self.root / session_id
        made = PlaceBeside(
            SessionsRoot(self.root),
            session_id,
            ("orders.files",),
            PublishableNames(DATA_SUFFIXES),
            ExecutionPolicy(
                workspace_bytes=1 << 20, workspace_files=50, files_history_bytes=1 << 20
            ),
            secret=self.book / "secret.json",
        )
        self.place = replace(made, **place)

    def write(self, path: str, text: str = "1") -> None:
        """Writes a file like a cell."""
        (self.app / path).parent.mkdir(parents=True, exist_ok=True)
        (self.app / path).write_text(text)

    def publish(self, *paths: str, task: Task = QUIET) -> WriteOutcome:
        """The answer of the handler."""
        return self.place.publish(PublishFiles(paths), task)

    def refusal(self, path: str) -> str:
        """The reason why a file is not published."""
        done = self.publish(path)
        assert done.links == {}
        return done.refused[path]

    @property
    def files(self) -> dict[str, str]:
        """The files beside the notebook, including drafts."""
        found = self.book.rglob("*")
        return {str(p.relative_to(self.book)): p.read_text() for p in found if p.is_file()}
