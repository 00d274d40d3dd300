"""The index: a record that is read was written here and is whole, or the index is damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.faces import raising
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import index as module
from wasm_kernel.state.commits import write_content
from wasm_kernel.state.index import (
    ID_MOST,
    Commit,
    Drop,
    ForkOrigin,
    Head,
    Index,
    Name,
    Record,
    RewriteNeeded,
    decode,
    read_index,
)
from wasm_kernel.state.pages import PAGE
from wasm_kernel.wasi_files.open_files import OpenFile

FILE = OpenFile(9, "/app", "data/ä.txt", 17, 0, 3, 1)
COMMIT = Commit(
    id=7,
    parent=6,
    cell=3,
    count=4,
    label="x = 'é'",
    time=1.5,
    size=100 * PAGE,
    clock=12,
    runs=((1, 2), (9, 1)),
    zeros=((20, 30),),
    files=(FILE,),
    content="ab" * 32,
)
RECORDS: list[Record] = [
    ForkOrigin(3, True, {"1:2": "3:4"}),
    COMMIT,
    replace(COMMIT, id=8, parent=7),
    Name("here", 7),
    Drop((1, 2)),
    Head(7, 8, (8,)),
]
PAGES = b"".join(bytes([n]) * PAGE for n in (1, 2, 3))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def written(folder: Folder, tmp_path: Path) -> Path:
    """An index on disk."""
    index = Index(folder, "image")
    index.rewrite(RECORDS[:2])
    index.append(RECORDS[2])
    index.append(*RECORDS[3:])
    index.close()
    return tmp_path / "index"


@pytest.fixture
def index(folder: Folder, written: Path) -> Iterator[Index]:
    """The index that a later process opens, and adds to."""
    with contextlib.closing(Index(folder, "image")) as opened:
        opened.go_on(read_index(folder))
        yield opened


def entries(folder: Folder) -> list[Record | None]:
    return list(read_index(folder).entries)


def test_written_records_are_read(folder: Folder, written: Path) -> None:
    reading = read_index(folder)
    assert list(reading.entries) == RECORDS
    assert (reading.image, reading.next_number) == ("image", len(RECORDS) + 1)
    assert written.stat().st_mode & 0o077 == 0, "its owner's alone"


def test_a_last_line_without_its_end_was_never_written(folder: Folder, written: Path) -> None:
    whole = written.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for length in range(last, len(whole)):
        written.write_bytes(whole[:length])
        assert entries(folder) == RECORDS[:-1], length
        index = Index(folder, "image")
        index.go_on(read_index(folder))
        index.append(Name("later", 8))
        index.close()
        assert entries(folder) == [*RECORDS[:-1], Name("later", 8)], length


def believed(found: list[Record | None]) -> bool:
    """True if the records found were written in this order, with None for damage in between."""
    rest = iter(RECORDS)
    known = [one for one in found if one is not None]
    whole = all(any(one == other for other in rest) for one in known)
    return whole and (known == RECORDS[: len(known)] or None in found)


def damaged(path: Path, folder: Folder, data: bytes | bytearray) -> None:
    path.write_bytes(data)
    try:
        found = entries(folder)
    except HistoryError:
        return
    assert believed(found), found


def test_no_flipped_bit_is_believed(folder: Folder, written: Path) -> None:
    whole, dice = written.read_bytes(), random.Random(7)
    for at in range(0, len(whole), 3):
        torn = bytearray(whole)
        torn[at] ^= 1 << dice.randrange(8)
        damaged(written, folder, torn)


def test_missing_doubled_and_misplaced_records_are_damage(folder: Folder, written: Path) -> None:
    lines = written.read_bytes().splitlines(keepends=True)
    for at in range(1, len(lines) - 1):
        one, other = lines[at : at + 2]
        for instead in ([other], [one, one, other], [other, one]):
            written.write_bytes(b"".join([*lines[:at], *instead, *lines[at + 2 :]]))
            assert None in entries(folder), (at, instead)


def test_an_index_of_any_length_is_read_in_bounds(folder: Folder, written: Path) -> None:
    with written.open("ab") as file:
        file.write(b"\n" * 20_000)
    assert entries(folder) == [*RECORDS, None]
    os.truncate(written, 8 << 30)
    with pytest.raises(HistoryError, match="damaged"):
        read_index(folder)


@pytest.mark.parametrize("header", ["", "[]", "{}", "[" * 4000, '{"index":2,"image":3,"salt":""}'])
def test_an_index_without_its_header_is_refused(folder: Folder, written: Path, header: str) -> None:
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(header.encode() + b"\n" + b"".join(lines[1:]))
    with pytest.raises(HistoryError):
        read_index(folder)


def test_a_record_that_can_not_be_added_leaves_nothing_of_itself(
    folder: Folder, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    for part in (0, 10):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data, part=part: write(fd, data[:part]))
            with pytest.raises(OSError, match="No space"):
                index.append(Name("lost", 7))
        assert entries(folder) == RECORDS
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        patch.setattr(os, "ftruncate", _fail)
        with pytest.raises(OSError, match="No space"):
            index.append(Name("lost", 7))
    index.append(Name("kept", 7))
    assert entries(folder) == [*RECORDS, Name("kept", 7)]


_fail = raising(OSError(errno.EIO, "the disk failed"))


def test_index_that_was_removed_is_made_again(folder: Folder, written: Path, index: Index) -> None:
    written.unlink()
    with pytest.raises(RewriteNeeded):
        index.append(Name("x", 7))
    index.rewrite(RECORDS[:2])
    index.append(Name("x", 7))
    assert entries(folder) == [*RECORDS[:2], Name("x", 7)]


def test_a_failed_rewriting_leaves_the_old_one(
    folder: Folder, written: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", _fail)
        with pytest.raises(OSError, match="the disk failed"):
            index.rewrite(())
    with monkeypatch.context() as patch:
        patch.setattr(module, "MOST_BYTES", written.stat().st_size)
        with pytest.raises(OSError, match="too long"):  # no later process could read it
            index.rewrite([*RECORDS, *RECORDS])
    index.append(Name("x", 7))
    assert entries(folder) == [*RECORDS, Name("x", 7)]
    assert [path.name for path in written.parent.iterdir()] == ["index"]


def changed(**fields: object) -> bytes:
    raw = msgspec.to_builtins(COMMIT) | fields
    return msgspec.json.encode(raw)


def open_file(**fields: object) -> dict[str, object]:
    raw: dict[str, object] = msgspec.to_builtins(FILE)
    return raw | fields


IMPOSSIBLE: dict[str, dict[str, object]] = {
    "a number below nothing": {"id": -1},
    "a number beyond all": {"id": 1 << 40},
    "its own parent": {"parent": 7},
    "a later parent": {"parent": 9},
    "a text for a number": {"cell": "3"},
    "a count beyond all": {"cells": 1 << 60},
    "a clock below nothing": {"clock": -1},
    "a clock beyond all": {"clock": 1 << 63},
    "more memory than there is": {"size": 1 << 40},
    "half a page": {"size": 100 * PAGE + 1},
    "a run outside": {"runs": [[100, 1]]},
    "a run before": {"runs": [[-1, 1]]},
    "zeros outside": {"zeros": [[0, 101]]},
    "zeros twice": {"zeros": [[20, 2], [21, 1]]},
    "an empty run": {"zeros": [[20, 0]]},
    "a content that is none": {"content": "../../secret"},
    "a field of nobody": {"more": 1},
    "another kind": {"type": "unknown"},
    "a descriptor beyond all": {"files": [open_file(fd=1 << 17)]},
    "a stream's descriptor": {"files": [open_file(fd=1)]},
    "a descriptor below nothing": {"files": [open_file(fd=-1)]},
    "rights beyond all": {"files": [open_file(rights=1 << 64)]},
    "a descriptor twice": {"files": [open_file(), open_file()]},
    "more than any policy allows": {"files": [open_file(fd=at) for at in range(3, 65_540)]},
    "a position beyond all": {"files": [open_file(offset=1 << 63)]},
    "a position below nothing": {"files": [open_file(offset=-1)]},
}


INVALID = {name: changed(**fields) for name, fields in IMPOSSIBLE.items()} | {
    "nothing": b"",
    "deep": b"[" * 100_000,
    "infinite": b'{"type":"commit","id":1e999}',
    "no text": b"\xff",
    "deep objects": b"{" * 200_000,
}


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_a_record_that_can_not_be_is_refused(text: bytes) -> None:
    assert decode(changed()) == COMMIT
    with pytest.raises(HistoryError):
        decode(text)


def test_records_in_many_pieces_are_refused(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORD_MOST_BYTES", 100)
    with pytest.raises(OSError, match="too many pieces"):
        index.append(COMMIT)


# -- contents


def test_a_content_that_can_not_be_written_leaves_nothing(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rename", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _fail)
            with pytest.raises(OSError, match="the disk failed"):
                write_content(folder, [PAGES])
        assert list(tmp_path.iterdir()) == []
    write = os.write  # a disk that becomes full takes a part
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5_000]))
    name, _ = write_content(folder, [PAGES])
    assert (tmp_path / name).read_bytes() == PAGES


def test_inherited_files_have_the_names_of_their_copies() -> None:
    commit = replace(COMMIT, files=(replace(FILE, identity="1:2"), FILE))
    origin = ForkOrigin(7, False, {"1:2": "3:4"})
    assert [file.identity for file in origin.files_of(commit)] == ["3:4", ""]
    assert origin.files_of(replace(commit, id=8)) == commit.files


@pytest.mark.parametrize(
    "text",
    [
        f'{{"type":"head","at":0,"after":{ID_MOST + 1}}}',
        f'{{"type":"head","at":{ID_MOST + 1},"after":0}}',
        f'{{"type":"origin","last":{ID_MOST + 1}}}',
        f'{{"type":"name","name":"x","id":{ID_MOST + 1}}}',
        f'{{"type":"drop","ids":[{ID_MOST + 1}]}}',
    ],
)
def test_a_number_that_no_later_commit_could_follow_is_refused(text: str) -> None:
    assert decode(text.replace(str(ID_MOST + 1), str(ID_MOST)).encode()) is not None
    with pytest.raises(HistoryError):
        decode(text.encode())
