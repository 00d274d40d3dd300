"""File operations on odd files: links, holes, depth, names, crowds, racing writers; patterns."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faces import raising
from tests.nobody import as_nobody
from wasm_kernel.linux import trees
from wasm_kernel.sessions import files
from wasm_kernel.sessions.files import (
    Pattern,
    delete_session_path,
    list_session_files,
    read_session_file,
    write_session_file,
)
from wasm_kernel.sessions.paths import SessionPathError, normalize

ID = "abc-123"
DEEP = 600


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root with one session in it."""
    (tmp_path / ID).mkdir()
    yield tmp_path
    trees.remove_tree(tmp_path / ID)  # pytest's own removal can't go so deep


@pytest.fixture
def app(root: Path) -> Path:
    return root / ID


def listed(root: Path, pattern: str | None = None) -> list[str]:
    return list_session_files(ID, root, pattern)


def test_a_session_begins_with_its_first_file(tmp_path: Path) -> None:
    write_session_file(ID, "a", b"x", tmp_path)
    assert (tmp_path / ID / ".metadata.json").exists()  # pruning needs it
    assert listed(tmp_path) == ["a"]


def test_a_name_with_a_backslash_is_found_by_that_name(root: Path, app: Path) -> None:
    (app / "a\\b.txt").write_text("exact")
    (app / "folder\\").mkdir()
    (app / "folder\\" / "C:\\x").write_text("deep")
    (app / "\\etc").write_text("begins so")
    (app / "..\\up").write_text("dots")
    for path in listed(root):
        assert read_session_file(ID, path, root) == (app / path).read_bytes()
    (app / "a").mkdir()
    (app / "a" / "b.txt").write_text("normalized")
    assert read_session_file(ID, "a\\b.txt", root) == b"exact"
    write_session_file(ID, "a\\b.txt", b"new", root)
    assert (app / "a\\b.txt").read_bytes() == b"new"
    delete_session_path(ID, "a\\b.txt", root)
    assert read_session_file(ID, "a\\b.txt", root) == b"normalized"
    delete_session_path(ID, "a\\b.txt", root)
    assert not (app / "a" / "b.txt").exists()
    with pytest.raises(SessionPathError, match="escapes"):
        read_session_file(ID, "..\\other", root)
    with pytest.raises(SessionPathError, match="reserved"):
        read_session_file(ID, "a\\..\\.metadata.json", root)


RESERVED = [
    ".metadata.json", ".metadata.json/x", ".METADATA.JSON", ".metadata.json.", ".metadata.json~",
    ".metadata.json ", ".metadata.json::$DATA", ".meta\u200bdata.json", ".ｍetadata.json",
    "./.metadata.json", "a/../.metadata.json", "a\\..\\.metadata.json",
    "up/.metadata.json", "hidden", ".wasm_\ufb01xed/../.metadata.json",
    ".metadata.json~write-0123456789abcdef",
]  # fmt: skip


@pytest.mark.parametrize("path", RESERVED)
def test_sessions_own_names_are_no_files_however_spelt(root: Path, app: Path, path: str) -> None:
    (app / ".metadata.json").write_text("{}")
    (app / "a").mkdir()
    (app / "up").symlink_to("a/..")
    (app / "hidden").symlink_to(".metadata.json")
    for act in (
        lambda: read_session_file(ID, path, root),
        lambda: write_session_file(ID, path, b"forged", root),
        lambda: delete_session_path(ID, path, root, recursive=True),
    ):
        with pytest.raises(ValueError, match="reserved"):
            act()
    assert (app / ".metadata.json").read_text() == "{}"
    assert listed(root) == listed(root, ".*") == listed(root, "**/*") == []


def test_reserved_names_further_down_are_ordinary(root: Path) -> None:
    write_session_file(ID, "a/.metadata.json", b"mine", root)
    assert listed(root) == ["a/.metadata.json"]
    assert read_session_file(ID, "a/.metadata.json", root) == b"mine"
    delete_session_path(ID, "a/.metadata.json", root)
    assert listed(root) == []


# -- links


def test_links_inside_are_followed_and_deleted_themselves(root: Path, app: Path) -> None:
    write_session_file(ID, "data/real.txt", b"one", root)
    (app / "link").symlink_to("data/real.txt")
    (app / "folder").symlink_to("data")
    (app / "absolute").symlink_to(app.resolve() / "data" / "real.txt")
    write_session_file(ID, "link", b"two", root)
    assert (app / "link").is_symlink()
    for path in ("data/real.txt", "folder/real.txt", "absolute", "folder/../link"):
        assert read_session_file(ID, path, root) == b"two"
    assert listed(root) == ["absolute", "data/real.txt", "link"]
    for path in ("link", "folder", "absolute"):
        delete_session_path(ID, path, root, recursive=True)
    assert listed(root) == ["data/real.txt"]


def test_a_dangling_link_inside_is_written_through(root: Path, app: Path) -> None:
    (app / "link").symlink_to("new/file")
    with pytest.raises(FileNotFoundError):
        read_session_file(ID, "link", root)
    assert listed(root) == []
    write_session_file(ID, "link", b"x", root, overwrite=False)
    assert (app / "new" / "file").read_bytes() == b"x"
    (app / "round").symlink_to("round")
    with pytest.raises(OSError, match="levels of symbolic links"):
        read_session_file(ID, "round", root)


# -- things that are not files


@pytest.mark.parametrize("link", [False, True])
def test_a_pipe_is_neither_waited_for_nor_replaced(root: Path, app: Path, link: bool) -> None:
    os.mkfifo(app / "pipe")
    if link:
        (app / "link").symlink_to("pipe")
    name = "link" if link else "pipe"
    with pytest.raises(OSError, match="a pipe, a socket or a device"):
        read_session_file(ID, name, root)
    with pytest.raises(OSError, match="a pipe, a socket or a device"):
        write_session_file(ID, name, b"", root)
    assert listed(root) == []
    assert stat.S_ISFIFO((app / "pipe").stat().st_mode)
    delete_session_path(ID, "pipe", root)


# -- sizes, depths, crowds


def test_a_file_above_a_bound_is_not_read(root: Path, app: Path) -> None:
    with (app / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="1,099,511,627,776 bytes are over 1,073,741,824") as caught:
        read_session_file(ID, "huge", root)
    assert caught.value.errno == errno.EFBIG
    write_session_file(ID, "a", b"12345", root)
    assert read_session_file(ID, "a", root, max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="5 bytes are over 4"):
        read_session_file(ID, "a", root, max_bytes=4)


def test_a_session_that_cannot_be_listed_is_named(root: Path, app: Path) -> None:
    app.chmod(0)
    with as_nobody(root), pytest.raises(PermissionError, match="denied: 'abc-123'"):
        listed(root)


def test_a_very_deep_folder_is_listed_read_and_deleted(root: Path) -> None:
    path = "/".join(["some-long-name"] * DEEP)
    write_session_file(ID, f"{path}/leaf", b"deep", root)
    for pattern in (None, "**/leaf", "**", "some*/**"):
        assert listed(root, pattern) == [f"{path}/leaf"]
    assert read_session_file(ID, f"{path}/leaf", root) == b"deep"
    assert listed(root, f"{path}/leaf/**") == []
    up_and_down = f"{path}/" + "../" * DEEP
    assert read_session_file(ID, up_and_down + f"{path}/leaf", root) == b"deep"
    with pytest.raises(FileNotFoundError) as caught:
        read_session_file(ID, f"{path}/missing", root)
    assert len(str(caught.value)) < 1000
    delete_session_path(ID, "some-long-name", root, recursive=True)
    assert listed(root) == []


ODD = ["a\nb", "\x1b[31mred", "COM1", "nul.txt", "x" * 255, "-rf", "~", "$HOME", "ab:c ", "\udcff"]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_carried_and_never_acted_on(root: Path, app: Path, name: str) -> None:
    write_session_file(ID, name, b"odd", root)
    assert [path.name for path in app.iterdir() if path.name[0] != "."] == [name]
    assert listed(root) == [name]
    assert read_session_file(ID, name, root) == b"odd"
    delete_session_path(ID, name, root)
    with pytest.raises(FileNotFoundError) as caught:
        read_session_file(ID, name, root)
    assert str(caught.value).isprintable()


# -- writing


def test_a_replaced_file_keeps_its_permissions(root: Path, app: Path) -> None:
    write_session_file(ID, "tool", b"one", root)
    (app / "tool").chmod(0o750)
    write_session_file(ID, "tool", b"two", root)
    assert stat.S_IMODE((app / "tool").stat().st_mode) == 0o750


def test_no_reader_sees_a_half_written_file(root: Path, app: Path) -> None:
    """One file is replaced again and again; each read gets the content of one write."""
    contents = {letter.encode() * 300_000 for letter in "abc"}
    write_session_file(ID, "file", next(iter(contents)), root)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            for content in contents:
                write_session_file(ID, "file", content, root)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            assert (app / "file").read_bytes() in contents
            assert listed(root) == ["file"]
    finally:
        over.set()
        writer.join()
    assert list(app.glob(".metadata.json~*")) == []


def test_failed_writes_leave_files(root: Path, app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_session_file(ID, "file", b"old", root)
    monkeypatch.setattr(
        os, "rename", raising(OSError(errno.ENOSPC, "No space left on device", "/host/path"))
    )
    with pytest.raises(OSError, match="No space left") as caught:
        write_session_file(ID, "file", b"new", root)
    assert caught.value.filename == "file"
    assert read_session_file(ID, "file", root) == b"old"
    assert list(app.glob(".metadata.json~*")) == []


def test_one_of_many_writers_makes_a_file(root: Path) -> None:
    def made(number: int) -> bool:
        try:
            write_session_file(ID, "once", str(number), root, overwrite=False)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as writers:
        all_made = [*writers.map(made, range(8))]
    assert all_made.count(True) == 1
    assert read_session_file(ID, "once", root) == str(all_made.index(True)).encode()


def test_a_folder_that_another_process_makes_at_the_same_time_is_used(
    root: Path, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def late(name: str, *args: int, dir_fd: int) -> None:
        make(name, *args, dir_fd=dir_fd)
        make(name, *args, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", late)
    write_session_file(ID, "a/b/file", b"x", root)
    assert (app / "a" / "b" / "file").read_bytes() == b"x"


def test_an_error_tells_no_path_of_the_host(root: Path, app: Path) -> None:
    (app / "closed").mkdir()
    (app / "file").write_bytes(b"")
    (app / "full" / "x").mkdir(parents=True)
    for act in (
        lambda: read_session_file(ID, "missing", root),
        lambda: read_session_file(ID, "closed", root),
        lambda: read_session_file(ID, "file/x", root),
        lambda: read_session_file(ID, "../x", root),
        lambda: write_session_file(ID, "closed", b"", root),
        lambda: write_session_file(ID, "x" * 999, b"", root),
        lambda: delete_session_path(ID, "full", root),
        lambda: list_session_files("other", root),
        lambda: list_session_files(ID, root, "/*"),
        lambda: list_session_files(ID, root, "."),
    ):
        with pytest.raises((OSError, ValueError)) as caught:
            act()
        error: BaseException | None = caught.value
        while error is not None:
            assert str(root) not in str(error) + repr(error.args)
            error = None if error.__suppress_context__ else error.__context__


NAMES = st.sampled_from(["a", "b", "ab", ".a", "a.csv"])
PIECES = st.sampled_from(["a", "*", "?", "[ab]", "[!a]*", "a*", "*.csv", "**", "**", ".*"])


@given(
    st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=8),
    st.lists(PIECES, min_size=1, max_size=5).filter(lambda pieces: pieces[-1] != "**"),
)
def test_patterns_find_the_files_of_pathlib(tree: list[list[str]], pieces: list[str]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        for parts in tree:
            path = folder.joinpath(*parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError:
                continue
        files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        text = "/".join(pieces)
        theirs = {path.relative_to(folder) for path in folder.glob(text)} & files
        assert {path for path in files if Pattern(text).matches(path.parts)} == theirs
    finally:
        shutil.rmtree(folder)


def test_no_pattern_takes_long() -> None:
    pattern = Pattern("/".join(["**", "*a*a*a*a*a*b"] * 40))
    path = ("a" * 200,) * 100
    begun = time.process_time()
    assert not pattern.matches(path)
    pattern = Pattern("**/a/" * 166 + "b")
    for number in range(3_000):
        assert not pattern.matches((*("a",) * 400, str(number)))
    assert time.process_time() - begun < 5


def test_links_are_followed_in_time(root: Path, app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a list of 14,000 links, each through 40 others, took the host 23 minutes."""
    (app / "file").write_bytes(b"")
    for number in range(9):
        (app / str(number)).symlink_to("file")
    assert len(list_session_files(ID, root)) == 10
    monkeypatch.setattr(files, "_LINK_STEPS", 8)  # two for each link
    found = list_session_files(ID, root)
    assert (len(found), "file" in found) == (5, True)


@pytest.mark.parametrize("path", [".", "a/..", "a"])
def test_a_folder_is_neither_read_nor_written_as_a_file(root: Path, app: Path, path: str) -> None:
    (app / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        read_session_file(ID, path, root)
    with pytest.raises(IsADirectoryError):
        write_session_file(ID, path, b"", root)
    if path != "a":
        with pytest.raises(SessionPathError, match="deleted with its session"):
            delete_session_path(ID, path, root, recursive=True)


SESSION_ID = "s"
PARTS = st.sampled_from(["a", "b", "c", "dd"])
STEPS = PARTS | st.sampled_from(["..", "..", ".", ""])
PATHS = (
    st.lists(STEPS, min_size=1, max_size=6)
    .map("/".join)
    .filter(lambda path: path and not path.startswith("/"))
)
PLACES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
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
        self.root = self.top / SESSION_ID
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

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.top)


@given(TREES, PATHS, st.sampled_from(["read", "write", "delete", "clear"]))
def test_no_call_reaches_outside(tree: list[tuple[str, str, str]], path: str, what: str) -> None:
    with World(tree) as world:
        real = Path(os.path.realpath(world.root / path))
        there = real.read_bytes() if real.is_file() else None
        try:
            if what == "read":
                assert read_session_file(SESSION_ID, path, world.top) == there
                assert real.is_relative_to(world.root)
            elif what == "write":
                write_session_file(SESSION_ID, path, b"new", world.top)
                assert real.read_bytes() == b"new"
            else:
                delete_session_path(SESSION_ID, path, world.top, recursive=what == "clear")
        except (SessionPathError, OSError):
            pass
        assert sorted(found.name for found in world.top.iterdir()) == ["out", SESSION_ID]
        assert [found.name for found in (world.top / "out").iterdir()] == ["secret"]
        assert (world.top / "out" / "secret").read_text() == "secret"


def test_an_error_escapes_what_a_terminal_would_obey() -> None:
    with pytest.raises(SessionPathError) as caught:
        normalize("/\x1b]0;title\x07\u202e" + "x" * 100_000)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
