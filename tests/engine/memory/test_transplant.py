"""Commits of another machine: the same memory over another image, and nothing that can't be."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import commit as commits
from wasm_kernel.state.commit import Commit, CommitFile
from wasm_kernel.state.found import name_of
from wasm_kernel.state.pages import PAGE
from wasm_kernel.state.transplant import HEADER_MOST, Soil, transplant
from wasm_kernel.wasi_files.open_files import OpenFile

PAGES = 12
KINDS = st.integers(0, 3)  # what a page holds; 0 is a page of zeros
FILE = OpenFile(5, "/usr/local/lib", "x.ttf", 7, 0, 1, 1, 0, "")

READ = replace(FILE, rights=2, inheriting=0x3824E0B7, flags=2)


def memory(kinds: list[int]) -> bytes:
    return b"".join(bytes([kind]) * PAGE for kind in kinds)


def runs_of(pages: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((page, 1) for page in sorted(pages))


def nobody_counts(size: int) -> None:
    assert size > 0


def moved_from(source: Path, history: Path, soil: Soil) -> Commit:
    """What a commit's file becomes in a history's folder."""
    with (
        Folder.open(source.parent) as here,
        Folder.open(history) as there,
        CommitFile(here, source.name, HEADER_MOST) as file,
    ):
        return transplant(file, there, soil, "theirs", nobody_counts)


def put(path: Path, commit: Commit, content: list[bytes]) -> None:
    with Folder.open(path.parent) as folder:
        commits.write(folder, path.name, commit, content)


def laid(image: list[int], file: Path, size: int) -> list[int]:
    """What the pages of a guest hold after the commit in a file was laid over an image."""
    kinds = (image + [0] * size)[:size]
    with Folder.open(file.parent) as folder, CommitFile(folder, file.name) as found:
        found.verify()
        for first, pages in found.commit.zeros:
            kinds[first : first + pages] = [0] * pages
        for first, pages, at in found.places():
            block = bytearray(pages * PAGE)
            found.read_into(memoryview(block), at)
            for i in range(pages):
                page = block[i * PAGE : (i + 1) * PAGE]
                assert len(set(page)) == 1
                kinds[first + i] = page[0]
    return kinds


@given(
    st.lists(KINDS, min_size=1, max_size=PAGES),
    st.lists(KINDS, min_size=1, max_size=PAGES),
    st.dictionaries(st.integers(0, PAGES - 1), st.integers(1, 5)),
    st.sets(st.integers(0, PAGES - 1)),
)
def test_the_first_commit_gives_the_same_memory_over_any_image(
    theirs: list[int], ours: list[int], written: dict[int, int], emptied: set[int]
) -> None:
    emptied -= written.keys()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "history").mkdir()
        commit = Commit(
            1, 0, "theirs", 0, 1, "", 0.0, PAGES * PAGE,
            runs=runs_of(list(written)), zeros=runs_of(list(emptied)), files=(FILE,),
        )  # fmt: skip
        content = [memory([written[page]]) for page in sorted(written)]
        put(folder / "stranger", commit, content)
        before = laid(theirs, folder / "stranger", PAGES)
        soil = Soil(
            memoryview(memory(theirs)),
            memoryview(memory(ours)),
            "ours",
            frozenset({"/usr/local/lib"}),
        )
        fitted = moved_from(folder / "stranger", folder / "history", soil)
        assert laid(ours, folder / "history" / name_of(1), PAGES) == before
        assert fitted.image == "ours"


def made(folder: Path, **changes: Any) -> Path:
    """A commit's file with one run of one page, and what a test changes of its header."""
    commit = Commit(2, 1, "theirs", 3, 4, "x = 1", 1.0, PAGES * PAGE, runs=((1, 1),))
    put(folder / "stranger", replace(commit, **changes), [bytes([7]) * PAGE])
    return folder / "stranger"


def moved(folder: Path, **changes: Any) -> Commit:
    library, along = frozenset({"/usr/local/lib"}), {"1:2": ("/app", "notes")}
    soil = Soil(memoryview(b""), memoryview(b""), "ours", library, along)
    (folder / "history").mkdir(exist_ok=True)
    return moved_from(made(folder, **changes), folder / "history", soil)


def test_a_later_commit_is_not_made_larger(tmp_path: Path) -> None:
    fitted = moved(tmp_path)
    assert fitted.runs == ((1, 1),)
    assert (tmp_path / "history" / name_of(2)).stat().st_size < 3 * PAGE + 100


def file_with(**changes: Any) -> OpenFile:
    return replace(FILE, **changes)


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "another image": {"image": "x"},
    "a number below nothing": {"id": -1},
    "its own parent": {"parent": 2},
    "a later parent": {"parent": 9},
    "a text for a number": {"cell": "3"},
    "true for a number": {"count": True},
    "a number beyond all": {"cells": 1 << 60},
    "more memory than there is": {"size": 1 << 40},
    "half a page": {"size": PAGES * PAGE + 1},
    "no time": {"time": "now"},
    "a label that is none": {"label": 7},
    "a run outside": {"runs": ((PAGES, 1),)},
    "a run before": {"runs": ((-1, 1),)},
    "zeros outside": {"zeros": ((0, PAGES + 1),)},
    "zeros twice": {"zeros": ((2, 2), (3, 1))},
    "an empty run": {"zeros": ((2, 0),)},
    "a descriptor beyond all": {"files": (file_with(fd=1 << 30),)},
    "a descriptor that is none": {"files": (file_with(fd="5"),)},
    "rights that are none": {"files": (file_with(rights=None),)},
    "a folder that is none": {"files": (file_with(guest=["/"]),)},
    "a stream's descriptor": {"files": (file_with(fd=2),)},
    "a descriptor twice": {"files": (FILE, FILE)},
    "a position below nothing": {"files": (file_with(offset=-1),)},
    "a position beyond all": {"files": (file_with(offset=1 << 63),)},
}


@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_can_not_be_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(HistoryError):
        moved(tmp_path, **changes)
    assert list((tmp_path / "history").iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"WKCOMMIT", bytes(5000), b"WKCOMMIT" + b"\xff" * 5000])
def test_what_is_no_commit_is_refused(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "stranger").write_bytes(damage)
    (tmp_path / "history").mkdir()
    soil = Soil(memoryview(b""), memoryview(b""), "ours", frozenset())
    with pytest.raises(HistoryError):
        moved_from(tmp_path / "stranger", tmp_path / "history", soil)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    path = made(tmp_path)
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    (tmp_path / "history").mkdir()
    soil = Soil(memoryview(b""), memoryview(b""), "ours", frozenset())
    with pytest.raises(HistoryError, match="damaged"):
        moved_from(path, tmp_path / "history", soil)


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        (FILE, FILE),
        (replace(FILE, guest="/app", path=".metadata.json"), None),
        (replace(FILE, guest="/app", path=".metadata.json~x", identity=""), None),
        (replace(FILE, guest="/tmp", path="x"), None),
        (replace(FILE, guest="/app", path="notes", identity=""), None),
        (replace(FILE, guest="/app", path="other", identity="1:2"), None),
        (replace(FILE, guest="/app", path=".metadata.json", identity="1:2"), None),
        (
            replace(FILE, guest="/app", path="notes", identity="1:2", flags=15),
            replace(FILE, guest="/app", path="notes", identity="1:2", flags=2),
        ),
        (
            replace(FILE, guest="/app", path="notes", identity="1:2", rights=-1 % (1 << 64)),
            replace(FILE, guest="/app", path="notes", identity="1:2", rights=0x3FFFFFFF),
        ),
        (replace(FILE, flags=15, rights=66, inheriting=-1 % (1 << 64), fdflags=31), READ),
        (replace(FILE, path="x" * 5000), None),
        (replace(FILE, path=None), None),
    ],
)
def test_only_files_of_the_library_and_those_that_came_along_are_opened_again(
    tmp_path: Path, file: OpenFile, kept: OpenFile | None
) -> None:
    (found,) = moved(tmp_path, files=(file,)).files
    assert found.fd == file.fd
    if kept is None:
        assert (found.path, found.identity) == (None, "")
    else:
        assert asdict(found) == asdict(kept)


def test_a_label_is_cut_and_cleaned(tmp_path: Path) -> None:
    label = moved(tmp_path, label="\x1b]0;x\x07" + "y" * 10_000).label
    assert label.isprintable()
    assert len(label) <= 200
