"""Commits of another machine give the same memory over another image, or are refused."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import rebase
from wasm_kernel.state.commits import ContentFile, places, write_content
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE, joined
from wasm_kernel.state.rebase import ImagePair, rebase_commit
from wasm_kernel.wasi_files.open_files import OpenFile

PAGES = 12
KINDS = st.integers(0, 3)  # the content of a page; 0 is a page of zeros
FILE = OpenFile(5, "/usr/local/lib", "x.ttf", 7, 0, 1, 0, "")

READ = replace(FILE, rights=2, flags=2)


def memory(kinds: list[int]) -> bytes:
    return b"".join(bytes([kind]) * PAGE for kind in kinds)


def runs_of(pages: list[int]) -> tuple[tuple[int, int], ...]:
    return joined((page, 1) for page in sorted(pages))


def moved_from(commit: Commit, source: Path, target: Path, soil: ImagePair) -> Commit:
    """A commit after it was moved to a history's folder."""
    with Folder.open(source) as here, Folder.open(target) as there:
        return rebase_commit(commit, here, there, soil, lambda size: None)


def put(path: Path, commit: Commit, content: list[bytes]) -> Commit:
    with Folder.open(path) as folder:
        name, _ = write_content(folder, content)
    return msgspec.structs.replace(commit, content=name)


def laid(image: list[int], folder: Path, commit: Commit, size: int) -> list[int]:
    """The content of a guest's pages after a commit was applied to an image."""
    kinds = (image + [0] * size)[:size]
    for first, pages in commit.zeros:
        kinds[first : first + pages] = [0] * pages
    if not commit.runs:
        return kinds
    with Folder.open(folder) as place, ContentFile(place, commit) as found:
        found.verify()
        for first, pages, at in places(commit):
            block = bytearray(pages * PAGE)
            found.read(at, memoryview(block))
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
@example([1], [2], {2: 3, 3: 4, 4: 5}, set())
def test_the_first_commit_gives_the_same_memory_over_any_image(
    theirs: list[int], ours: list[int], written: dict[int, int], emptied: set[int]
) -> None:
    emptied -= written.keys()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "history").mkdir()
        commit = Commit(
            1, 0, 0, 1, "", 0.0, PAGES * PAGE,
            runs=runs_of(list(written)), zeros=runs_of(list(emptied)), files=(FILE,),
        )  # fmt: skip
        commit = put(folder, commit, [memory([written[page]]) for page in sorted(written)])
        before = laid(theirs, folder, commit, PAGES)
        library = frozenset({"/usr/local/lib"})
        soil = ImagePair(memoryview(memory(theirs)), memoryview(memory(ours)), library)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rebase, "_STEP_PAGES", 2)
            fitted = moved_from(commit, folder, folder / "history", soil)
        assert laid(ours, folder / "history", fitted, PAGES) == before


def made(folder: Path, **changes: Any) -> Commit:
    """A commit with one run of one page, and changes by the test."""
    commit = Commit(2, 1, 3, 4, "x = 1", 1.0, PAGES * PAGE, runs=((1, 1),))
    return replace(put(folder, commit, [bytes([7]) * PAGE]), **changes)


def moved(folder: Path, **changes: Any) -> Commit:
    library, along = frozenset({"/usr/local/lib"}), {"1:2": ("/app", "notes")}
    soil = ImagePair(memoryview(b""), memoryview(b""), library, along)
    (folder / "history").mkdir(exist_ok=True)
    return moved_from(made(folder, **changes), folder, folder / "history", soil)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": 1 << 31},
        {"runs": ((1, 2),)},
        {"runs": ((1, 1), (3, 1))},
        {"runs": ()},
        {"content": ""},
    ],
)
def test_impossible_commits_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """These commits are well-formed; test_index.py has those that `decode` refuses."""
    with pytest.raises(HistoryError):
        moved(tmp_path, **changes)
    assert list((tmp_path / "history").iterdir()) == []


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
        (replace(FILE, flags=15, rights=66, fdflags=31), READ),
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
