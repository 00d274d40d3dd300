"""The work on sessions' files from outside: its threads, and the limits that hold for cells."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import anyio

from wasm_kernel.errors import LimitReached
from wasm_kernel.folders.folders import SCRATCH, TMP
from wasm_kernel.frontends.http.callers import Caller
from wasm_kernel.result import readable
from wasm_kernel.service.async_session import AsyncSession
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.paths import locate, split_path
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.wasi_files.preopens import APP, METADATA_HIDDEN, Preopen
from wasm_kernel.wasi_files.quota import Full, Quota

P = ParamSpec("P")
T = TypeVar("T")
_THREADS = 8


class HostWork:
    """The work on files that threads of this process do for clients.

    The threads share the interpreter with the event loop, whose turns would wait for all of them.
    So there are few threads, and the work of one client is done one after the other.
    """

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def work(
        self, caller: Caller, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs `work` for a client on a thread; waits for its end even if it is cancelled."""
        async with self._turns.setdefault(caller.owner, asyncio.Lock()):
            work_of = partial(work, *args, **kwargs)
            return await anyio.to_thread.run_sync(work_of, limiter=self._threads)


def write_file(session: AsyncSession, path: str, data: bytes, *, overwrite: bool = True) -> None:
    """Writes a file of a session; raises `LimitReached` if its size exceeds the limits.

    The worker sees the file at its next cell.
    """
    with opened_folders(session.sync) as ((workspace, *_), quota):
        check_room(workspace, quota, path, len(data))
    session.files.write(path, data, overwrite=overwrite)


@contextlib.contextmanager
def opened_folders(sandbox: Sandbox) -> Iterator[tuple[list[Preopen], Quota]]:
    """Opens a session's `/app` and `/tmp` as its guest sees them, with their quota."""
    policy, opened = sandbox.policy, sandbox.worker.opened
    root = SessionsRoot(opened.root, opened.private_root)
    with root.visit(sandbox.session_id) as (workspace, private), contextlib.ExitStack() as held:
        found = [Preopen(workspace, APP, writable=True, counted=True, hidden=METADATA_HIDDEN)]
        if private is not None:
            scratch = held.enter_context(private.enter(SCRATCH, make=True))
            found.append(Preopen(scratch, TMP, writable=True, counted=True))
        yield found, Quota(found, policy.workspace_bytes, policy.workspace_files)


def check_room(folder: Preopen, quota: Quota, path: str, size: int) -> None:
    """Raises `LimitReached` unless a file of `size` bytes fits, in place of the one at `path`."""
    files, before = 1, 0
    with (
        contextlib.suppress(OSError),
        locate(folder.folder.fd, split_path(path), path) as (walk, name),
    ):
        files, before = 0, os.stat(name, dir_fd=walk.fd, follow_symlinks=False).st_size
    try:
        quota.reserve(files, size - before)
    except Full:
        raise LimitReached(
            quota.limit_met,
            f"The files of this session may be {quota.most_files:,} and take "
            f"{readable(quota.most_bytes)}.",
            "",
        ) from None
