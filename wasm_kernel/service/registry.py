"""The entries of a service's registry, and what it tells of them."""

from __future__ import annotations

import time

from msgspec import Struct

from wasm_kernel.errors import SessionInUse
from wasm_kernel.linux.folders import Folder
from wasm_kernel.service.remote_sandbox import RemoteSandbox
from wasm_kernel.service.session_info import SessionInfo
from wasm_kernel.sessions.disk_use import DiskUse
from wasm_kernel.sessions.root import SessionsRoot


def check_owner(owner: str, asks: str) -> None:
    """Checks that a session belongs to whoever asks for it.

    Raises:
        SessionInUse: it belongs to another owner.
    """
    if owner != asks:
        raise SessionInUse(
            "This session belongs to another owner. Nothing was changed. Name its owner, or "
            "create a session."
        )


class Entry(Struct):
    """A session of the registry.

    Attributes:
        sandbox: Its sandbox.
        owner: Whom it belongs to.
        created: When it was made or opened.
        disk_bytes: What it took on disk when it was measured; before, what its parent did.
        measured: When that was; 0 if it was not.
    """

    sandbox: RemoteSandbox
    owner: str
    created: float
    disk_bytes: int = 0
    measured: float = 0.0

    def measure(self, root: SessionsRoot) -> None:
        """Measures what it takes on disk, if it was used since the last time.

        Raises:
            OSError: its folders can't be opened.
        """
        session = self.sandbox.worker
        if session.last_used < self.measured and session.state != "busy":
            return
        name, self.measured = self.sandbox.session_id, time.time()
        with Folder.open(root.path) as top, top.enter(name) as folder:
            if (private := root.privates.find(name, folder)) is not None:
                with private:
                    self.disk_bytes = DiskUse.measured(folder, private).total

    def sandbox_of(self, owner: str) -> RemoteSandbox:
        """Returns the sandbox.

        Raises:
            SessionInUse: it belongs to another owner.
        """
        check_owner(self.owner, owner)
        return self.sandbox

    def info(self, disk_bytes: int | None = None) -> SessionInfo:
        """Returns what is known of it; what it takes on disk is for the caller to measure."""
        return SessionInfo.of(self.sandbox.worker, self.owner, self.created, disk_bytes)
