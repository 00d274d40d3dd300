"""The file descriptors that sandboxes take of their process: room for them, or words if there is
none.

The soft limit is often 1,024, so that programs that use `select` work. It is left alone until
sandboxes would meet it, and is then raised no further than the hard limit, which is far higher.
"""

from __future__ import annotations

import errno
import os

from wasm_kernel.errors import OutOfDescriptors
from wasm_kernel.policy import ExecutionPolicy

OF_ONE = 20  # that a sandbox holds, or needs for a moment; its cells' files come on top
TO_START = 15  # of them, those that it takes when its guest starts


def make_room(policy: ExecutionPolicy | None, needed: int = OF_ONE) -> None:
    """Raises this process's soft limit if so many descriptors, and those of cells, would meet it.

    Raises `OutOfDescriptors`, with nothing changed, if so many can't be had.
    """
    used = _used()
    if used is None:
        return
    wanted = used + needed + (policy or ExecutionPolicy).open_files
    limit = os.sysconf("SC_OPEN_MAX")
    if 0 < limit < wanted:
        limit = _raised(limit, wanted)
        if limit < used + needed:
            raise OutOfDescriptors(used, limit, needed)


def _used() -> int | None:
    """Returns how many descriptors this process has; None if nobody says."""
    try:
        with os.scandir("/proc/self/fd") as descriptors:
            return sum(1 for _ in descriptors)
    except OSError as problem:
        return os.sysconf("SC_OPEN_MAX") if problem.errno == errno.EMFILE else None


def _raised(limit: int, wanted: int) -> int:
    """Raises the soft limit, in large steps as each is told to child processes, too."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = max(wanted, 2 * limit)
    new = most if hard == resource.RLIM_INFINITY else min(hard, most)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    except (OSError, ValueError):  # such as in a confined process
        return limit
    return new
