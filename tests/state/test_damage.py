"""ATTACKS 49: a session's stored state, damaged in every place.

Whatever is flipped, cut, removed, doubled or exchanged, the session opens at a state that it had,
and says so if that may not be the last one; or it uses nothing of what is stored.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faces import full_disk
from tests.sampled import sampled
from tests.state.session import Session
from tests.stored import flip
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.folding import fold
from wasm_kernel.state.index import Head, Index, read_index
from wasm_kernel.state.stored import StateFolder

Making = Callable[..., Session]

STATES = {
    1: {0: "1"},
    2: {0: "2", 1: "b"},
    3: {0: "3", 1: "b"},
    4: {0: "4", 1: "b", 2: "c"},
    5: {0: "a mistake", 1: "b", 2: "c"},
}


@pytest.fixture(params=[False, True], ids=["plain", "folded"])
def stored(session_of: Making, request: pytest.FixtureRequest) -> Path:
    """The folder of a session left at state 4 by an undo; state 2 may be folded away."""
    session = session_of()
    session.cell(p0="1")
    session.cell(p0="2", p1="b")
    session.cell(p0="3")
    session.cell(p0="4", p2="c")
    session.save(p0="a mistake")
    session.history.name("best", 3)
    session.history.name("first", 1)
    session.history.move(4, (5,))
    session.history.pin({5})
    session.history.save()
    if request.param:
        fold(session.history, 0)
        assert sorted(session.history.tree.commits) == [1, 3, 4, 5]
    session.close()
    return session.folder


def standing(session_of: Making, folder: Path) -> tuple[dict[int, str], bool]:
    """The state at which a session opens, and whether it warned of damage."""
    try:
        session = session_of(folder=folder.parent, load=True, gives_up=True, crashed=False)
    except HistoryError as problem:
        assert str(problem)
        return {}, True
    told = session.found is None or session.found.is_damaged or session.given_up > 0
    return session.state, told


def right_or_told(session_of: Making, stored: Path) -> None:
    state, told = standing(session_of, stored)
    if not told:
        assert state == STATES[4]
    assert state in ({}, *STATES.values()), state


RECORDS: dict[str, Callable[[bytes, bytes], list[bytes]]] = {
    "flipped": lambda before, one: [before, flipped(one)],
    "taken out": lambda before, one: [before],
    "doubled": lambda before, one: [before, one, one],
    "empty": lambda before, one: [before, b"\n"],
    "swapped": lambda before, one: [one, before],
}


def flipped(line: bytes) -> bytes:
    middle = len(line) // 2
    return line[:middle] + bytes([line[middle] ^ 4]) + line[middle + 1 :]


@pytest.mark.parametrize("number", sampled({str(one): one for one in range(1, 12)}, 7))
@pytest.mark.parametrize("kind", RECORDS)
def test_a_damaged_record_is_told(session_of: Making, stored: Path, number: int, kind: str) -> None:
    path = stored / "index"
    lines = path.read_bytes().splitlines(keepends=True)
    number = min(number, len(lines) - 1)
    before, one = lines[number - 1 : number + 1]
    instead = RECORDS[kind](before, one)
    path.write_bytes(b"".join([*lines[: number - 1], *instead, *lines[number + 1 :]]))
    right_or_told(session_of, stored)


def test_an_index_cut_after_any_line_is_a_state_that_had_been(
    session_of: Making, stored: Path, tmp_path: Path
) -> None:
    lines = (stored / "index").read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        copy = tmp_path / str(count) / "state"
        shutil.copytree(stored, copy)
        (copy / "index").write_bytes(b"".join(lines[:count]))
        state, told = standing(session_of, copy)
        assert state in ({}, *STATES.values())
        assert told


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to zeros": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda path: None,
    "a folder": Path.mkdir,
}
CONTENTS: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, 100),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(4096)),
    "another's": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
}


def replace(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    INSTEAD[kind](path)


@pytest.mark.parametrize("one", sampled({str(one): one for one in (1, 3, 5)}, 2))
@pytest.mark.parametrize("kind", [*CONTENTS, *INSTEAD])
def test_a_damaged_content_is_told(session_of: Making, stored: Path, kind: str, one: int) -> None:
    session = session_of(load=True)
    session.close()
    if one not in session.history.tree.commits:
        pytest.skip("it was folded away")
    path = session.content(one)
    path.chmod(0o600)
    CONTENTS[kind](path) if kind in CONTENTS else replace(path, kind)
    right_or_told(session_of, stored)


def test_something_else_in_the_place_of_the_index_is_told(session_of: Making, stored: Path) -> None:
    for kind in INSTEAD:
        replace(stored / "index", kind)
        assert standing(session_of, stored) == ({}, True)


def test_the_records_of_another_session_are_not_believed(
    session_of: Making, stored: Path, tmp_path: Path
) -> None:
    other = tmp_path / "another"
    other.mkdir()
    session = session_of(folder=other)
    session.cell(p0="another's")
    session.close()
    mine = (stored / "index").read_bytes().splitlines(keepends=True)
    theirs = (session.folder / "index").read_bytes().splitlines(keepends=True)
    for number in range(1, len(theirs)):
        copy = tmp_path / str(number) / "state"
        shutil.copytree(stored, copy)
        mixed = [*mine[:number], theirs[number], *mine[number + 1 :]]
        (copy / "index").write_bytes(b"".join(mixed))
        right_or_told(session_of, copy)


def hold_up(session: Session, patch: pytest.MonkeyPatch) -> None:
    """From now on, no commit is written to disk."""
    patch.setattr(session.history, "store", full_disk)


def left_behind(session: Session, patch: pytest.MonkeyPatch) -> None:
    """States 1 to 5 on disk, then an undo to 3, two cells that wait for it, an undo of one."""
    for number in range(1, 6):
        session.cell(p0=str(number))
    session.flush()
    session.go(3)
    session.history.save()
    hold_up(session, patch)
    session.cell(p0="6")
    session.save(p0="7")
    session.history.move(6, (7,))


def test_a_head_that_waits_leads_to_the_state_before_it(
    session_of: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of()
    left_behind(session, monkeypatch)
    session.history.save()
    assert session_of(load=True).state == {0: "3"}
    monkeypatch.undo()
    session.save(p0="8")
    session.history.move(6, (8,))
    session.history.save()
    assert session_of(load=True).state == {0: "6"}


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_head_that_never_came_to_disk_is_told(
    session_of: Making, monkeypatch: pytest.MonkeyPatch, rewritten: bool
) -> None:
    """An earlier version wrote such heads."""
    session = session_of()
    left_behind(session, monkeypatch)
    if rewritten:
        session.history.rewrite()
    with closing(Index(folder := Folder.open(session.folder), "image")) as index:
        index.go_on(read_index(folder))
        index.append(Head(6, 7, (7,)))
    folder.close()
    again = session_of(load=True)
    assert again.state == {0: "3"}
    assert again.found is not None
    assert (again.found.is_damaged, again.found.is_certain, again.found.lost) == (True, False, 1)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_system_that_can_not_read_now_says_nothing_of_what_is_saved(
    session_of: Making, stored: Path, number: int
) -> None:
    opening = Folder.open_regular

    def failing(folder: Folder, name: str, *args: int) -> int:
        if name in failed:
            raise OSError(number, os.strerror(number))
        return opening(folder, name, *args)

    session = session_of(folder=stored.parent, load=True, crashed=False)
    failed: list[str] = []
    for one in ("index", session.content(4).name):
        failed[:] = [one]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Folder, "open_regular", failing)
            with pytest.raises(OSError, match=re.escape(os.strerror(number))) as problem:
                session_of(folder=stored.parent, load=True, gives_up=True)
            assert not isinstance(problem.value, HistoryError)
    assert standing(session_of, stored)[0] == STATES[4]


def test_a_full_disk_while_damage_is_mended_loses_nothing(session_of: Making, stored: Path) -> None:
    path = stored / "index"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))  # without the record `IndexEnd`

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "rewrite", full_disk)
        with pytest.raises(OSError, match="No space"):
            standing(session_of, stored)
    assert path.read_bytes() == b"".join(lines[:-1])
    assert standing(session_of, stored) == (STATES[4], True)
    assert [one.read_bytes() for one in (stored / "unused").iterdir()] == [b"".join(lines[:-1])] * 2
    with closing(StateFolder(Folder.open(stored))) as folder:
        folder.read("image")
        assert folder.unused_bytes == 2 * len(b"".join(lines[:-1]))
        folder.drop_unused()  # when room is needed
        assert folder.unused_bytes == 0
    assert list((stored / "unused").iterdir()) == []


def test_dropped_commits_stay_dropped_if_the_index_can_not_be_rewritten(
    session_of: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of()
    for number in range(1, 4):
        session.cell(p0=str(number))
    session.flush()
    session.history.move(2)
    append = Index.append
    monkeypatch.setattr(Index, "append", full_disk)
    session.history.drop([3])
    monkeypatch.setattr(Index, "append", append)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "replacing", full_disk)
        with pytest.raises(OSError, match="No space"):
            session.history.rewrite()
    session.history.save()
    again = session_of(load=True)
    assert again.found is not None
    assert (sorted(again.history.tree.commits), again.found.is_damaged) == ([1, 2], False)


def test_closing_tries_again_what_could_not_be_written(
    session_of: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of()
    with monkeypatch.context() as patch:
        hold_up(session, patch)
        session.cell(p0="1")
        session.save(p0="2")
    session.recorder.close()
    assert session.history.close()
    assert session_of(load=True, crashed=False).state == {0: "2"}


def test_an_end_while_states_wait_is_not_recorded_as_one(
    session_of: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of()
    session.save(p0="1")
    hold_up(session, monkeypatch)
    session.cell(p0="2")
    session.recorder.close()
    assert not session.history.close()
    assert standing(session_of, session.folder) == ({0: "1"}, True)
