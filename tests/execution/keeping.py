"""The hooks of a sandbox as a session has them, without sessions."""

from __future__ import annotations

from pathlib import Path

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import NewSession
from wasm_kernel.execution.sandbox import BaseSandbox
from wasm_kernel.folders.folders import SandboxFolders


class Keeping:
    """Names forks after their parent; `ended` is shared by all of a family."""

    def __init__(self, root: Path, name: str, ended: list[str] | None = None) -> None:
        self.root = root
        self.name = name
        self.workspace = root / name
        self.ended: list[str] = [] if ended is None else ended
        self._forks = 0
        self._closed = False

    def opened(self, sandbox: BaseSandbox) -> None:
        pass

    def logger_changed(self, logger: SandboxLogger) -> None:
        pass

    def executed(self) -> None:
        pass

    def new_session(self) -> NewSession:
        self._forks += 1
        name = f"{self.name}-{self._forks}"
        (self.root / name).mkdir()
        (self.root / name / ".metadata.json").write_text("{}")
        hooks = Keeping(self.root, name, self.ended)
        return NewSession(SandboxFolders.of_workspace(self.root / name), name, hooks)

    def entered(self) -> None:
        pass

    def left(self) -> bool:
        return True

    def closed(self) -> None:
        if not self._closed:
            self._closed = True
            self.ended.append(self.name)
