"""F11, F12, F18, F24, case 49: other things in the place of the history's files.

The session is opened, forked and exported without delay and in bounded memory. It keeps what can be
used, and says what can't.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faces import process_of
from tests.peak import MB, Peak, of_process
from tests.sampled import sampled
from tests.stored import content_of, state_of
from wasm_kernel import get_session_sandbox
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import NotRegular
from wasm_kernel.sessions.archives import export_session

ID = "planted"
SECONDS = 60
NAMES = ["contents", "index", "one content", "one too many", "unused"]
BIG = 8 << 30


def place_of(root: Path, name: str) -> Path:
    """The path at which something is planted."""
    state = state_of(root / ID)
    if name == "one content":
        return content_of(state, 2)
    return state / "contents" / ("0" * 64) if name == "one too many" else state / name


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The root of a session that has a history of two cells."""
    with get_session_sandbox(ID, workspace_root=tmp_path) as sandbox:
        assert sandbox.execute("x = 1").success
        assert sandbox.execute("x = 2").success
    return tmp_path


def in_time(work: Callable[[], object]) -> None:
    """The work must end, or be refused in words, before the test loses its patience."""
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


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, BIG)


DIGITS = b"1" + b"0" * 400
KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: (path / "inside").mkdir(parents=True),
    "huge": huge,
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    # F23, F24: several lines, with numbers that no commit has
    "numbers": lambda path: path.write_bytes(
        b'{"index":2,"image":"x","salt":"%s"}\n' % DIGITS + b"%s x {}\n" % DIGITS
    ),
}


@pytest.mark.parametrize("name", sampled({name: name for name in NAMES}, 6))
@pytest.mark.parametrize("kind", sampled(KINDS, 4))
def test_a_session_is_exported_opened_and_saved_again_whatever_lies_there(
    saved: Path, kind: Callable[[Path], object], name: str
) -> None:
    place, archive = place_of(saved, name), saved / "session.tar.gz"
    if place.is_dir():
        trees.remove_tree(place)
    place.unlink(missing_ok=True)
    kind(place)
    peak = Peak()
    in_time(lambda: export_session(ID, archive, saved))
    assert archive.stat().st_size < 200 * MB

    def opened() -> None:
        with get_session_sandbox(ID, workspace_root=saved) as sandbox:
            result = sandbox.execute("y = 3; print(globals().get('x'))")
            assert result.success, result.error
            assert of_process(process_of(sandbox), "VmHWM") < 400 * MB
            assert result.stdout.strip() in {"1", "2", "None"}
            sandbox.checkpoint("here")

    in_time(opened)
    assert peak.grown < 400 * MB
    with get_session_sandbox(ID, workspace_root=saved) as sandbox:
        result = sandbox.execute("print(y)")
        assert (result.stdout, "can't be saved" in result.stderr) == ("3\n", False)
        assert [one.name for one in sandbox.checkpoints() if one.name] == ["here"]


@pytest.mark.parametrize("name", ["lock", "holder", "state"])
@pytest.mark.parametrize("kind", ["pipe", pytest.param("folder", marks=pytest.mark.soak)])
def test_a_session_opens_whatever_lies_beside_its_history(
    saved: Path, kind: str, name: str
) -> None:
    place = state_of(saved / ID).parent / name
    if place.is_dir():
        trees.remove_tree(place)
    place.unlink(missing_ok=True)
    KINDS[kind](place)

    def opened() -> None:
        with get_session_sandbox(ID, workspace_root=saved) as sandbox:
            result = sandbox.execute("print(globals().get('x'))")
            assert result.error is None
            begun_anew = name == "state"
            assert result.stdout == "2\n" or "variables" in result.stderr or begun_anew

    with contextlib.suppress(NotRegular):  # in words: its lock can't be read
        in_time(lambda: export_session(ID, saved / "session.tar.gz", saved))
    in_time(opened)
