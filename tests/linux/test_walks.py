"""Walking a folder from the host: any depth, never through a link, closed folders, sizes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.nobody import as_nobody
from wasm_kernel.linux import trees, walks
from wasm_kernel.linux.folders import Folder, open_folder
from wasm_kernel.linux.walks import FolderWalk, Lookup

DEEP = 900  # paths beyond PATH_MAX, and more folders than this process may have files open


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "here").mkdir()
    yield tmp_path / "here"
    trees.remove_tree(tmp_path / "here")


def dig(folder: Path, levels: int) -> None:
    with FolderWalk(folder) as way:
        for _ in range(levels):
            os.mkdir("deep", dir_fd=way.fd)
            way.enter("deep")
        descriptor = os.open("treasure", os.O_CREAT | os.O_WRONLY, dir_fd=way.fd)
        os.write(descriptor, b"12345")
        os.close(descriptor)


@contextmanager
def open_folder_at(path: Path) -> Iterator[int]:
    with Folder(open_folder(path)) as folder:
        yield folder.fd


def names_in(folder: Path, *, force: bool = False) -> list[str]:
    with open_folder_at(folder) as opened:
        return ["/".join([*e.path, e.name]) for e in walks.entries(opened, force=force)]


def size_of(folder: Path) -> int:
    with open_folder_at(folder) as opened:
        return walks.size_of(opened)


def test_a_file_with_two_names_counts_once(here: Path) -> None:
    (here / "one").write_bytes(b"x" * 1000)
    (here / "two").hardlink_to(here / "one")
    (here / "other").write_bytes(b"x")
    assert size_of(here) == 1001


@pytest.mark.parametrize("path", ["../victim", "a/../../victim", "..", "a/./b", "a//b", "", "a\0"])
def test_a_lookup_leads_nowhere_outside(here: Path, path: str) -> None:
    (here / "a").mkdir()
    with open_folder_at(here) as opened, Lookup(opened) as lookup:
        with pytest.raises(OSError, match="Invalid argument"):
            lookup.parent(path, make=True)
        assert lookup.parent("a/b")[1] == "b"


def test_a_link_is_named_and_not_followed(here: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x" * 100)
    (here / "out").symlink_to(tmp_path / "outside")
    (here / "file").symlink_to(tmp_path / "outside" / "secret")
    (here / "round").symlink_to(here)
    assert sorted(names_in(here)) == ["file", "out", "round"]
    assert size_of(here) == 0
    with open_folder_at(here) as folder:
        trees.remove_contents(folder)
    assert list(here.iterdir()) == []
    assert (tmp_path / "outside" / "secret").exists()
    (here / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"directory|links"), open_folder_at(here / "link"):
        pass


def test_a_tree_deeper_than_descriptors_and_paths_go(here: Path) -> None:
    dig(here, DEEP)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert size_of(here) == 5
        with open_folder_at(here) as folder:
            trees.remove_contents(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(here.iterdir()) == []


def test_closed_folders_are_left_out_and_opened_only_by_force(here: Path) -> None:
    for mode in (0o000, 0o400, 0o100, 0o500):
        closed = here / f"{mode:o}"
        closed.mkdir()
        (closed / "file").write_bytes(b"x" * 10)
        closed.chmod(mode)
    with as_nobody(here):
        shown = names_in(here)
        assert [name for name in shown if "/" in name] == ["500/file"]
        assert len(shown) == 5
        assert size_of(here) == 10
        with open_folder_at(here) as folder:
            trees.remove_contents(folder)
        assert list(here.iterdir()) == []


def test_a_folder_that_is_not_ours_to_open_is_an_error(here: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs another user's folder")
    (here / "ours").mkdir()
    with as_nobody(here):
        os.seteuid(0)
        (here / "theirs").mkdir(mode=0o700)
        (here / "theirs" / "file").touch()
        os.seteuid(65534)
        with open_folder_at(here) as folder, pytest.raises(PermissionError):
            trees.remove_contents(folder)


names = st.sampled_from(["a", "b", "c", "\udcff", "new\nline", ".hidden", "-", "ä"])
paths = st.lists(names, min_size=1, max_size=4).map(tuple)
