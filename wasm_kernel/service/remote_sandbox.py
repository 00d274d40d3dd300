"""`RemoteSandbox`: the sandbox of a session in a service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from wasm_kernel.execution.base_sandbox import at_least_one
from wasm_kernel.execution.interfaces import SessionHooks
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.session_info import SessionInfo
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.service.worker_sandbox import CLOSED, WorkerSandbox
from wasm_kernel.sessions import files


class SessionsOfService(Protocol):
    """The methods of a service that a session's sandbox calls."""

    def fork(self, parent: RemoteSandbox, n: int, *, reseed: bool) -> Sequence[RemoteSandbox]:
        """Makes forks of a session."""

    def info(self, session_id: str) -> SessionInfo:
        """Returns the facts about a session."""

    def closed(self, sandbox: RemoteSandbox) -> None:
        """Notes that a session's sandbox was closed."""


class RemoteSandbox(WorkerSandbox):
    """The sandbox of a session in a `Service`, which makes it.

    After some time without a call its session is put to sleep, and the next call wakes it.
    """

    session_id: str

    def __init__(
        self, worker: SessionWorker, policy: ExecutionPolicy, service: SessionsOfService
    ) -> None:
        opened = worker.opened
        super().__init__(worker, Path(opened.workspace), policy, SessionHooks())
        self._service = service
        self._place = (opened.root, opened.private_root)

    def fork(self, n: int = 1, *, deterministic: bool = False) -> list[RemoteSandbox]:
        """As `BaseSandbox`; the forks sleep until they are called, and belong to the same owner.

        Raises:
            LimitReached: the service takes no more sessions; none was made.
        """
        return [*self._service.fork(self, at_least_one(n), reseed=not deterministic)]

    def close(self, *, anew: bool = False, why: str = CLOSED) -> None:
        """As `WorkerSandbox`; the service no longer counts the session."""
        super().close(anew=anew, why=why)
        self._service.closed(self)

    def info(self) -> SessionInfo:
        """Returns the service's facts about it, with its bytes on disk.

        Raises:
            FileNotFoundError: it was deleted.
        """
        return self._service.info(self.session_id)

    def list_files(self, pattern: str | None = None) -> list[str]:
        """Returns the paths of its files, as `list_session_files`."""
        root, private = self._place
        return files.list_session_files(self.session_id, root, pattern, private_root=private)

    def read_file(self, path: str, *, max_bytes: int = files.READ_BYTES) -> bytes:
        """Returns the content of one of its files, as `read_session_file`."""
        root, private = self._place
        return files.read_session_file(
            self.session_id, path, root, max_bytes=max_bytes, private_root=private
        )

    def write_file(self, path: str, data: bytes | str, *, overwrite: bool = True) -> None:
        """Writes one of its files, as `write_session_file`."""
        root, private = self._place
        files.write_session_file(self.session_id, path, data, root, overwrite, private_root=private)

    def delete_file(self, path: str, *, recursive: bool = False) -> None:
        """Deletes one of its files or folders, as `delete_session_path`."""
        root, private = self._place
        files.delete_session_path(self.session_id, path, root, recursive, private_root=private)
