"""Glob patterns, compared with pathlib's own."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.sessions.files import Pattern
from wasm_kernel.sessions.paths import SessionPathError

NAMES = st.sampled_from(["a", "b", "ab", ".a", "a.csv"])
PIECES = st.sampled_from(["a", "*", "?", "[ab]", "[!a]*", "a*", "*.csv", "**", "**", ".*"])


@given(
    st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=8),
    st.lists(PIECES, min_size=1, max_size=5).filter(lambda pieces: pieces[-1] != "**"),
)
def test_it_finds_what_pathlib_finds(tree: list[list[str]], pieces: list[str]) -> None:
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


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**", "a", True),
        ("**", "a/b/c", True),
        ("a/**", "a/b/c", True),
        ("a/**", "b/a", False),
        ("a/**/c", "a/c", True),
        ("./a\\*.csv", "a/x.csv", True),
        ("*", "a/b", False),
        ("*", "a\nb", True),
        ("A", "a", False),
        ("a**", "abc", True),
        ("[", "[", True),
    ],
)
def test_a_pattern_fits_or_does_not(pattern: str, path: str, fits: bool) -> None:
    assert Pattern(pattern).matches(tuple(path.split("/"))) is fits


@pytest.mark.parametrize("pattern", ["", ".", "/a", "../*", "a/../b", "C:\\*", "a\0"])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(SessionPathError):
        Pattern(pattern)


def test_no_pattern_takes_long() -> None:
    pattern = Pattern("/".join(["**", "*a*a*a*a*a*b"] * 40))
    path = ("a" * 200,) * 100
    begun = time.process_time()
    assert not pattern.matches(path)
    assert time.process_time() - begun < 5
