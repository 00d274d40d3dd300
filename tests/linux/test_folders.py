"""`Folder`: files in a folder are reached by name and never through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasm_kernel.linux.folders import Folder, NotRegular, TooLong


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "key").write_text("secret")
    return folder


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


def test_a_file_is_replaced_as_a_whole_or_stays(inside: Path) -> None:
    with Folder.open(inside) as folder:
        with folder.replacing("head") as file:
            file.write(b"one")
        with pytest.raises(RuntimeError), folder.replacing("head") as file:
            file.write(b"half")
            raise RuntimeError
        assert folder.read("head", 10) == b"one"
        assert folder.names() == ["head"]


def test_special_files_are_refused_at_once(inside: Path, outside: Path) -> None:
    os.mkfifo(inside / "fifo")
    (inside / "link").symlink_to(outside / "key")
    (inside / "zero").symlink_to("/dev/zero")
    (inside / "folder").mkdir()
    with Folder.open(inside) as folder:
        for name in ("fifo", "link", "zero", "folder"):
            with pytest.raises(NotRegular):
                folder.read(name, 100)
        with pytest.raises(NotRegular):
            folder.open_regular("link", os.O_WRONLY | os.O_TRUNC)
    assert (outside / "key").read_text() == "secret"


def test_reading_is_bounded(inside: Path) -> None:
    os.truncate(os.open(inside / "huge", os.O_CREAT | os.O_WRONLY), 1 << 40)
    with Folder.open(inside) as folder, pytest.raises(TooLong):
        folder.read("huge", 1000)


def test_no_link_is_entered_and_no_name_leads_elsewhere(inside: Path, outside: Path) -> None:
    (inside / "link").symlink_to(outside)
    with Folder.open(inside) as folder:
        for make in (False, True):
            with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
                folder.enter("link", make=make)
        for name in ("..", ".", "", "a/b", "link/key", "a\0b"):
            with pytest.raises(ValueError, match="plain name"):
                folder.open_regular(name)
    assert [path.name for path in outside.iterdir()] == ["key"]


def test_a_link_left_aside_does_not_lead_a_writer_out(inside: Path, outside: Path) -> None:
    (inside / ".head.aside").symlink_to(outside / "key")
    with Folder.open(inside) as folder, folder.replacing("head") as file:
        file.write(b"new")
    assert (inside / "head").read_bytes() == b"new"
    assert (outside / "key").read_text() == "secret"
