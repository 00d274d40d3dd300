"""The broker and the paths that a confined kernel keeps; `linux/confinement.py` closes all others.

A cell that got out of its instance through a flaw in wasmtime would be native code in this process.
So the process gives up the rights that it does not need: first files and outgoing connections,
before the guest's thread begins; then, once it listens, new sockets, programs and processes. The
broker, which stays unconfined, does work that needs such rights.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from traitlets.config import Config

from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.frontends.jupyter import startup
from wasm_kernel.linux.broker import Handlers, LocalBroker, ProcessBroker
from wasm_kernel.linux.confinement import Confinement, KeptPaths
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sessions.session import session_paths

IMPORTED_WHEN_CONFINED = (
    *("IPython", "ipykernel", "jupyter_client", "jupyter_core", "traitlets", "zmq", "tornado"),
    *("comm", "dateutil", "psutil", "wasmtime", "packaging", "structlog"),
    *("nh3", "tinycss2", "markdown_it", "mdit_py_plugins", "msgspec", "installer"),
    *("backports", "compression", "numpy", "threadpoolctl"),
)
"""The packages from which a kernel imports modules after it is confined."""


def open_broker(
    handlers: Handlers,
    confinement: Confinement,
    ending: contextlib.ExitStack,
    begin: Callable[[], None],
    at_end: Callable[[], None],
) -> LocalBroker | ProcessBroker:
    """Makes the broker; if this process will be confined, in another one that is not.

    Must come first: the broker should not have the files that the process opens later. Its process
    calls `begin` first, and `at_end` when the kernel has ended; `ending` closes it.
    """
    if not confinement.is_closing:
        begin()
        ending.callback(at_end)
        return LocalBroker(handlers)
    if startup.needs_bytecode():
        ending.callback(startup.write_bytecode().poll)  # ended long ago, or ends by itself
    broker = ProcessBroker.spawn(handlers, begin, at_end)
    ending.callback(broker.close)
    return broker


def kept_by(
    folders: SandboxFolders, policy: ExecutionPolicy, file: Path, config: Config
) -> KeptPaths:
    """Returns the paths that a kernel's process keeps.

    They include the connection file, its folder if the kernel writes it, and ipc sockets' folders.
    """
    kept = session_paths(folders, policy)
    made: tuple[Path, ...] = ()
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = (file.parent,)  # the file is written there, and removed at the end
    notebook = folders.notebook.beneath if folders.notebook is not None else None
    seen = () if notebook is None else (Path(f"/proc/self/fd/{notebook.folder.fd}"),)
    return replace(
        kept,
        writable=(*kept.writable, *made),
        readable=(*kept.readable, *seen),
        files=(file,),
        sockets=_socket_folders(file, config),
        packages=IMPORTED_WHEN_CONFINED,
    )


def _socket_folders(file: Path, config: Config) -> tuple[Path, ...]:
    """The folders of an ipc transport's sockets; its `ip` is the stem of their names."""
    listens = dict(config.get("Connection", {}))
    with contextlib.suppress(OSError, ValueError, TypeError):  # a later read reports the error
        listens |= json.loads(file.read_text(encoding="utf-8"))
    if listens.get("transport") != "ipc":
        return ()
    return (Path(str(listens.get("ip") or file)).absolute().parent, file.parent)
