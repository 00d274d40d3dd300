"""Deleting a session's folder: as a whole and at once for everybody else, then piece by piece.

Under the lock that says nobody uses it the folder gets a name that is no session's; what is found
afterwards under the session's own name is another, new one. Deleting the pieces can take long, and
can be cut short: whoever deletes next finishes it.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress

from wasm_kernel.engine import walk
from wasm_kernel.engine.locks import try_lock
from wasm_kernel.sessions.presence import alone

_ASIDE = ".removed-"


def remove(root: int, name: str) -> None:
    """Delete a session's folder that nobody uses.

    Args:
        root: A descriptor of the sessions' folder.
        name: The session's id.

    Raises:
        FileNotFoundError: there is no such folder.
        SessionInUse: somebody uses the session; nothing was deleted.
        OSError: it is no folder, or something in it can't be deleted.
    """
    with walk.opened(name, root) as workspace:
        with alone(workspace):
            aside = f"{_ASIDE}{name}-{secrets.token_hex(4)}"
            try:
                os.rename(name, aside, src_dir_fd=root, dst_dir_fd=root)
            except OSError as problem:
                if problem.errno not in (errno.EXDEV, errno.EBUSY):
                    raise
                # a folder of a container's own layers, or a mounted one, keeps its name
                _delete(root, name, workspace)
                return
        _delete(root, aside, workspace)


def finish(root: int, name: str = "") -> None:
    """Delete what earlier removals, of one session or of all, left behind when they were cut short.

    What can't be deleted now stays for the next time.
    """
    with os.scandir(root) as listing:
        left = [entry.name for entry in listing if entry.name.startswith(f"{_ASIDE}{name}")]
    for aside in left:
        with suppress(OSError), walk.opened(aside, root) as folder:
            _delete(root, aside, folder)


def _delete(root: int, name: str, folder: int) -> None:
    if not try_lock(folder):
        return  # somebody deletes it just now
    walk.empty(folder)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=root)
