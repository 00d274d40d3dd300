"""A process can't use files and connections that it gave up, in this thread and in later ones."""

from __future__ import annotations

from pathlib import Path

from tests.linux.inside import TRIED, needs_walls, said_by

pytestmark = needs_walls

_SHUT = f"""{TRIED}
import os, socket, sys, threading
from pathlib import Path
from wasm_kernel.linux.confinement import Confinement, KeptPaths

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


REFUSED = "PermissionError"
CALLS = {
    "(kept / 'new').write_text('x')": "done",
    "(kept / 'deep').mkdir()": "done",
    "(kept / 'new').rename(kept / 'deep' / 'new')": "done",
    "(kept / 'deep' / 'link').symlink_to('new')": "done",
    "os.truncate(kept / 'deep' / 'new', 0)": "done",
    "(kept / 'deep' / 'new').unlink()": "done",
    "__import__('xml.dom.minidom')": "done",
    "(other / 'file').read_text()": "done",
    "list(other.iterdir())": "done",
    "(other / 'file').write_text('x')": REFUSED,
    "(other / 'file').unlink()": REFUSED,
    "(kept / 'file').rename(other / 'stolen')": REFUSED,
    "(secret / 'file').read_text()": REFUSED,
    "list(secret.iterdir())": REFUSED,
    "(secret / 'file').write_text('x')": REFUSED,
    "os.truncate(secret / 'file', 0)": REFUSED,
    "(kept / 'link').symlink_to(secret / 'file')": "done",
    "(kept / 'link').read_text()": REFUSED,
    "os.link(secret / 'file', kept / 'hard')": "OSError",
    "list(Path.home().iterdir())": REFUSED,
    "socket.create_connection(listening.getsockname())": REFUSED,
    "os.kill(os.getppid(), 0)": REFUSED,
    "open(f'/proc/{os.getppid()}/environ').read()": REFUSED,
}


def test_what_is_kept_can_be_reached_and_nothing_else(tmp_path: Path) -> None:
    code = _SHUT + "\n".join(f"print(tried(lambda: {call}))" for call in CALLS)
    assert dict(zip(CALLS, said_by(code, *folders(tmp_path)), strict=True)) == CALLS


def test_a_later_thread_is_within_the_walls_too(tmp_path: Path) -> None:
    ran = "threading.Thread(target=lambda: print(tried((secret / 'file').read_text)))"
    code = f"{_SHUT}\nthread = {ran}\nthread.start()\nthread.join()"
    assert said_by(code, *folders(tmp_path)) == ["PermissionError"]
