"""The fork server with hostile code in each worker: see `test_workers.py`.

When a cell makes the file `probe`, native code of the worker's own process tries what an escaped
guest would, and writes down the results.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.linux.probed_kernel import PRIVATE, TRIES, watch
from wasm_kernel.execution.interfaces import SessionHooks
from wasm_kernel.execution.session_guest import SessionGuest
from wasm_kernel.service import fork_loop, worker


def spoil(private: Path) -> None:
    """Overwrites all files in the session's private folder, and restores their times."""
    paths = [Path(folder, name) for folder, _, names in os.walk(private) for name in names]
    for path in paths:  # `rglob` would fail at a folder that is removed
        with suppress(FileNotFoundError):  # a commit is being written
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size:
                with path.open("rb") as file:
                    os.fchmod(file.fileno(), 0o600)
                with path.open("r+b") as file:
                    file.write(b"spoilt" * (found.st_size // 6))
                    file.flush()
                    os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def probed(language: Any, hooks: SessionHooks, *rest: Any, **options: Any) -> SessionGuest:
    """Makes the real guest, beside a thread that waits for the order to probe."""
    TRIES["what its session has"] = lambda: spoil(hooks.folders.private.path)
    threading.Thread(target=watch, args=(hooks.folders.real,), daemon=True).start()
    return SessionGuest(language, hooks, *rest, **options)


def main(line: int, owner: int) -> None:
    TRIES["the key of owners"] = (PRIVATE / ".service-key").read_bytes
    vars(worker)["SessionGuest"] = probed
    fork_loop.main(line, owner)
