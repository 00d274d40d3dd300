"""Drafts: files that are written in a session's workspace and then renamed to where they go.

They lie in its root, under a name that is the host's and that no guest can see or make
(`wasi_files/names.py`), so that they are in the same file system as where they go.

A writer locks its draft for as long as it lives. What a killed one left is found by that nobody
holds it any more, and removed by the next who comes by.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wasm_kernel.linux.locks import try_lock

_PREFIX = ".metadata.json~"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
YOUNG_SECONDS = 10.0  # its writer may not have come to lock it yet


@contextmanager
def written(root: int, content: bytes, mode: int | None) -> Iterator[str]:
    """The name of a draft with this content, which is gone after the block if it is still there.

    Args:
        root: A descriptor of the workspace.
        content: What it holds.
        mode: Its permissions; as far as the umask lets where that is None.

    Raises:
        OSError: it can't be written.
    """
    import secrets

    draft = f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(draft, _WRITE, 0o666, dir_fd=root), "wb") as file:
            with suppress(OSError):  # without locks, its age alone protects it
                try_lock(file.fileno())
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            yield draft
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=root)


def sweep(root: int) -> None:
    """Remove what killed writers left. What can't be removed stays."""
    for name in os.listdir(root):
        if name.startswith(_PREFIX):
            with suppress(OSError):
                _remove(root, name)


def _remove(root: int, name: str) -> None:
    descriptor = os.open(name, _LOOK, dir_fd=root)
    try:
        young = time.time() - os.fstat(descriptor).st_ctime < YOUNG_SECONDS
        if not young and try_lock(descriptor):
            os.unlink(name, dir_fd=root)
    finally:
        os.close(descriptor)
