"""A session that is being made: in a folder that is no session's yet, and gets its name at the end.

So there is a whole session or none, whoever is killed on the way. What that leaves is swept away by
the next removal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wasm_kernel.engine.folders import walk
from wasm_kernel.engine.locks import try_lock
from wasm_kernel.sandbox.private import PRIVATE
from wasm_kernel.sessions import ids, metadata, removal

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def staged(root: int) -> Iterator[tuple[str, int]]:
    """A folder that is no session's: its name and a descriptor; gone where the block fails.

    It holds an empty private folder.

    Args:
        root: A descriptor of the sessions' folder.

    Raises:
        OSError: it can't be made.
    """
    aside = removal.aside_of(ids.new())
    os.mkdir(aside, 0o700, dir_fd=root)
    with walk.opened(aside, root) as place:
        try_lock(place)  # so that nobody takes it for what a removal left behind
        try:
            os.mkdir(PRIVATE, 0o700, dir_fd=place)
            yield aside, place
        except BaseException:
            with suppress(OSError):
                walk.empty(place)
                os.rmdir(aside, dir_fd=root)
            raise


def inscribe(place: int, name: str) -> None:
    """Write the metadata of the session that a staged folder becomes; its lock is held already.

    Raises:
        OSError: it can't be written, and no part of it is there.
    """
    descriptor = os.open(metadata.NAME, _NEW, 0o600, dir_fd=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(metadata.Metadata.new(name, metadata.now()).render())
    except OSError:
        with suppress(OSError):
            os.unlink(metadata.NAME, dir_fd=place)
        raise


def settle(root: int, aside: str, name: str) -> bool:
    """The folder becomes the session's; False where there is one of that name.

    Raises:
        OSError: it can't be renamed.
    """
    try:
        os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(aside, name, src_dir_fd=root, dst_dir_fd=root)
        return True
    return False
