"""Hidden names, and the places that paths lead to, compared with the file system's own answers."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wasm_kernel.engine import abi
from wasm_kernel.linux.folders import Folder
from wasm_kernel.wasi_files.context import resolve as resolved
from wasm_kernel.wasi_files.open_files import OpenDescriptor
from wasm_kernel.wasi_files.path_walk import Follow, HiddenName, Outside
from wasm_kernel.wasi_files.preopens import (
    METADATA,
    METADATA_HIDDEN,
    NOTHING_HIDDEN,
    GuestOSError,
    Preopen,
)

NAMES = ["a", "b", "up", "here", "deep", "way", "plain", ".metadata.json", "hid", "x"]
PARTS = st.sampled_from([*NAMES, ".", "..", "", ".METADATA.json"])
PATHS = st.lists(PARTS, min_size=1, max_size=7).map("/".join)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """Folders with links in every direction, some of which end at the hidden names."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "app"
        (root / "a" / "deep").mkdir(parents=True)
        (root / "hid").mkdir()
        for file in (".metadata.json", "plain", "a/x", "hid/x", "a/.metadata.json"):
            (root / file).write_text(file)
        (root / "outside").symlink_to("../..")
        links = {
            "here": ".",
            "b": "a",
            "a/up": "..",
            "a/deep/up": "../..",
            "a/here": "up/./a/",
            "way": "a/up/here/plain",
            "a/way": "../hid/x",
            "a/deep/way": "../up/.metadata.json",
            "a/b": "b",
        }
        for name, target in links.items():
            (root / name).symlink_to(target)
        yield root


def resolve(
    root: Path, start: tuple[str, ...], path: str, *, follow: bool, guarded: bool
) -> tuple[str, ...] | None:
    """The parts of the place that a path leads to; None if it leaves the root."""
    hidden = METADATA_HIDDEN if guarded else NOTHING_HIDDEN
    how = Follow.ALWAYS if follow else Follow.BEFORE_SLASH
    with Folder.open(root) as folder, Folder.open(root.joinpath(*start)) as below:
        preopen = Preopen(folder, "/app", hidden=hidden)
        opened = OpenDescriptor(preopen, start, below.fd, is_folder=True)
        try:
            with resolved(preopen, path or ".", start=opened, follow=how) as place:
                return place.parts
        except Outside:
            return None


def true_place(root: Path, path: str, *, follow: bool) -> str | None:
    """The file system's own answer for a path; None if it does not exist."""
    whole = f"{root}/{path}"
    name = path.rpartition("/")[2]
    ends_at_link = not follow and name not in ("", ".", "..")
    try:
        os.stat(whole, follow_symlinks=not ends_at_link)  # noqa: PTH116 - a Path loses the end
        if ends_at_link:
            parent = os.path.realpath(os.path.dirname(whole), strict=True)  # noqa: PTH120
            return f"{parent}/{name}"
        return os.path.realpath(whole, strict=True)
    except OSError:
        return None


def found_place(root: Path, path: str, *, follow: bool) -> tuple[str, ...] | str | None:
    try:
        return resolve(root, (), path, follow=follow, guarded=True)
    except HiddenName:
        return "hidden"
    except OSError as refused:
        assert refused.errno in (errno.ELOOP, errno.ENOENT, errno.ENOTDIR)
        return None


@settings(max_examples=100)
@given(path=PATHS, follow=st.booleans())
def test_a_path_leads_where_the_file_system_says(tree: Path, path: str, follow: bool) -> None:
    true = true_place(tree, path, follow=follow)
    found = found_place(tree, path, follow=follow)
    if true is None or path.startswith("/") or found is None:
        return  # absolute paths, and those that leave the folder on the way, are refused
    parts = tuple(part for part in os.path.relpath(true, tree).split("/") if part != ".")
    if parts and parts[0] == METADATA:
        assert found == "hidden"
    elif found != "hidden":  # a way through a hidden folder and out again is closed, too
        assert found == parts


@pytest.mark.parametrize("follow", [True, False])
def test_a_name_is_as_long_as_any_tool_can_name_it(tmp_path: Path, follow: bool) -> None:
    fd = os.open(tmp_path, os.O_PATH)
    for _ in range(15):
        os.mkdir("m" * 250, dir_fd=fd)
        below = os.open("m" * 250, os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    path = "/".join(["m" * 250] * 15)
    long = f"{path}/{'x' * (abi.PATH_MAX - 1 - len(path) - 1)}"
    assert resolve(tmp_path, (), long, follow=follow, guarded=True) == tuple(long.split("/"))
    with pytest.raises(GuestOSError) as caught:
        resolve(tmp_path, (), f"{long}x", follow=follow, guarded=True)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_a_start_below_the_root_counts(tree: Path) -> None:
    found = resolve(tree, ("a",), "deep/../.metadata.json", follow=True, guarded=True)
    assert found == ("a", ".metadata.json")
    assert resolve(tree, ("a",), "up/.metadata.json", follow=True, guarded=True) is None
