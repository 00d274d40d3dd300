"""The mode of files that the guest writes to.

What the guest makes is neither runnable nor set-user-id: WASI has no modes, so a new file gets
those that the host's umask leaves, without them. But the guest may write to a file that the host
had put there with such a mode, and what it wrote must not run with somebody's rights then.
"""

from __future__ import annotations

import os
import stat

from wasm_kernel.engine.files.preopens import Preopen
from wasm_kernel.engine.files.quota import key_of

_RUNNABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_AS_ANOTHER = stat.S_ISUID | stat.S_ISGID
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def excess(preopen: Preopen, mode: int) -> int:
    """The bits of a file's mode that it may not have once the guest can write to it.

    Nothing in a session's own folders is there to be run on the host. A mount may be somebody's
    project with scripts in it: there only set-user-id and set-group-id go.
    """
    if os.name != "posix" or not stat.S_ISREG(mode):
        return 0
    return mode & (_AS_ANOTHER | (_RUNNABLE if preopen.counted else 0))


def drop(path: str, status: os.stat_result, bits: int) -> None:
    """Take bits of its mode from a file, if it is still the one of this status."""
    try:
        file = os.open(path, _OPEN)
    except OSError:
        return
    try:
        now = os.fstat(file)
        if key_of(now) == key_of(status):
            os.fchmod(file, stat.S_IMODE(now.st_mode) & ~bits)
    except OSError:
        return
    finally:
        os.close(file)
