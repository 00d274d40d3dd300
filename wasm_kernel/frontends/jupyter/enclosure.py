"""The walls around the kernel's own process, and the porter who stays outside of them.

A cell that got out of its instance through a flaw in wasmtime would be native code in this process.
So the process gives up what it does not need: first the files and outgoing connections, before the
guest's thread begins; then, once it listens, new sockets, programs and processes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets.config import Config

from wasm_kernel.engine.cache import default_folder
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.state_folder import notes
from wasm_kernel.frontends.jupyter import bytecode, magics
from wasm_kernel.frontends.jupyter.forking import Outside
from wasm_kernel.guests.python.files import runtimes_folder
from wasm_kernel.guests.python.packages.outside import through
from wasm_kernel.linux import broker, confinement
from wasm_kernel.linux.broker import Duty, Porter
from wasm_kernel.linux.confinement import ConfinementState, KeptPaths
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sessions.prune_errand import Prune, pruner

if TYPE_CHECKING:
    from subprocess import Popen

    from wasm_kernel.guests.python.language import Builder
    from wasm_kernel.guests.python.packages.fetch import Fetch
    from wasm_kernel.sessions.founding import Founding
    from wasm_kernel.sessions.session import Session

LATER = (
    *("IPython", "ipykernel", "jupyter_client", "jupyter_core", "traitlets", "zmq", "tornado"),
    *("comm", "dateutil", "psutil", "wasmtime", "packaging", "structlog"),
    *("nh3", "tinycss2", "markdown_it", "mdit_py_plugins", "msgspec", "installer"),
)
"""The packages that a kernel imports when its walls stand already, or parts of them."""

OFF, AUTO, REQUIRED = "off", "auto", "required"
_PREPARE = "prepare"


class ConfinementError(WasmKernelError):
    """The kernel's process can't be confined here, and it was told to be; it was not started."""


class Enclosure:
    """The process's walls. The main thread's own; the porter may be asked by any thread.

    Attributes:
        walls: Which walls stand, in words for people.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._porter: Porter | None = None
        self._writer: Popen[bytes] | None = None
        self.walls = ConfinementState("off", "off", standing=False)

    def hire(self, duties: Mapping[str, Duty]) -> None:
        """Leave somebody outside. First of all: what the process opens later is not the porter's.

        Raises:
            ConfinementError: confinement is required, and this machine has none.
        """
        if self._wanted == OFF:
            return
        possible = confinement.possible()
        if possible.standing:
            if bytecode.missing():
                self._writer = bytecode.write()
            self._porter = broker.hire({_PREPARE: _prepare, **duties})
        else:
            self._failed(f"{possible.files}; {possible.calls}")

    def close_files(self, kept: KeptPaths) -> None:
        """Give up all files but what is kept; no other thread may run yet.

        Raises:
            ConfinementError: confinement is required, and the system refuses.
        """
        if self._porter is not None:
            try:
                self.walls = ConfinementState(
                    confinement.close_files(kept), "not yet", standing=False
                )
            except OSError as problem:
                self.end()
                self._failed(f"Landlock: {problem}")

    def close_calls(self) -> None:
        """Give up new sockets, programs and processes; the kernel listens.

        Raises:
            ConfinementError: confinement is required, and the system refuses.
        """
        if self._porter is not None:
            try:
                self.walls = ConfinementState(
                    self.walls.files, confinement.close_calls(), standing=True
                )
            except OSError as problem:
                self.walls = ConfinementState(
                    self.walls.files, f"not closed: {problem}", standing=False
                )
                if self._wanted == REQUIRED:
                    raise ConfinementError(_REFUSED.format(why=f"seccomp: {problem}")) from problem

    def _failed(self, why: str) -> None:
        if self._wanted == REQUIRED:
            raise ConfinementError(_REFUSED.format(why=why))
        self.walls = ConfinementState(f"not closed: {why}", "not closed", standing=False)

    @property
    def builder(self) -> Builder | None:
        """Who fills the cache in place of this process; None where it does so itself."""
        outside = self._porter
        if outside is None:
            return None
        return lambda metered, tell: void(outside.ask(_PREPARE, {"metered": metered}, tell))

    @property
    def fetch(self) -> Fetch | None:
        """Who fetches packages in place of this process; None where it does so itself."""
        return None if self._porter is None else through(self._porter)

    def founding(self, session: Session) -> Founding:
        """Who makes sessions for forks of one: the porter, or this process where it may."""
        if self._porter is not None:
            return Outside(self._porter)
        from wasm_kernel.sessions.founding import Founder

        return Founder(session.root, session.id, session.logger, session.private_root)

    def prune(self, session: Session) -> Prune:
        """Who prunes sessions: the porter, where there are walls."""
        if self._porter is not None:
            return magics.through(self._porter)
        return pruner(session.root, session.private_root)

    def end(self) -> None:
        """Let the porter go; idempotent."""
        if self._porter is not None:
            self._porter.close()
            self._porter = None
        if self._writer is not None:
            self._writer.poll()  # long done; where it is not, it ends by itself


_REFUSED = (
    "The kernel's own process can't be confined on this machine ({why}), and "
    "WasmKernel.confinement=required asks for it. No kernel was started. Use auto to start it "
    "without."
)


def void(_: object) -> None:
    """Nobody is told more than that it is done."""


def _prepare(fields: Mapping[str, Any], tell: broker.Tell, _: broker.Stopped) -> Mapping[str, Any]:
    from wasm_kernel.guests.python.language import prepare

    prepare(bool(fields["metered"]), tell)
    return {}


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
