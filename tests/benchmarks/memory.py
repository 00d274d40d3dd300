"""What a process really holds: PSS, in which a shared page counts once among its sharers."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def pss_bytes(pid: int) -> int:
    """The PSS of a process and everything it started.

    Raises:
        OSError: this system has no such account (it takes Linux).
    """
    own = _field(PROC / str(pid) / "smaps_rollup", "Pss")
    children = (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    return own + sum(pss_bytes(int(child)) for child in children)


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    raise OSError(f"{file.name} has no {name}")
