"""Path validation, compared with the operating system's own answers on random trees of links."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.sessions.files import delete_session_path, read_session_file, write_session_file
from wasm_kernel.sessions.paths import SessionPathError, normalize

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


def test_an_error_escapes_what_a_terminal_would_obey() -> None:
    with pytest.raises(SessionPathError) as caught:
        normalize("/\x1b]0;title\x07\u202e" + "x" * 100_000)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
