"""The kept versions of files: how many, and which of them survive a crash or a bad disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faces import raising
from tests.state.files.workspace import Workspace
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.files import FileCopier
from wasm_kernel.state import file_contents, file_journal, file_ledger
from wasm_kernel.state.file_journal import VERSION, KeptFile, NotKept, Reason, read_journal
from wasm_kernel.wasi_files.file_history import Change

BEGINNING = {"record": "journal", "version": VERSION, "known_from": 1, "boot": "", "salt": ""}


def journal_of(*records: object) -> bytes:
    """A journal that holds these records, whatever they are, each with its digest."""
    lines, digest = [], b""
    for record in (BEGINNING, *records):
        text = record if isinstance(record, bytes) else json.dumps(record).encode()
        digest = hashlib.blake2b(text, digest_size=16, key=digest).hexdigest().encode()
        lines.append(b"%s %s\n" % (digest, text))
    return b"".join(lines)


def raw(**fields: object) -> dict[str, object]:
    """A record of a file, with other values in some fields."""
    was = {"kind": "file", "kept": 1, "size": 2, "mtime": 3, "mode": 4, "identity": ""}
    return {"record": "file", "since": 1, "path": "a", "was": {**was, **fields}}


ODD_PATHS = ["../victim", "a/../../b", "", ".", "a/./b", "a//b", "/a", "/1/a", "a\0b", "\ud800"]


@pytest.mark.parametrize(
    "record",
    [
        {**raw(), "was": {}},
        raw(kind="x"),
        raw(kind="link", text=[]),
        raw(kind="nothing"),
        raw(kept="../../etc/passwd"),
        raw(kept=-1),
        raw(size=None),
        raw(mode=0o10000),
        raw(mode=10**30),
        raw(mtime=1 << 63),
        {**raw(), "was": {"kind": "link", "text": "a\0b"}},
        {**raw(), "was": {"kind": "link", "text": "\ud800"}},
        *({**raw(), "path": path} for path in ODD_PATHS),
        {**raw(), "since": -1},
        {**raw(), "record": "journal", "version": 1, "known_from": 0},
        [],
        None,
        b"[" * 200_000,
    ],
    ids=lambda record: str(record)[:30],
)
def test_an_invalid_record_is_refused(record: object) -> None:
    assert read_journal(journal_of(raw(), {**raw(), "path": "/7"}))  # a file without a name
    with pytest.raises(HistoryError):
        read_journal(journal_of(raw(), record))


def kept(workspace: Workspace) -> list[Path]:
    return [p for p in (workspace.private / "files").iterdir() if p.name.isdecimal()]


@pytest.mark.parametrize("way", [(FileCopier, "copy"), (os, "link")], ids=["linked", "copied"])
def test_a_file_that_is_removed_is_kept_with_a_link_or_a_copy(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, way: tuple[object, str]
) -> None:
    one = workspace.commit(a="old")
    with monkeypatch.context() as patch:
        patch.setattr(*way, raising(OSError(errno.EPERM, "Operation not permitted")))
        workspace.remove("a")
    workspace.bring(one)
    assert workspace.state == {"a": "old"}


def test_versions_that_no_commit_needs_are_let_go(workspace: Workspace) -> None:
    for number in range(6):
        for text in ("a second change is not kept", f"{number}"):
            workspace.write("a", text)
        workspace.commit()
    assert len(kept(workspace)) == 5
    workspace.forget(1, 2, 3, 4)
    assert len(kept(workspace)) == 2
    for one in workspace.commits:
        workspace.bring(one)
        assert workspace.state == workspace.states[one]


def test_making_room_takes_a_time_that_grows_as_the_files_do(workspace: Workspace) -> None:
    """Formerly, each deleted content was searched among all paths: a minute for 10,000."""
    ledger, count = workspace.versions.ledger, 8_000
    for number in range(1, count):
        ledger.add(f"f{number}", KeptFile(number, 1, 1, 0o640, "", 0))
    begun = time.process_time()
    for number in range(1, count):
        ledger.drop_content(number, "room")
    ledger.write()
    assert time.process_time() - begun < 3
    assert ledger.at("f7", 1) == NotKept("room", 1)
    assert ledger.contents == {}


def test_a_file_that_is_larger_than_all_may_be_takes_no_room_from_others(tmp_path: Path) -> None:
    with contextlib.closing(Workspace(tmp_path, most_bytes=25)) as workspace:
        one = workspace.commit(small="s" * 20, large="l" * 30)
        workspace.write("small", "")
        workspace.write("large", "")
        assert workspace.bring(one).missed == [("large", NotKept("large", 30))]
        assert workspace.state == {"small": "s" * 20, "large": ""}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_copy_that_fails_is_told_and_the_rest_is_kept(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    one = workspace.commit(a="old", b="old")
    with monkeypatch.context() as patch:
        patch.setattr(
            file_contents.FileContents, "_fill", raising(OSError(number, os.strerror(number)))
        )
        workspace.write("a", "new")
    workspace.write("b", "new")
    why: Reason = "unreadable" if number == errno.EIO else "room"
    assert workspace.bring(one).missed == [("a", NotKept(why, 3))]
    assert workspace.state == {"a": "new", "b": "old"}


def again(workspace: Workspace, *, crashed: bool = False) -> Workspace:
    """Opens the same workspace as another process would."""
    if not crashed:
        workspace.versions.close()
    return Workspace(workspace.root.parent, load=True).load(workspace, crashed=crashed)


@pytest.mark.parametrize("has_room_again", [False, True])
def test_a_record_that_can_not_be_written_is_no_record_to_the_next_process(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, has_room_again: bool
) -> None:
    one = workspace.commit(a="old")
    with monkeypatch.context() as patch:
        fail_to_append(patch, workspace)
        workspace.write("a", "new")
    if has_room_again:
        workspace.commit()
    else:
        workspace.bring(one)
        assert workspace.state == {"a": "old"}
    assert (workspace.versions.ledger.trouble is None) is has_room_again
    later = again(workspace)
    assert (later.versions.ledger.known_from <= one) is later.whole is has_room_again
    if has_room_again:
        later.bring(one)
        assert later.state == {"a": "old"}


def fail_to_append(patch: pytest.MonkeyPatch, workspace: Workspace) -> None:
    """Makes the disk refuse further records."""
    write = os.write
    journal = (workspace.private / "files" / "journal").stat()

    def full(descriptor: int, data: bytes) -> int:
        if os.path.samestat(os.fstat(descriptor), journal):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    patch.setattr(os, "write", full)


def life(workspace: Workspace) -> None:
    """Does all kinds of changes, over some commits."""
    workspace.write("a", "one")
    workspace.make_folder("d")
    workspace.write("d/b", "two")
    workspace.commit()
    workspace.write("a", "three")
    workspace.rename("d", "e")
    workspace.link("l", "a")
    workspace.commit()
    workspace.remove("a")
    workspace.write("e/b", "four")


def knows_nothing(workspace: Workspace) -> bool:
    """True if no commit's files can be restored."""
    known_from = workspace.versions.ledger.known_from
    return not workspace.whole and all(commit < known_from for commit in workspace.commits)


DAMAGES: dict[str, Callable[[list[bytes], int, list[bytes]], list[bytes]]] = {
    "taken out": lambda lines, at, _: [*lines[:at], *lines[at + 1 :]],
    "doubled": lambda lines, at, _: [*lines[: at + 1], *lines[at:]],
    "exchanged": lambda lines, at, _: [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],
    "cut before": lambda lines, at, _: lines[:at],
    "of another": lambda lines, at, others: [*lines[:at], others[at], *lines[at + 1 :]],
    "flipped": lambda lines, at, _: [*lines[:at], flipped(lines[at]), *lines[at + 1 :]],
}


def flipped(line: bytes) -> bytes:
    data = bytearray(line)
    data[random.Random(line).randrange(len(data) - 1)] ^= 1
    return bytes(data)


@pytest.mark.parametrize("at", [0, 5, 11])
@pytest.mark.parametrize("act", DAMAGES)
def test_odd_journals_are_unused(workspace: Workspace, tmp_path: Path, at: int, act: str) -> None:
    """F9, F10 and case 49, for files: no line is skipped, and no wrong line is believed."""
    life(workspace)
    (tmp_path / "other").mkdir()
    with contextlib.closing(Workspace(tmp_path / "other")) as other:
        life(other)
    journals = [each.private / "files" / "journal" for each in (workspace, other)]
    workspace.versions.close()
    lines, others = (each.read_bytes().splitlines(keepends=True) for each in journals)
    assert len(lines) == len(others) == 13
    journals[0].write_bytes(b"".join(DAMAGES[act](lines, at, others)))
    assert knows_nothing(again(workspace))


def test_a_journal_cut_after_a_crash_is_noticed_by_its_contents(workspace: Workspace) -> None:
    life(workspace)
    path = workspace.private / "files" / "journal"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    assert knows_nothing(again(workspace, crashed=True))


def test_after_a_crash_and_another_start_of_the_machine_nothing_is_known(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is not forced to the disk with each record."""
    life(workspace)
    assert again(workspace, crashed=True).whole
    monkeypatch.setattr(file_ledger, "boot_id", lambda: "later")
    assert knows_nothing(again(workspace, crashed=True))


IN_PLACE: dict[str, Callable[[Path, Path], object]] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "link": lambda path, elsewhere: path.symlink_to(elsewhere),
    "another": lambda path, _: path.write_text("bad"),
    "empty": lambda path, _: path.touch(),
    "nothing": lambda path, _: None,
}


def put_in_place(path: Path, what: str) -> None:
    """Moves a file away, and puts something else, or nothing, in its place."""
    elsewhere = path.rename(path.parents[1] / "elsewhere")
    IN_PLACE[what](path, elsewhere)


@pytest.mark.parametrize("what", IN_PLACE)
def test_something_else_in_the_journals_place_is_not_used(workspace: Workspace, what: str) -> None:
    life(workspace)
    workspace.versions.close()
    put_in_place(workspace.private / "files" / "journal", what)
    assert knows_nothing(again(workspace))


@pytest.mark.parametrize("what", IN_PLACE)
def test_something_else_in_a_contents_place_stays_away(workspace: Workspace, what: str) -> None:
    one = workspace.commit(a="old")
    workspace.write("a", "new")
    workspace.versions.close()
    put_in_place(kept(workspace)[0], what)
    later = again(workspace)
    assert [path for path, _ in later.bring(one).missed] == ["a"]
    assert later.state == {"a": "new"}


def test_a_last_line_that_is_cut_off_is_left_out(workspace: Workspace) -> None:
    """The change that it describes had not happened."""
    life(workspace)
    one = workspace.commit()
    path = workspace.private / "files" / "journal"
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines()[-1][:-1])
    later = again(workspace, crashed=True)
    assert later.whole
    later.bring(one)
    assert later.state == later.states[one]


def test_another_version_is_not_read(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    life(workspace)
    monkeypatch.setattr(file_journal, "VERSION", 99)
    assert not again(workspace).whole


@pytest.mark.parametrize("cut", [False, True])
def test_a_content_that_is_damaged_is_never_brought_back(workspace: Workspace, cut: bool) -> None:
    one = workspace.commit(a="old text")
    workspace.write("a", "new")
    [content] = kept(workspace)
    times = content.stat()
    content.write_text("old" if cut else "old tExt")
    os.utime(content, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert workspace.bring(one).missed == [("a", NotKept("changed"))]
    assert workspace.state == {"a": "new"}


def test_a_file_that_others_write_to_under_its_new_name_is_told(workspace: Workspace) -> None:
    """The file was kept by reference, and the write went around the workspace."""
    one = workspace.commit(a="old")
    workspace.rename("a", "b")
    (workspace.root / "b").write_text("another")
    assert workspace.bring(one).missed == [("a", NotKept("changed"))]


def test_entries_come_before_changes(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed between the two leaves enough to go back."""
    one = workspace.commit(a="old")
    workspace._touch("a", Change.WRITE)
    later = again(workspace, crashed=True)
    (later.root / "a").write_text("new")
    later.bring(one)
    assert later.state == {"a": "old"}


def test_contents_that_no_commit_needs_are_swept(workspace: Workspace) -> None:
    (workspace.private / "files" / "77").write_text("left by a killed process")
    (workspace.private / "files" / ".put").write_text("half")
    later = again(workspace)
    assert kept(later) == []
    assert not (later.private / "files" / ".put").exists()


class Killed(BaseException):
    """Stands for the end of the process."""


def kill_at(monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Stop at the N-th operation on names or files."""
    left = [nth]

    def counted(function: object) -> object:
        def count(*args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return function(*args, **options)  # type: ignore[operator]

        return count

    for name in ("rename", "unlink", "mkdir", "rmdir", "link", "open", "write", "symlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.parametrize("nth", range(1, 60, 8))
def test_killed_while_files_are_brought_back_each_is_old_or_new(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    life(workspace)
    before, goal = workspace.state, workspace.states[2]
    with monkeypatch.context() as patch:
        kill_at(patch, nth)
        with contextlib.suppress(Killed):
            workspace.bring(2)
    for path, text in workspace.state.items():
        assert text in (before.get(path), goal.get(path)), path
    later = again(workspace)
    later.bring(2)
    assert later.state == goal
    later.bring(3)
    assert later.state == later.states[3]
