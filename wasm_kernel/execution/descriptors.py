"""Room for the file descriptors of sandboxes in their process, or an error if there is none.

The soft limit is often 1,024, so that programs that use `select` work. It is raised only when
sandboxes would reach it, and no further than the hard limit, which is far higher.
"""

from __future__ import annotations

import errno
import os

from wasm_kernel.errors import OutOfDescriptors
from wasm_kernel.policy import ExecutionPolicy

TO_START = 15  # descriptors that a guest's start needs


def make_room(policy: ExecutionPolicy | None, needed: int) -> None:
    """Raises this process's soft limit if `needed` descriptors and those of cells would reach it.

    Raises `OutOfDescriptors`, with nothing changed, if there is no room for `needed` descriptors.
    """
    used = _used()
    if used is None:
        return
    wanted = used + needed + (policy or ExecutionPolicy).open_files
    limit = os.sysconf("SC_OPEN_MAX")
    if 0 < limit < wanted:
        limit = _raise_limit(limit, wanted)
        if limit < used + needed:
            raise OutOfDescriptors(used, limit, needed)


def _used() -> int | None:
    """Returns how many descriptors this process has; None if that is unknown."""
    try:
        with os.scandir("/proc/self/fd") as descriptors:
            return sum(1 for _ in descriptors)
    except OSError as problem:
        return os.sysconf("SC_OPEN_MAX") if problem.errno == errno.EMFILE else None


def _raise_limit(limit: int, wanted: int) -> int:
    """Raises the soft limit in large steps, so that it rarely changes; returns the new limit."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = max(wanted, 2 * limit)
    new = most if hard == resource.RLIM_INFINITY else min(hard, most)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    except (OSError, ValueError):  # such as in a confined process
        return limit
    return new
