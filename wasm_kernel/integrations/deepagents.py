"""LangChain's Deep Agents: a sandbox as the backend of an agent's shell and files."""

from __future__ import annotations

import posixpath
import uuid
from typing import Any

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileOperationError,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from wasm_kernel import CellError, HostFunction, Sandbox
from wasm_kernel.integrations.agent_sandbox import AgentSandbox, error_text

_RUN = "__import__('subprocess').run({command!r}, shell=True, cwd='/app').returncode"
_GIVE, _TAKE = "_deepagents_give", "_deepagents_take"
_UPLOAD = (
    "import os as _os; _os.makedirs({folder!r}, exist_ok=True)\n"
    "with open({path!r}, 'wb') as _file: _file.write(" + _GIVE + "())\n"
    "del _os, _file"
)
_DOWNLOAD = "with open({path!r}, 'rb') as _file: " + _TAKE + "(_file.read())\ndel _file"
_ERRORS: dict[str, FileOperationError] = {
    "FileNotFoundError": "file_not_found",
    "IsADirectoryError": "is_directory",
    "PermissionError": "permission_denied",
}
_TIMED_OUT = 124  # the exit status of the command `timeout`


class SandboxBackend(BaseSandbox):
    """A sandbox for an agent's commands and files: `create_deep_agent(backend=SandboxBackend())`.

    Commands run in `/app`. Use it as a `with` block, or close it.

    Args:
        sandbox: The sandbox, which its maker closes; by default one of its own, in a folder that is
            deleted with it.
        options: The options of `create_sandbox` for a sandbox of its own, such as `policy`.
    """

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        self._agent = AgentSandbox(sandbox, options)
        self._content, self._id = b"", uuid.uuid4().hex
        self._agent.offer(
            {
                _GIVE: HostFunction(lambda: self._content, name=_GIVE),
                _TAKE: HostFunction(self._take, name=_TAKE),
            }
        )

    def _take(self, content: bytes) -> None:
        self._content = content

    @property
    def id(self) -> str:
        """A name of this backend."""
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a script of the shell, for `timeout` seconds at most."""
        result = self._agent.sandbox.execute(
            _RUN.format(command=command), store_history=False, timeout_seconds=timeout or None
        )
        output = result.stdout + result.stderr
        if result.error is not None:
            status = _TIMED_OUT if result.error.ename == "CellTimeout" else 1
            return ExecuteResponse(f"{output}{error_text(result)}\n", status)
        return ExecuteResponse(output, int(result.outputs[-1].data["text/plain"]))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files; makes the folders that are missing."""
        found = []
        for path, content in files:
            self._content = content
            code = _UPLOAD.format(folder=posixpath.dirname(path) or ".", path=path)
            found.append(FileUploadResponse(path, error=self._problem(code)))
        return found

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files."""
        found = []
        for path in paths:
            problem = self._problem(_DOWNLOAD.format(path=path))
            content = self._content if problem is None else None
            found.append(FileDownloadResponse(path, content, problem))
        return found

    def _problem(self, code: str) -> FileOperationError | None:
        """Runs a cell for one file; returns its error, if it has one."""
        error: CellError | None = self._agent.sandbox.execute(code, store_history=False).error
        if error is None:
            return None
        return _ERRORS.get(error.ename, "invalid_path")

    def close(self) -> None:
        """Closes a sandbox of its own, and deletes its folder. Safe to call twice."""
        self._agent.close()

    def __enter__(self) -> SandboxBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
