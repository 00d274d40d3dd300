"""Writing a session's files from outside, within the limits that hold for its cells."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from wasm_kernel.errors import LimitReached
from wasm_kernel.linux.folders import Folder
from wasm_kernel.result import readable
from wasm_kernel.service.async_session import AsyncSession
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.paths import locate, split_path
from wasm_kernel.wasi_files.preopens import APP, METADATA_HIDDEN, Preopen
from wasm_kernel.wasi_files.quota import Full, Quota


def write_file(session: AsyncSession, path: str, data: bytes, *, overwrite: bool = True) -> None:
    """Writes a file of a session; raises `LimitReached` if its size exceeds the limits.

    The worker sees the file at its next cell.
    """
    _check_room(session.sync, path, len(data))
    session.files.write(path, data, overwrite=overwrite)


@contextlib.contextmanager
def opened_workspace(sandbox: Sandbox) -> Iterator[tuple[Preopen, Quota]]:
    """Opens a session's workspace as its guest sees it, with its quota."""
    policy = sandbox.policy
    with Folder.open(sandbox.workspace.parent) as root, root.enter(sandbox.session_id) as folder:
        opened = Preopen(folder, APP, writable=True, counted=True, hidden=METADATA_HIDDEN)
        yield opened, Quota((opened,), policy.workspace_bytes, policy.workspace_files)


def _check_room(sandbox: Sandbox, path: str, size: int) -> None:
    """Raises `LimitReached` unless a file of `size` bytes fits, in place of the one at `path`."""
    policy = sandbox.policy
    with opened_workspace(sandbox) as (workspace, quota):
        files, before = 1, 0
        with (
            contextlib.suppress(OSError),
            locate(workspace.folder.fd, split_path(path), path) as (walk, name),
        ):
            files, before = 0, os.stat(name, dir_fd=walk.fd, follow_symlinks=False).st_size
        try:
            quota.reserve(files, size - before)
        except Full:
            raise LimitReached(
                quota.limit_met,
                f"The files of this session may be {policy.workspace_files:,} and take "
                f"{readable(policy.workspace_bytes)}.",
                "",
            ) from None
