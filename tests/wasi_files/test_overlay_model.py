"""Any sequence of calls has the same results on an overlay as on a plain dictionary, and never
changes the folder beneath.

The dictionary has files by path, None for folders; a file with two names is there twice. It has no
layers, and one rule for them: a folder that was there first can't be renamed.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.engine.tiny import RIGHTS, ROOT
from tests.faces import host_tree
from tests.sampled import lasting
from tests.wasi_files.overlays import READ, WRITE, Overlaid
from wasm_kernel.engine import abi

NAMES = st.sampled_from(["a", "b", "d", "e"])
PATH = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
DATA = st.binary(min_size=1, max_size=8)
LOWER = st.dictionaries(PATH, DATA, max_size=6)
Tree = dict[str, "File | None"]


class File:
    """A file with any number of names."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def above(path: str) -> str:
    return path.rpartition("/")[0]


def below(tree: Tree, path: str) -> list[str]:
    return [other for other in tree if other.startswith(f"{path}/")]


class Plain:
    """The dictionary, with the calls of a file system."""

    def __init__(self, tree: Tree) -> None:
        self.tree = dict(tree)
        self.first = {path for path, content in tree.items() if content is None}

    def way(self, path: str) -> bool:
        """Returns whether a path's folder exists."""
        return not above(path) or (above(path) in self.tree and self.tree[above(path)] is None)

    def write(self, path: str, data: bytes) -> bool:
        if not self.way(path) or (path in self.tree and self.tree[path] is None):
            return False
        held = self.tree.setdefault(path, File(data))
        assert held is not None
        held.data = data
        return True

    def append(self, path: str, data: bytes) -> bool:
        held = self.tree.get(path)
        if held is None:
            return False
        held.data += data
        return True

    def link(self, old: str, new: str) -> bool:
        if self.tree.get(old) is None or not self.way(new) or new in self.tree:
            return False
        self.tree[new] = self.tree[old]
        return True

    def mkdir(self, path: str) -> bool:
        if not self.way(path) or path in self.tree:
            return False
        self.tree[path] = None
        return True

    def unlink(self, path: str) -> bool:
        return self.tree.get(path) is not None and self.tree.pop(path) is not None

    def rmdir(self, path: str) -> bool:
        if path not in self.tree or self.tree[path] is not None or below(self.tree, path):
            return False
        del self.tree[path]
        self.first.discard(path)
        return True

    def rename(self, old: str, new: str) -> bool:
        if old not in self.tree or not self.way(new):
            return False
        if old == new:
            return True
        if self.tree[old] is None:
            if old in self.first or new.startswith(f"{old}/"):
                return False
            if new in self.tree and (self.tree[new] is not None or below(self.tree, new)):
                return False
        elif new in self.tree and self.tree[new] is None:
            return False
        elif self.tree[old] is self.tree.get(new):
            return True  # two names of one file: nothing happens
        self.first.discard(new)
        moved = {new + path[len(old) :]: self.tree[path] for path in (old, *below(self.tree, old))}
        for path in (old, *below(self.tree, old)):
            del self.tree[path]
        self.tree |= moved
        return True


class Overlays(RuleBasedStateMachine):
    """The overlay beside the dictionary."""

    @initialize(lower=LOWER, upper=LOWER)
    def begin(self, lower: dict[str, bytes], upper: dict[str, bytes]) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.lower, self.app = self.folder / "lower", self.folder / "app"
        tree: Tree = {}
        for root, files in ((self.lower, lower), (self.app, upper)):
            root.mkdir()
            for path, data in files.items():
                place = root / path
                if any(each.is_file() for each in place.parents) or place.is_dir():
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
        merge(self.lower, self.app, tree)
        self.plain = Plain(tree)
        self.plain.first = {p for p in self.plain.first if (self.lower / p).is_dir()}
        self.before = host_tree(self.lower)
        self.real = Overlaid(self.folder)

    def teardown(self) -> None:
        if hasattr(self, "real"):
            self.real.close()
            shutil.rmtree(self.folder)

    def same(self, errno: int, *, done: bool) -> None:
        assert (errno == abi.SUCCESS) is done, errno

    @rule(path=PATH, data=DATA)
    def write(self, path: str, data: bytes) -> None:
        self.same(self.real.write(path, data), done=self.plain.write(path, data))

    @rule(path=PATH, data=DATA)
    def append(self, path: str, data: bytes) -> None:
        done, held = self.plain.append(path, data), self.plain.tree.get(path)
        self.same(self.real.write(path, held.data if held else data, how=0), done=done)

    @rule(path=PATH)
    def mkdir(self, path: str) -> None:
        self.same(self.real.call("path_create_directory", path), done=self.plain.mkdir(path))

    @rule(path=PATH)
    def unlink(self, path: str) -> None:
        self.same(self.real.call("path_unlink_file", path), done=self.plain.unlink(path))

    @rule(path=PATH)
    def rmdir(self, path: str) -> None:
        self.same(self.real.call("path_remove_directory", path), done=self.plain.rmdir(path))

    @rule(old=PATH, new=PATH)
    def rename(self, old: str, new: str) -> None:
        self.same(self.real.rename(old, new), done=self.plain.rename(old, new))

    @rule(old=PATH, new=PATH)
    def link(self, old: str, new: str) -> None:
        self.same(self.real.link(old, new), done=self.plain.link(old, new))

    @rule()
    def begin_anew(self) -> None:
        """Another kernel on the same two folders sees the same."""
        self.real.close()
        self.real = Overlaid(self.folder)

    @invariant()
    def is_the_same(self) -> None:
        if hasattr(self, "real"):
            wanted = {path: held and held.data for path, held in self.plain.tree.items()}
            assert self.real.tree() == wanted
            assert host_tree(self.lower) == self.before


def merge(lower: Path, upper: Path, into: Tree, path: str = "") -> None:
    """The content of both folders together."""
    layers = [each / path for each in (upper, lower) if (each / path).is_dir()]
    for name in sorted({each.name for layer in layers for each in layer.iterdir()}):
        below = f"{path}/{name}".lstrip("/")
        top = upper / below if (upper / below).exists() else lower / below
        into[below] = None if top.is_dir() else File(top.read_bytes())
        if top.is_dir():
            low = lower if (lower / below).is_dir() else upper
            merge(low, upper, into, below)


LONG = settings(max_examples=20, stateful_step_count=60)


def test_any_sequence_of_calls() -> None:
    run_state_machine_as_test(Overlays, settings=settings(max_examples=7, stateful_step_count=25))


@pytest.mark.soak
def test_many_long_sequences_of_calls() -> None:
    for _ in lasting():
        run_state_machine_as_test(Overlays, settings=LONG)


SECRET = b"secret of the host"
PIECES = ["a", "d", "e", ".env", "own", "link", "out", ".wh.d", ".wh.a", "..", "."]
HOW = [0, abi.O_CREAT, abi.O_CREAT | abi.O_TRUNC, abi.O_TRUNC, abi.O_CREAT | abi.O_EXCL]


class Anything:
    """A guest that tries random calls."""

    def __init__(self, real: Overlaid, dice: random.Random) -> None:
        self.real, self.guest, self.dice = real, real.guest, dice
        self.folders: list[int] = []

    def place(self) -> tuple[int, str]:
        """Draws a descriptor and a path."""
        path = "/".join(self.dice.choice(PIECES) for _ in range(self.dice.randint(1, 3)))
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
