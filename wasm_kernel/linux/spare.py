"""How much memory this process may still take: what the system has left, and its control group."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def spare_bytes() -> int:
    """Bytes that can be taken without pressing on anybody; 0 where the system does not tell."""
    return min([_of_system(), *_of_groups()])


def _of_system() -> int:
    """What Linux calls available; elsewhere, the free pages."""
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _of_groups() -> list[int]:
    """What each control group above this process leaves; version 2, as containers have it."""
    try:
        lines = _GROUP.read_text().splitlines()
        name = next(line[3:] for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    left = []
    folder = _GROUPS / name.strip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(_GROUPS):
            break
        try:
            most = int((group / "memory.max").read_text())
            left.append(max(0, most - int((group / "memory.current").read_text())))
        except (OSError, ValueError):
            continue  # the topmost has no limit, nor has one that says "max"
    return left
