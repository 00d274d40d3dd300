"""A process can't use files and connections that it gave up, in this thread and in later ones."""

from __future__ import annotations

from pathlib import Path

from tests.linux.inside import needs_walls, said_by

pytestmark = needs_walls

_SHUT = """
import os, socket, sys, threading
from pathlib import Path
from wasm_kernel.linux.confinement import Confinement, KeptPaths

def tried(what):
    try:
        what()
    except OSError as problem:
        return type(problem).__name__
    return "done"

kept, other, secret = map(Path, sys.argv[1:4])
listening = socket.create_server(("127.0.0.1", 0))
Confinement("required").close_files(KeptPaths(writable=(kept,), readable=(other,)))
"""


def folders(root: Path) -> list[Path]:
    made = [root / name for name in ("kept", "read", "secret")]
    for folder in made:
        folder.mkdir()
        (folder / "file").write_text("text")
    return made


def tries(root: Path, *lines: str) -> list[str]:
    return said_by(
        _SHUT + "\n".join(f"print(tried(lambda: {line}))" for line in lines), *folders(root)
    )


def test_what_is_kept_can_be_written_moved_and_removed(tmp_path: Path) -> None:
    assert (
        tries(
            tmp_path,
            "(kept / 'new').write_text('x')",
            "(kept / 'deep').mkdir()",
            "(kept / 'new').rename(kept / 'deep' / 'new')",
            "(kept / 'deep' / 'link').symlink_to('new')",
            "os.truncate(kept / 'file', 0)",
            "(kept / 'file').unlink()",
            "__import__('xml.dom.minidom')",
        )
        == ["done"] * 7
    )


def test_what_is_only_read_can_not_be_changed(tmp_path: Path) -> None:
    assert tries(
        tmp_path,
        "(other / 'file').read_text()",
        "list(other.iterdir())",
        "(other / 'file').write_text('x')",
        "(other / 'file').unlink()",
        "(kept / 'file').rename(other / 'stolen')",
    ) == ["done", "done", *["PermissionError"] * 3]


def test_everything_else_can_neither_be_read_nor_written(tmp_path: Path) -> None:
    assert tries(
        tmp_path,
        "(secret / 'file').read_text()",
        "list(secret.iterdir())",
        "(secret / 'file').write_text('x')",
        "os.truncate(secret / 'file', 0)",
        "(kept / 'link').symlink_to(secret / 'file')",
        "(kept / 'link').read_text()",
        "os.link(secret / 'file', kept / 'hard')",
        "list(Path.home().iterdir())",
    ) == [*["PermissionError"] * 4, "done", "PermissionError", "OSError", "PermissionError"]


def test_no_connection_is_made_and_no_process_signalled_or_looked_into(tmp_path: Path) -> None:
    assert (
        tries(
            tmp_path,
            "socket.create_connection(listening.getsockname())",
            "os.kill(os.getppid(), 0)",
            "open(f'/proc/{os.getppid()}/environ').read()",
        )
        == ["PermissionError"] * 3
    )


def test_a_later_thread_is_within_the_walls_too(tmp_path: Path) -> None:
    ran = "threading.Thread(target=lambda: print(tried((secret / 'file').read_text)))"
    code = f"{_SHUT}\nthread = {ran}\nthread.start()\nthread.join()"
    assert said_by(code, *folders(tmp_path)) == ["PermissionError"]
