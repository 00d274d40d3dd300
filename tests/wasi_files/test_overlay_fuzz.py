"""Any calls by any path, also by open folders: the folder beneath and hidden files are safe."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.engine.tiny import RIGHTS, ROOT
from tests.faces import host_tree
from tests.sampled import lasting
from tests.wasi_files.overlays import READ, WRITE, Overlaid
from wasm_kernel.engine import abi

SECRET = b"secret of the host"
NAMES = ["a", "d", "e", ".env", "own", "link", "out", ".wh.d", ".wh.a", "..", "."]
HOW = [0, abi.O_CREAT, abi.O_CREAT | abi.O_TRUNC, abi.O_TRUNC, abi.O_CREAT | abi.O_EXCL]


class Anything:
    """A guest that tries random calls."""

    def __init__(self, real: Overlaid, dice: random.Random) -> None:
        self.real, self.guest, self.dice = real, real.guest, dice
        self.folders: list[int] = []

    def place(self) -> tuple[int, str]:
        """Draws a descriptor and a path."""
        path = "/".join(self.dice.choice(NAMES) for _ in range(self.dice.randint(1, 3)))
        if self.folders and self.dice.random() < 0.5:
            return self.dice.choice(self.folders), path
        return (ROOT, f"notebook/{path}") if self.dice.random() < 0.6 else (3, path)

    def where(self) -> tuple[int, int, int]:
        fd, path = self.place()
        return (fd, *self.guest.text(path))

    def open_folder(self) -> None:
        how = (abi.O_DIRECTORY, RIGHTS & ~0x42, RIGHTS, 0, 64)
        fd, at, length = self.where()
        if self.guest.call("path_open", fd, 1, at, length, *how) == abi.SUCCESS:
            self.folders.append(self.guest.instance.memory.read_word(64))
            if len(self.folders) > 8:
                self.guest.call("fd_close", self.folders.pop(0))

    def open_file(self) -> None:
        rights = self.dice.choice([READ, WRITE, READ | WRITE])
        how = (self.dice.choice(HOW), rights, RIGHTS, 0, 64)
        fd, at, length = self.where()
        if self.guest.call("path_open", fd, self.dice.randint(0, 1), at, length, *how):
            return
        opened = self.guest.instance.memory.read_word(64)
        if rights & abi.RIGHT_READ:
            assert SECRET not in self.read(opened)
        if rights & abi.RIGHT_WRITE:
            self.guest.write(opened, b"written")
        self.guest.call("fd_filestat_set_size", opened, 3)
        self.guest.call("fd_filestat_set_times", opened, 5, 7, 5)
        self.guest.call("fd_close", opened)

    def read(self, fd: int) -> bytes:
        memory = self.guest.instance.memory
        memory.write(70_000, (70_064).to_bytes(4, "little") + (64).to_bytes(4, "little"))
        if self.guest.call("fd_read", fd, 70_000, 1, 70_032):
            return b""
        return memory.read(70_064, memory.read_word(70_032))

    def one(self) -> None:
        calls = ["path_create_directory", "path_unlink_file", "path_remove_directory"]
        self.guest.call(self.dice.choice(calls), *self.where())

    def two(self) -> None:
        if self.dice.random() < 0.7:
            self.guest.call("path_rename", *self.where(), *self.where())
            return
        fd, at, length = self.where()
        self.guest.call("path_link", fd, 0, at, length, *self.where())

    def symlink(self) -> None:
        target = self.guest.text(self.dice.choice(["a", "d", "../a", ".env", "../../out", "d/e"]))
        self.guest.call("path_symlink", *target, *self.where())

    def times(self) -> None:
        fd, at, length = self.where()
        self.guest.call("path_filestat_set_times", fd, 1, at, length, 5, 7, 5)
        if self.folders:
            self.guest.call("fd_filestat_set_times", self.dice.choice(self.folders), 5, 7, 5)

    def listed(self) -> None:
        if self.folders:
            _, data = self.guest.read_folder(self.dice.choice(self.folders), 4096)
            assert b"hidden" not in data

    def step(self) -> None:
        tries = [self.open_folder, self.open_file, self.one, self.two, self.two, self.symlink]
        self.dice.choice([*tries, self.times, self.listed])()


def lower_folder(folder: Path) -> Path:
    lower = folder / "lower"
    (lower / "d" / "e").mkdir(parents=True)
    (lower / ".env").mkdir()
    (lower / ".env" / "a").write_bytes(SECRET)
    for place in (lower, lower / "d", lower / "d" / "e"):
        (place / "a").write_bytes(b"data")
        (place / ".hidden").write_bytes(SECRET)
    (folder / "outside").mkdir()
    (folder / "outside" / "a").write_bytes(SECRET)
    (lower / "out").symlink_to("../outside")
    (lower / "link").symlink_to("d")
    return lower


@pytest.mark.parametrize("rounds", [range(15), pytest.param(lasting(), marks=pytest.mark.soak)])
def test_the_folder_beneath_never_changes(tmp_path: Path, rounds: Iterable[int]) -> None:
    for number in rounds:
        folder = tmp_path / str(number)
        folder.mkdir()
        lower = lower_folder(folder)
        before, outside = host_tree(lower), host_tree(folder / "outside")
        ages = {path: os.lstat(path).st_mtime_ns for path in [lower, *lower.rglob("*")]}
        real = Overlaid(folder)
        try:
            anything = Anything(real, random.Random(number))
            for _ in range(80):
                anything.step()
        finally:
            real.close()
        assert (number, host_tree(lower)) == (number, before)
        assert {path: os.lstat(path).st_mtime_ns for path in ages} == ages, number
        assert host_tree(folder / "outside") == outside
        for place in (folder / "app").rglob("*"):
            if not place.is_symlink() and place.is_file():
                assert place.read_bytes() != SECRET, number
        shutil.rmtree(folder)
