"""A commit's file: whole, or an error; never something else."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import commit as commits
from wasm_kernel.state.commit import Commit, CommitFile
from wasm_kernel.state.pages import PAGE
from wasm_kernel.wasi_files.open_files import OpenFile

FILE = OpenFile(9, "/app", "data/ä\udc80.txt", 17, 0, 3, 5, 1)
COMMIT = Commit(
    id=7,
    parent=6,
    image="image",
    cell=3,
    count=4,
    label="x = 'é\ud800'",
    time=1.5,
    size=100 * PAGE,
    clock=12,
    runs=((1, 2), (9, 1)),
    zeros=((20, 30),),
    files=(FILE,),
)
PAGES = b"".join(bytes([n]) * PAGE for n in (1, 2, 3))
FLIPS = 4000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A commit on disk."""
    path = tmp_path / "one.commit"
    write(path, COMMIT, [PAGES])
    return path


def write(path: Path, commit: Commit, content: list[bytes]) -> None:
    with Folder.open(path.parent) as folder:
        commits.write(folder, path.name, commit, content)


def opened(path: Path) -> CommitFile:
    with Folder.open(path.parent) as folder:
        return CommitFile(folder, path.name)


def read(path: Path) -> tuple[Commit, bytes]:
    with opened(path) as file:
        file.verify()
        content = bytearray(file.commit.page_bytes)
        file.read(0, memoryview(content))
        return file.commit, bytes(content)


def test_what_is_written_is_read(path: Path) -> None:
    assert read(path) == (COMMIT, PAGES)


def test_runs_lie_at_multiples_of_a_page(path: Path) -> None:
    with opened(path) as file:
        places = list(file.places())
    data = path.read_bytes()
    assert [(first, count) for first, count, _ in places] == [(1, 2), (9, 1)]
    assert all(at % PAGE == 0 for _, _, at in places)
    assert data[places[1][2] :][:PAGE] == b"\3" * PAGE


def test_a_commit_without_pages(tmp_path: Path) -> None:
    write(tmp_path / "empty", Commit(1, 0, "i", 0, 1, "", 0.0, PAGE), [])
    assert read(tmp_path / "empty")[1] == b""


def test_a_commit_is_the_owners_alone(path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_every_flipped_byte_is_found(path: Path) -> None:
    whole, dice = path.read_bytes(), random.Random(7)
    header = 24 + struct.unpack_from("<I", whole, 12)[0]
    offsets = {*range(900), *range(len(whole) - 40, len(whole))}
    offsets |= {dice.randrange(header, len(whole)) for _ in range(FLIPS)}
    for at in sorted(offsets):
        torn = bytearray(whole)
        torn[at] ^= dice.randrange(1, 256)
        path.write_bytes(torn)
        with pytest.raises(HistoryError):
            read(path)


def test_every_digit_may_become_any_byte(path: Path) -> None:
    """JSON reads much as a number that is none of ours, such as 1e999."""
    whole = path.read_bytes()
    start, end = whole.index(b'"runs"'), whole.index(b'"files"') + 200
    for at in range(start, end):
        for value in b'0e9-."[]{}IN,: ':
            torn = bytearray(whole)
            torn[at] = value
            if torn != whole:
                path.write_bytes(torn)
                with pytest.raises(HistoryError):
                    read(path)


def test_a_number_without_end_is_damage(path: Path) -> None:
    header = COMMIT.dump().replace(b"[[1,2],", b"[[1e999,2],")
    with pytest.raises(HistoryError):
        Commit.load(header)


TABLES = {
    "a position beyond all": [replace(FILE, offset=1 << 63)],
    "a position below nothing": [replace(FILE, offset=-1)],
    "the number of a stream": [replace(FILE, fd=1)],
    "a number below nothing": [replace(FILE, fd=-1)],
    "a number beyond all": [replace(FILE, fd=1 << 17)],
    "a number 250 times": [FILE] * 250,
    "more than any policy allows": [replace(FILE, fd=at) for at in range(3, 65_540)],
}


@pytest.mark.parametrize("files", TABLES.values(), ids=TABLES)
def test_a_table_of_open_files_that_can_not_be_is_refused(files: list[OpenFile]) -> None:
    """Each of them made a session fail at every opening, or leaked descriptors."""
    with pytest.raises(HistoryError, match="what can't be"):
        Commit.load(replace(COMMIT, files=tuple(files)).dump())


def test_every_cut_is_found(path: Path) -> None:
    whole, dice = path.read_bytes(), random.Random(8)
    lengths = {*range(200), *range(len(whole) - 40, len(whole))}
    lengths |= {dice.randrange(len(whole)) for _ in range(500)}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        with pytest.raises(HistoryError):
            read(path)


def test_more_than_the_whole_is_found(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(HistoryError):
        read(path)


def test_another_format_version_is_refused_in_words(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", commits.VERSION + 1)
    path.write_bytes(data)
    with pytest.raises(HistoryError, match=f"version {commits.VERSION + 1}, this is"):
        opened(path)


def test_a_huge_header_length_is_not_believed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[12:16] = struct.pack("<I", 2**32 - 1)
    path.write_bytes(data)
    with pytest.raises(HistoryError):
        opened(path)


def test_a_commit_that_is_a_link_is_not_read(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="not a regular file"):
        opened(tmp_path / "link")


def test_a_failed_write_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuses)
    with pytest.raises(OSError, match="No space"):
        write(path, COMMIT, [b"\x09" * len(PAGES)])
    assert read(path) == (COMMIT, PAGES)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_a_killed_process_left_is_no_hindrance(path: Path) -> None:
    path.with_name(f".{path.name}.aside").write_bytes(b"half" * 9999)
    write(path, COMMIT, [PAGES])
    assert read(path) == (COMMIT, PAGES)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
