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


def limit(group: Path, most: str, current: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{current}\n")


def test_without_limits_it_is_what_the_system_has(system: Path) -> None:
    limit(system / "groups" / "a", "max", 10**9)
    assert memory.available_memory() == 8_000_000 * 1024


@pytest.mark.parametrize("group", ["a", "a/b"])
def test_a_groups_limit_counts(system: Path, group: str) -> None:
    limit(system / "groups" / group, str(3 * 10**9), 10**9)
    assert memory.available_memory() == 2 * 10**9


def test_a_group_beyond_its_limit_leaves_nothing(system: Path) -> None:
    limit(system / "groups" / "a", "1000", 2000)
    assert memory.available_memory() == 0


def test_a_system_that_tells_nothing(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "meminfo").unlink()
    (system / "cgroup").unlink()
    assert memory.available_memory() >= 0


def test_this_system_tells() -> None:
    assert memory.available_memory() > 0
