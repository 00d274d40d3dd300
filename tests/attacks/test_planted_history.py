"""F11, F12, F18, F24, case 49: whatever lies in the place of the history's files.

A session whose folder somebody filled is opened, forked and exported at once and in bounded memory:
with what can be used of it, and a word on what can't.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peak import MB, Peak
from tests.private import private_of
from tests.sampled import sampled
from wasm_kernel import get_session_sandbox
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import NotRegular
from wasm_kernel.sessions.archive import export_session
from wasm_kernel.state import commit as commits

ID = "planted"
SECONDS = 60
NAMES = ["0000000002.commit", "0000000099.commit", "head.json", "origin.json"]
BIG = 8 << 30


def history_of(root: Path) -> Path:
    return private_of(root / ID) / "history"


@pytest.fixture
def saved(warm: None, tmp_path: Path) -> Path:
    """The root of a session that has a history of two cells."""
    with get_session_sandbox(ID, workspace_root=tmp_path) as sandbox:
        assert sandbox.execute("x = 1").success
        assert sandbox.execute("x = 2").success
    return tmp_path


def in_time(work: Callable[[], object]) -> None:
    """The work is done, or refused in words, before the test loses its patience."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(BIG)


def nested(path: Path) -> None:
    text = b"[" * 100_000
    if path.suffix == ".commit":
        text = commits._FIXED.pack(commits.MAGIC, commits.VERSION, len(text), 0) + text + bytes(4)
    path.write_bytes(text)


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def far(path: Path) -> None:
    digits = "1" + "0" * 400
    path.write_text(f'{{"at":{digits},"after":{digits},"last":{digits},"names":{{}},"files":{{}}}}')


def further(path: Path) -> None:
    """F23, F24: a number that a file's name could have, and no more after it."""
    path.write_text('{"at":1,"after":99999999999,"last":99999999999,"names":{},"files":{}}')


KINDS = [pipe, zeros, folder, huge, nested, garbage, far, further]


@pytest.mark.parametrize("name", sampled({name: name for name in NAMES}, 3))
@pytest.mark.parametrize("kind", sampled({kind.__name__: kind for kind in KINDS}, 2))
def test_a_session_is_exported_opened_and_saved_again_whatever_lies_there(
    saved: Path, kind: Callable[[Path], None], name: str
) -> None:
    place, archive = history_of(saved) / name, saved / "session.tar.gz"
    place.unlink(missing_ok=True)
    kind(place)
    peak = Peak()
    in_time(lambda: export_session(ID, archive, saved))
    assert archive.stat().st_size < 200 * MB

    def opened() -> None:
        with get_session_sandbox(ID, workspace_root=saved) as sandbox:
            result = sandbox.execute("y = 3; print(globals().get('x'))")
            assert result.success, result.error
            assert result.stdout.strip() in {"1", "2", "None"}
            sandbox.checkpoint("here")

    in_time(opened)
    assert peak.grown < 400 * MB
    with get_session_sandbox(ID, workspace_root=saved) as sandbox:
        result = sandbox.execute("print(y)")
        assert (result.stdout, "can't be saved" in result.stderr) == ("3\n", False)
        assert [one.name for one in sandbox.checkpoints() if one.name] == ["here"]


@pytest.mark.parametrize("name", ["lock", "alive", "anew", "forked", "history"])
@pytest.mark.parametrize("kind", [pipe, folder])
def test_a_session_opens_whatever_lies_beside_its_history(
    saved: Path, kind: Callable[[Path], None], name: str
) -> None:
    place = history_of(saved).parent / name
    if place.is_dir():
        trees.remove_tree(place)
    place.unlink(missing_ok=True)
    kind(place)

    def opened() -> None:
        with get_session_sandbox(ID, workspace_root=saved) as sandbox:
            result = sandbox.execute("print(globals().get('x'))")
            assert result.error is None
            begun_anew = name in {"anew", "history"}
            assert result.stdout == "2\n" or "variables" in result.stderr or begun_anew

    with contextlib.suppress(NotRegular):  # in words: nobody can tell whether it is in use
        in_time(lambda: export_session(ID, saved / "session.tar.gz", saved))
    in_time(opened)
