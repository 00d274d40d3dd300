"""Measures how much memory a process holds beyond what it held at first."""

from __future__ import annotations

import re
import resource
from pathlib import Path

MB = 1 << 20
_MARKS = Path("/proc/self/clear_refs")
_SET_BACK = "5"  # the high-water mark (proc_pid_clear_refs(5))


class Peak:
    """Measures from its creation on.

    The system's high-water mark covers the whole life of the process, so an earlier test may hide
    the memory of this one. Linux can reset the mark; elsewhere only a new record counts.
    """

    def __init__(self) -> None:
        if _MARKS.exists():
            _MARKS.write_text(_SET_BACK)
            self._before = of_process("self", "VmRSS")
        else:
            self._before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @property
    def grown(self) -> int:
        """The highest growth so far, in bytes."""
        if _MARKS.exists():
            return of_process("self", "VmHWM") - self._before
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._before

    @property
    def held(self) -> int:
        """The growth at this moment, in bytes."""
        return of_process("self", "VmRSS") - self._before


def of_process(pid: int | str, name: str) -> int:
    """A figure in bytes of `/proc/PID/status`: `VmRSS`, or `VmHWM` for its high-water mark."""
    status = Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = re.findall(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) * 1024
