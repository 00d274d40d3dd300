"""`.metadata.json`: replaced as a whole, never back in time; anything else is left alone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.aged import metadata_of
from tests.faces import raising
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import metadata, staging
from wasm_kernel.sessions.metadata import Metadata, MetadataCorrupted

ID = "abc-123"
THEN = datetime(2024, 2, 29, 12, 30, 45, 678901, tzinfo=UTC)
WHOLE = Metadata.new(ID, THEN).render()
ROOT = Path(__file__).resolve().parents[2]
TOUCHING = """
import sys, time
from pathlib import Path
from wasm_kernel.sessions import metadata
from wasm_kernel.linux.folders import Folder
name, folder, private = Path(sys.argv[1]).name, Folder.open(sys.argv[1]), Folder.open(sys.argv[2])
written = None
for _ in range(50):
    written = metadata.touch(folder, name, private, written)
    time.sleep(0.002)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / ID).mkdir()
    return tmp_path / ID


@pytest.fixture(params=["near", "far"])
def private(tmp_path: Path, request: pytest.FixtureRequest) -> Path | None:
    """The session's private folder; None if it lies in another file system."""
    (tmp_path / "private").mkdir()
    return tmp_path / "private" if request.param == "near" else None


def touch(
    workspace: Path, private: Path | None, before: metadata.WrittenMetadata | None = None
) -> metadata.WrittenMetadata | None:
    with ExitStack() as held:
        folder = held.enter_context(Folder.open(workspace))
        spare = None if private is None else held.enter_context(Folder.open(private))
        return metadata.touch(folder, ID, spare, before)


def create(workspace: Path) -> None:
    with Folder.open(workspace) as folder:
        staging.write_metadata(folder, ID, {})


def left_aside(workspace: Path, private: Path | None) -> list[str]:
    beside = [path.name for path in workspace.iterdir() if path.name != ".metadata.json"]
    return beside + ([] if private is None else [path.name for path in private.iterdir()])


@pytest.fixture
def file(workspace: Path) -> Path:
    """The metadata file of a session that was made a while ago."""
    (workspace / ".metadata.json").write_bytes(WHOLE)
    return workspace / ".metadata.json"


def test_time_goes_forward_also_where_the_clock_steps_back(
    file: Path, workspace: Path, private: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [THEN]
    for clock in (
        THEN.replace(microsecond=0) + timedelta(days=1),
        THEN - timedelta(days=365),
        THEN,
        THEN,
    ):
        monkeypatch.setattr(metadata, "now", lambda clock=clock: clock)
        assert touch(workspace, private)
        text = metadata_of(file.parent)["updated_at"]
        assert len(text) == len("2024-02-29T12:30:45.000000+00:00")
        seen.append(datetime.fromisoformat(text))
    assert seen == sorted(set(seen))
    assert metadata_of(file.parent)["created_at"] == THEN.isoformat(timespec="microseconds")


def test_fields_of_others_are_kept(file: Path, workspace: Path, private: Path | None) -> None:
    written = touch(workspace, private)
    file.write_text(json.dumps({**metadata_of(file.parent), "note": "kept"}))
    written = touch(workspace, private, written)
    assert metadata_of(file.parent)["note"] == "kept"
    before = metadata_of(file.parent)["updated_at"]
    assert touch(workspace, private, written)
    assert metadata_of(file.parent)["note"] == "kept"
    assert metadata_of(file.parent)["updated_at"] > before


def test_a_file_that_was_filled_while_it_was_read_is_read_again(
    file: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes swap the file out and in again: the same file then has other content."""
    pread, torn = os.pread, [b"}, the end of a longer content"]

    def once_torn(fd: int, length: int, at: int) -> bytes:
        return pread(fd, length, at) + (torn.pop() if torn else b"")

    monkeypatch.setattr(os, "pread", once_torn)
    with Folder.open(workspace) as folder:
        assert metadata.read(folder, ID) is not None
    assert not torn


def test_two_processes_lose_nothing(file: Path, workspace: Path, tmp_path: Path) -> None:
    file.write_text(json.dumps({**metadata_of(file.parent), "note": "kept"}))
    command = [sys.executable, "-c", TOUCHING, str(workspace), str(tmp_path)]
    writers = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    seen = []
    while any(writer.poll() is None for writer in writers):
        with Folder.open(workspace) as folder:
            found = metadata.read(folder, ID)  # never torn, never gone
        assert found is not None
        assert found.fields["note"] == "kept"
        seen.append(found.updated_at)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe{}",
        WHOLE.replace(b'"version": 1', b'"version": 2'),
        WHOLE.replace(b'"version": 1', b'"version": true'),
        WHOLE.replace(b'"version": 1', b'"version": 1, "x": NaN'),
        WHOLE.replace(b'"version": 1', b'"version": 1, "x": 1e999'),
        WHOLE.replace(b'"version": 1', b'"version": 1, "x": ' + b"9" * 5000),
        WHOLE.replace(b'"version": 1', b'"version": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000),
        WHOLE.replace(b"abc-123", b"abc-124"),
        WHOLE.replace(b"2024-02-29", b"2023-02-29"),
        WHOLE.replace(b'"2024-02-29T12:30:45.678901+00:00"', b"1709209845"),
        WHOLE.replace(b"2024-02-29T12:30:45.678901+00:00", b"9999-12-31T23:59:59.999999+00:00"),
        WHOLE.replace(b"2024-02-29T12:30:45.678901+00:00", b"0001-01-01T00:00:00.000000+23:59"),
        WHOLE + b" " * (1024 * 1024),
    ],
)
def test_invalid_metadata_is_left_unchanged(
    file: Path, workspace: Path, private: Path | None, content: bytes
) -> None:
    file.write_bytes(content)
    with pytest.raises(MetadataCorrupted) as caught:
        touch(workspace, private)
    assert file.read_bytes() == content
    assert str(workspace) not in str(caught.value)
    assert left_aside(workspace, private) == []


def _link(file: Path) -> None:
    (file.parent.parent / "elsewhere").write_bytes(WHOLE)
    file.symlink_to(file.parent.parent / "elsewhere")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, _link])
def test_special_files_are_left_as_they_are(
    workspace: Path, private: Path | None, make: Callable[[Path], None]
) -> None:
    file = workspace / ".metadata.json"
    make(file)
    before = file.lstat()
    with pytest.raises(MetadataCorrupted, match="not a regular file"):
        touch(workspace, private)
    with pytest.raises(FileExistsError):
        create(workspace)
    after = file.lstat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    elsewhere = workspace.parent / "elsewhere"
    assert not elsewhere.exists() or elsewhere.read_bytes() == WHOLE


LEFT: dict[str, Callable[[Path], object]] = {
    "long": lambda file: file.write_bytes(b"x" * 100_000),
    "a link": lambda file: file.symlink_to(file.parent.parent.parent / "victim"),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_leftovers_of_an_earlier_writer_do_not_matter(
    file: Path, workspace: Path, private: Path | None, make: Callable[[Path], object]
) -> None:
    if private is None:
        return
    left = private / "metadata.spare"
    make(left)
    assert touch(workspace, private)
    assert metadata_of(file.parent)["session_id"] == ID
    assert not (workspace.parent / "victim").exists()
    assert stat.S_ISREG(left.lstat().st_mode)


def test_a_disk_that_fails_leaves_the_old_file(
    file: Path, workspace: Path, private: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fdopen", raising(OSError(5, "Input/output error")))
    monkeypatch.setattr(metadata, "read", lambda *args: Metadata.parse(WHOLE, ID))
    with pytest.raises(OSError, match="Input/output"):
        touch(workspace, private)
    assert file.read_bytes() == WHOLE


def test_a_backup_by_hard_links_keeps_what_it_has(
    file: Path, workspace: Path, private: Path | None, tmp_path: Path
) -> None:
    kept = []
    for number in range(4):
        backup = tmp_path / f"backup-{number}"
        backup.hardlink_to(file)
        kept.append((backup, backup.read_bytes()))
        touch(workspace, private)
        touch(workspace, private)
    assert len({content for _, content in kept}) == 4
    assert all(backup.read_bytes() == content for backup, content in kept)


@pytest.mark.parametrize(
    ("name", "replaced"),
    [
        ("wait_lock", raising(OSError(95, "Operation not supported"))),
        ("swap_names", lambda *args: False),
    ],
)
def test_a_file_system_without_locks_or_exchanges_gets_a_rename(
    file: Path,
    workspace: Path,
    private: Path | None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    replaced: object,
) -> None:
    monkeypatch.setattr(metadata, name, replaced)
    before = file.stat().st_ino, file.read_bytes()
    assert touch(workspace, private)
    assert file.stat().st_ino != before[0] and file.read_bytes() != before[1]
    assert touch(workspace, private)
    assert metadata_of(file.parent)["session_id"] == ID
    assert left_aside(workspace, private) == []


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-29T12:30:45.678901Z",
        "2024-02-29T12:30:45.678901",
        "2024-02-29T14:30:45.678901+02:00",
    ],
)
def test_times_of_other_writers_are_understood(text: str) -> None:
    content = WHOLE.replace(b"2024-02-29T12:30:45.678901+00:00", text.encode())
    assert Metadata.parse(content, ID).updated_at == THEN
