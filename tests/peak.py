"""Measures the growth of a process's memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

MB = 1 << 20
_SET_BACK = "5"  # the high-water mark (proc_pid_clear_refs(5))


class Peak:
    """Measures from its creation on: this process, or the sum of some.

    The system's high-water mark covers the whole life of a process, so an earlier test may hide
    the memory of this one. Linux can reset the mark; elsewhere only a new record counts.
    """

    def __init__(self, *processes: int) -> None:
        self._processes = processes or (os.getpid(),)
        for each in self._processes:
            if _marks(each).exists():
                _marks(each).write_text(_SET_BACK)
        self._before = self._sum("VmRSS" if _marks(self._processes[0]).exists() else "VmHWM")

    @property
    def grown(self) -> int:
        """The highest growth so far, in bytes."""
        return self._sum("VmHWM") - self._before

    @property
    def held(self) -> int:
        """The growth at this moment, in bytes."""
        return self._sum("VmRSS") - self._before

    def _sum(self, name: str) -> int:
        return sum(of_process(each, name) for each in self._processes)


def _marks(process: int) -> Path:
    return Path(f"/proc/{process}/clear_refs")


def of_process(pid: int | str, name: str) -> int:
    """A figure in bytes of `/proc/PID/status`: `VmRSS`, or `VmHWM` for its high-water mark."""
    status = Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = re.findall(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) * 1024
