"""The part of a kernel that opens a session for a notebook and closes it, without a guest."""

from __future__ import annotations

from pathlib import Path

from wasm_kernel.sessions import ids
from wasm_kernel.sessions.notebooks import choose_session
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session


class NotebookKernel:
    """A kernel that runs.

    Args:
        root: The sessions' folder.
        notebook: The path of its notebook, from the server.
        kernel: Its id, which it keeps over restarts; a new one by default.
    """

    def __init__(self, root: Path, notebook: Path, kernel: str = "") -> None:
        self.id = kernel or ids.new()
        self.choice = choose_session(SessionsRoot(root), self.id, notebook)
        self.session = Session(SessionsRoot(root), self.choice.session_id)
        self.choice.opened(self.session)
        self.said = "".join(self.session.folders.notices)
        self.is_again = self.session.folders.reopened

    def end(self) -> str:
        """Ends the process, and the broker after it; returns the session's id."""
        self.session.closed()
        self.choice.ended()
        self.choice.close()
        return self.session.id


def session_of(root: Path, notebook: Path, kernel: str = "") -> str:
    """The session that a kernel of a notebook opens; the kernel ends at once."""
    return NotebookKernel(root, notebook, kernel).end()


def written(path: Path, text: str = "a notebook") -> Path:
    """Writes a notebook whose content is long enough to tell it from others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text:2000}")
    return path
