"""Path validation, compared with the operating system's own answers on random trees of links."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.sessions.files import (
    _validate_session_path,
    delete_session_path,
    read_session_file,
    write_session_file,
)
from wasm_kernel.sessions.paths import LINKS_MOST, SessionPathError, normalize

ID = "s"
NAMES = st.sampled_from(["a", "b", "c", "dd"])
STEPS = NAMES | st.sampled_from(["..", "..", ".", ""])
PATHS = (
    st.lists(STEPS, min_size=1, max_size=6)
    .map("/".join)
    .filter(lambda path: path and not path.startswith("/"))
)
PLACES = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = PATHS | st.sampled_from(
    ["..", "../..", "../out/secret", "/etc/passwd", "{root}", "{root}/a", "{root}/a/../b",
     "{root}/..", "{root}x/a", "../s/a", "../s"]
)  # fmt: skip
TREES = st.lists(
    st.tuples(st.sampled_from(["folder", "file"]), PLACES, st.just(""))
    | st.tuples(st.just("link"), PLACES, TARGETS),
    max_size=8,
)


class World:
    """A session's workspace of random folders, files and links, and a folder beside it."""

    def __init__(self, tree: list[tuple[str, str, str]]) -> None:
        self.top = Path(tempfile.mkdtemp()).resolve()
        self.root = self.top / ID
        self.root.mkdir()
        (self.top / "out").mkdir()
        (self.top / "out" / "secret").write_text("secret")
        for kind, place, target in tree:
            self._make(kind, self.root / place, target.replace("{root}", str(self.root)))

    def _make(self, kind: str, path: Path, target: str) -> None:
        try:
            if not path.parent.resolve().is_relative_to(self.root):
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                path.mkdir()
            elif kind == "file":
                with path.open("x") as file:
                    file.write(f"content of {path}")
            else:
                path.symlink_to(target)
        except (OSError, RuntimeError):
            return  # the name is taken already, or links lead in circles

    def validated(self, path: str) -> Path | None:
        """The real place of a path; None if it was refused."""
        try:
            return _validate_session_path(ID, path, self.top)
        except SessionPathError:
            return None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.top)


@given(TREES, PATHS)
def test_a_path_that_is_let_through_is_the_systems_own_and_stays_inside(
    tree: list[tuple[str, str, str]], path: str
) -> None:
    with World(tree) as world:
        try:
            found = world.validated(path)
        except OSError as problem:
            assert problem.errno == errno.ELOOP
            return
        real = Path(os.path.realpath(world.root / path))
        if found is not None:
            assert found == real
            assert found.is_relative_to(world.root)
            assert Path(os.path.realpath(found)) == found
        else:
            left = [world.root / "/".join(path.split("/")[:n]) for n in range(path.count("/") + 2)]
            assert any(not leads_inside(place, world.root) for place in left)


def leads_inside(place: Path, root: Path) -> bool:
    """True if no step on the way to a place is outside of a folder, as the system resolves it."""
    at, todo, hops = "/", list(reversed(str(place).split("/"))), 0
    been_inside = False
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        at = os.path.normpath(f"{at}/{part}") if part == ".." else f"{at.rstrip('/')}/{part}"
        if os.path.islink(at) and hops < LINKS_MOST:  # noqa: PTH114
            hops += 1
            target = os.readlink(at)  # noqa: PTH115
            at = os.path.dirname(at)  # noqa: PTH120
            if target.startswith(f"{root}/") or target == str(root):
                at, target = str(root), target[len(str(root)) :]
            elif target.startswith("/"):
                return False
            todo += reversed(target.split("/"))
        inside = at == str(root) or at.startswith(f"{root}/")
        if been_inside and not inside:
            return False
        been_inside = been_inside or inside
    return True


class OpenHow(ctypes.Structure):
    """Source: openat2(2)."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("how", ctypes.c_uint64)]


_OPENAT2, _RESOLVE_BENEATH, _O_PATH = 437, 0x08, 0o10000000


def beneath(root: Path, path: str) -> Path | int:
    """The real place that Linux finds without ever leaving a folder, or its error number.

    Linux refuses a `..` by EAGAIN while anything is renamed or mounted on the system.
    """
    while (found := _beneath(root, path)) == errno.EAGAIN:
        pass
    return found


def _beneath(root: Path, path: str) -> Path | int:
    libc = ctypes.CDLL(None, use_errno=True)
    how = OpenHow(_O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = libc.syscall(_OPENAT2, folder, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
        if fd < 0:
            return ctypes.get_errno()
        try:
            return Path(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        finally:
            os.close(fd)
    finally:
        os.close(folder)


def has_openat2(folder: Path) -> bool:
    return sys.platform == "linux" and beneath(folder, ".") == folder.resolve()


@pytest.fixture(scope="module", autouse=True)
def _knows_openat2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bool]:
    yield has_openat2(tmp_path_factory.mktemp("here"))


@given(TREES, PATHS)
def test_it_agrees_with_openat2(
    _knows_openat2: bool, tree: list[tuple[str, str, str]], path: str
) -> None:
    if not _knows_openat2:
        pytest.skip("this system has no openat2")
    with World(tree) as world:
        theirs = beneath(world.root, path)
        try:
            ours = world.validated(path)
        except OSError as problem:
            # missing files are taken by their names, and links may lead in circles behind them
            assert problem.errno == errno.ELOOP
            assert theirs in (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EXDEV)
            return
        if isinstance(theirs, Path):
            assert ours == theirs
        elif theirs == errno.EXDEV and ours is not None:
            # beyond that, only an absolute link to the workspace's own real path is allowed
            assert ours == Path(os.path.realpath(world.root / path))
            assert any(
                os.readlink(link).startswith(str(world.root))  # noqa: PTH115
                for link in world.root.rglob("*")
                if link.is_symlink()
            )
        elif theirs in (errno.ENOENT, errno.ENOTDIR) and ours is not None:
            assert ours == Path(os.path.realpath(world.root / path))


@given(TREES, PATHS, st.sampled_from(["read", "write", "delete", "clear"]))
def test_no_operation_reaches_outside(
    tree: list[tuple[str, str, str]], path: str, what: str
) -> None:
    with World(tree) as world:
        real = Path(os.path.realpath(world.root / path))
        there = real.read_bytes() if real.is_file() else None
        try:
            if what == "read":
                assert read_session_file(ID, path, world.top) == there
                assert real.is_relative_to(world.root)
            elif what == "write":
                write_session_file(ID, path, b"new", world.top)
                assert real.read_bytes() == b"new"
            else:
                delete_session_path(ID, path, world.top, recursive=what == "clear")
        except (SessionPathError, OSError):
            pass
        assert sorted(found.name for found in world.top.iterdir()) == ["out", ID]
        assert [found.name for found in (world.top / "out").iterdir()] == ["secret"]
        assert (world.top / "out" / "secret").read_text() == "secret"


@pytest.mark.parametrize("path", ["", "/", "/a", "\\a", "a\0b", "C:", "c:\\x", "z:a", "//a"])
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(SessionPathError):
        normalize(path)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a/b", ["a", "b"]),
        ("a\\b/c", ["a", "b", "c"]),
        ("./a//b/.", ["a", "b"]),
        ("a/../b", ["a", "..", "b"]),
        (".", []),
        ("ab:c", ["ab:c"]),
        ("a\nb", ["a\nb"]),
    ],
)
def test_the_names_along_a_path(path: str, parts: list[str]) -> None:
    assert normalize(path) == parts


def test_a_path_that_is_not_text_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        normalize(Path("a"))  # type: ignore[arg-type]


def test_an_error_escapes_what_a_terminal_would_obey() -> None:
    with pytest.raises(SessionPathError) as caught:
        normalize("/\x1b]0;title\x07\u202e" + "x" * 100_000)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
