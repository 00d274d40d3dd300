"""The real memory of a process: PSS, in which a shared page is divided among its sharers."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def pss_bytes(pid: int) -> int:
    """The PSS of a process and its descendants.

    Raises:
        OSError: The system does not report PSS; Linux does.
    """
    own = _field(PROC / str(pid) / "smaps_rollup", "Pss")
    return own + sum(pss_bytes(child) for child in _children(pid))


def page_table_bytes(pid: int) -> int:
    """The bytes of the page tables of a process and its descendants."""
    own = _field(PROC / str(pid) / "status", "VmPTE")
    return own + sum(page_table_bytes(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    tasks = (PROC / str(pid) / "task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    raise OSError(f"{file.name} has no {name}")
