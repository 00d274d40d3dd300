"""The available memory, by the system and its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from wasm_kernel.linux import memory


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 8 GB available, and this process in the group `a/b`."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:  8000000 kB\n")
    (tmp_path / "cgroup").write_text("1:cpu:/x\n0::/a/b\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    (tmp_path / "groups" / "a" / "b").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "most", "current", "left"),
    [
        ("a", "max", 10**9, 8_000_000 * 1024),  # without a limit it is what the system has
        ("a", str(3 * 10**9), 10**9, 2 * 10**9),
        ("a/b", str(3 * 10**9), 10**9, 2 * 10**9),
        ("a", "1000", 2000, 0),
    ],
)
def test_a_groups_limit_counts(
    system: Path, group: str, most: str, current: int, left: int
) -> None:
    (system / "groups" / group / "memory.max").write_text(f"{most}\n")
    (system / "groups" / group / "memory.current").write_text(f"{current}\n")
    assert memory.available_memory() == left


def test_a_system_that_tells_nothing(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "meminfo").unlink()
    (system / "cgroup").unlink()
    assert memory.available_memory() >= 0
