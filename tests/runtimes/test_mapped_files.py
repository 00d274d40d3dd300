"""The guest's `mmap`, compared with the real one of this machine."""

from __future__ import annotations

import mmap as real
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from wasm_kernel_agent import mapped_files

ours = ModuleType("mmap")
mapped_files.install(ours)

TEXT = b"one\ntwo\n\nthree" + bytes(5_000)


def answers(module: Any, file: Path, work: Callable[[Any, Any], Any]) -> tuple[Any, bytes]:
    """Returns what some work on a map answers, or the error that it raises, and the file then."""
    file.write_bytes(TEXT)
    with file.open("r+b") as opened:
        try:
            found = work(module, opened.fileno())
        except (ValueError, TypeError, IndexError, OSError) as problem:
            found = type(problem), str(problem).replace("bytearray", "mmap")
    return found, file.read_bytes()


def lines(m: Any, fd: int) -> list[Any]:
    a = m.mmap(fd, 0, access=m.ACCESS_READ)
    return [a.readline() for _ in range(4)] + [a.tell(), a.read(3), a.read_byte(), a.seek(-2, 2)]


def searches(m: Any, fd: int) -> list[Any]:
    a = m.mmap(fd, 14, access=m.ACCESS_COPY)
    a.seek(2)
    return [a.find(b"o"), a.find(b"o", 7), a.rfind(b"t"), a.find(b"t", 0, 3), a.find(b""), len(a)]


def writes(m: Any, fd: int) -> list[Any]:
    a = m.mmap(fd, 20, access=m.ACCESS_COPY)
    a[0], a[1:3], a[-1] = 79, b"NE", 33
    a.seek(4)
    told = [a.write(b"TWO"), a.tell(), a[0], a[:8], a[::3], list(a)[:2]]
    a.write_byte(46)
    a.move(10, 0, 4)
    a.flush()
    a.close()
    return told


def with_block(m: Any, fd: int) -> Any:
    with m.mmap(fd, 0, access=m.ACCESS_READ) as a:
        a.flush()
    return a.closed


def part(m: Any, fd: int) -> list[bytes]:
    a = m.mmap(fd, 10, access=m.ACCESS_COPY, offset=4096)
    before = a[:]
    a[:] = b"0123456789"
    return [before, a[2:5]]


def private(m: Any, fd: int) -> list[Any]:
    found = []
    for options in ({"access": m.ACCESS_COPY}, {"flags": m.MAP_PRIVATE}):
        a = m.mmap(fd, 0, **options)
        a[:3] = b"new"
        found.append(a[:4])
        a.close()
    return found


def memory(m: Any, _: int) -> list[Any]:
    a = m.mmap(-1, 100)
    return [a.write(b"abc"), a[:4], len(a)]


@pytest.mark.parametrize(
    "work",
    [
        *(lines, searches, writes, with_block, part, private, memory),
        lambda m, fd: m.mmap(fd, 0, access=m.ACCESS_READ).madvise(m.MADV_SEQUENTIAL),
        lambda m, fd: m.mmap(fd, 0, access=m.ACCESS_READ).write(b"x"),
        lambda m, fd: m.mmap(fd, 0, prot=m.PROT_READ).__setitem__(0, 1),
        lambda m, fd: m.mmap(fd, 0, flags=m.MAP_PRIVATE).__setitem__(slice(0, 3), b"four"),
        lambda m, fd: m.mmap(fd, 0, flags=m.MAP_PRIVATE).__getitem__(9_999),
        lambda m, fd: m.mmap(fd, 9_999_999, flags=m.MAP_PRIVATE),
        lambda m, fd: m.mmap(fd, 10, flags=m.MAP_PRIVATE, offset=5),
        lambda m, fd: m.mmap(fd, 4, flags=m.MAP_PRIVATE, offset=8192),
        lambda m, fd: m.mmap(fd, 8, flags=m.MAP_PRIVATE).write(b"123456789"),
        lambda m, fd: m.mmap(fd, 8, flags=m.MAP_PRIVATE).seek(9),
        lambda m, fd: [
            m.mmap(fd, 8, flags=m.MAP_PRIVATE).seek(8),
            (a := m.mmap(fd, 8, flags=m.MAP_PRIVATE)).seek(8),
            a.read_byte(),
        ],
        lambda m, fd: m.mmap(fd, 8, flags=m.MAP_PRIVATE).move(4, 0, 6),
        lambda m, fd: [a := m.mmap(fd, 8, flags=m.MAP_PRIVATE), a.close(), a.read()][2],
    ],
)
def test_a_map_answers_and_leaves_the_file_as_the_real_one(
    work: Callable[[Any, Any], Any], tmp_path: Path
) -> None:
    assert answers(ours, tmp_path / "a", work) == answers(real, tmp_path / "b", work)


def test_a_map_that_would_change_its_file_is_refused(tmp_path: Path) -> None:
    found, content = answers(ours, tmp_path / "a", lambda m, fd: m.mmap(fd, 0))
    assert "mode='r'" in found[1]
    assert content == TEXT


def test_an_empty_file_can_not_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open("rb") as file, pytest.raises(ValueError, match="empty"):
        mapped_files.MappedFile(file.fileno(), 0, access=ours.ACCESS_READ)
