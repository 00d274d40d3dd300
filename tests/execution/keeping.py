"""The hooks that a session gives its sandbox, without sessions."""

from __future__ import annotations

from pathlib import Path

from wasm_kernel.execution.interfaces import NewSession, SessionHooks
from wasm_kernel.folders.folders import SandboxFolders


class Keeping(SessionHooks):
    """Names forks after their parent; a parent and its forks share the list `ended`."""

    def __init__(self, root: Path, name: str, ended: list[str] | None = None) -> None:
        self.root = root
        self.name = name
        self.workspace = root / name
        self.ended: list[str] = [] if ended is None else ended
        self._forks = 0
        self._closed = False

    def new_session(self) -> NewSession:
        self._forks += 1
        name = f"{self.name}-{self._forks}"
        (self.root / name).mkdir()
        (self.root / name / ".metadata.json").write_text("{}")
        hooks = Keeping(self.root, name, self.ended)
        return NewSession(SandboxFolders.of_workspace(self.root / name), name, hooks)

    def closed(self) -> None:
        if not self._closed:
            self._closed = True
            self.ended.append(self.name)
