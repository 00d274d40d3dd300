"""LangChain's Deep Agents: a sandbox as the backend of an agent's shell and files."""

from __future__ import annotations

import uuid
from typing import Any

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileOperationError,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from wasm_kernel import Sandbox
from wasm_kernel.integrations.agent_sandbox import AgentSandbox, SandboxOwner
from wasm_kernel.integrations.guest_commands import TooLarge

_ERRORS: dict[type[Exception], FileOperationError] = {
    FileNotFoundError: "file_not_found",
    IsADirectoryError: "is_directory",
    PermissionError: "permission_denied",
}
_TIMED_OUT = 124  # the exit status of the command `timeout`


class SandboxBackend(SandboxOwner, BaseSandbox):
    """A sandbox for an agent's commands and files: `create_deep_agent(backend=SandboxBackend())`.

    Commands run in `/app`. Use it as a `with` block, or close it.

    `sandbox` and `options` are those of `AgentSandbox`.
    """

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        self._agent = AgentSandbox(sandbox, options)
        self._commands, self._id = self._agent.commands(), uuid.uuid4().hex

    @property
    def id(self) -> str:
        """A name of this backend."""
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a script of the shell, for `timeout` seconds at most."""
        try:
            ran = self._commands.run(command, seconds=timeout or None)
        except TimeoutError as problem:
            return ExecuteResponse(f"{problem}\n", _TIMED_OUT)
        except TooLarge as problem:
            return ExecuteResponse(problem.begin.decode(errors="replace"), 1, truncated=True)
        return ExecuteResponse((ran.stdout + ran.stderr).decode(errors="replace"), ran.returncode)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files; makes the folders that are missing."""
        return [FileUploadResponse(path, error=self._upload(path, data)) for path, data in files]

    def _upload(self, path: str, content: bytes) -> FileOperationError | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._commands.write(path, content)
        except OSError as problem:
            return _ERRORS.get(type(problem), "invalid_path")
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, None, "invalid_path")
        try:
            return FileDownloadResponse(path, self._commands.read(path))
        except (OSError, TooLarge) as problem:
            return FileDownloadResponse(path, None, _ERRORS.get(type(problem), "invalid_path"))
