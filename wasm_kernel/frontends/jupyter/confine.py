"""What a kernel's process keeps within its walls, which `linux/confinement.py` closes.

A cell that got out of its instance through a flaw in wasmtime would be native code in this process.
So the process gives up what it does not need: first the files and outgoing connections, before the
guest's thread begins; then, once it listens, new sockets, programs and processes. What reaches
beyond, the broker does, which stays outside.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from traitlets.config import Config

from wasm_kernel.engine.cache import default_folder
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.state_folder import notes
from wasm_kernel.guests.python.files import runtimes_folder
from wasm_kernel.linux.confinement import KeptPaths
from wasm_kernel.policy import ExecutionPolicy

LATER = (
    *("IPython", "ipykernel", "jupyter_client", "jupyter_core", "traitlets", "zmq", "tornado"),
    *("comm", "dateutil", "psutil", "wasmtime", "packaging", "structlog"),
    *("nh3", "tinycss2", "markdown_it", "mdit_py_plugins", "msgspec", "installer"),
)
"""The packages that a kernel imports when its walls stand already, or parts of them."""


def kept_by(
    folders: SandboxFolders, policy: ExecutionPolicy, file: Path, config: Config
) -> KeptPaths:
    """What a kernel's process goes on using.

    Args:
        folders: Its session's folders.
        policy: Says which other folders the guest sees.
        file: The connection file.
        config: Says how the kernel listens, where the file does not.
    """
    own = (folders.real, folders.private_path)
    writable = [*own, *(mount.host for mount in policy.mounts if mount.writable)]
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable.append(file.parent)  # it is written there, and removed at the end
    cached = default_folder()
    with contextlib.suppress(OSError):  # whoever fills it says what is wrong
        cached.mkdir(mode=0o700, parents=True, exist_ok=True)  # nothing is kept that is not there
    return KeptPaths(
        writable=tuple(writable),
        readable=(cached, runtimes_folder(), *_noted_places(), *_read_only(policy)),
        files=(file,),
        sockets=_socket_folders(file, config),
        packages=LATER,
    )


def _noted_places() -> Iterator[Path]:
    """What says which folders in its mounts are private, or sessions', by now."""
    for folder in notes():
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield folder


def _read_only(policy: ExecutionPolicy) -> Iterator[Path]:
    return (mount.host for mount in policy.mounts if not mount.writable)


def _socket_folders(file: Path, config: Config) -> tuple[Path, ...]:
    """Where an ipc transport's sockets are made: its `ip` is the stem of their names."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = {}
    if not isinstance(told, dict):
        told = {}
    listens = {**config.get("Connection", {}), **told}
    if listens.get("transport") != "ipc":
        return ()
    return (Path(str(listens.get("ip") or file)).absolute().parent, file.parent)
