"""The broker and the paths that a confined front end keeps; `linux/confinement.py` closes others.

Cells run in a worker. The front end reads what the worker sends, has the keys of the connection,
and cleans outputs. A flaw in that work would let a cell's code into this process. So the process
gives up the rights that it does not need: first files and outgoing connections, before it has a
second thread; then, once it listens, new sockets, programs and processes. The broker, which stays
unconfined, does work that needs such rights.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from traitlets.config import Config

from wasm_kernel.engine.flavours import Flavour
from wasm_kernel.linux.broker import Handlers, ProcessBroker
from wasm_kernel.linux.confinement import KeptPaths
from wasm_kernel.service.fork_process import ForkProcess
from wasm_kernel.service.fork_server import ForkServer
from wasm_kernel.service.worker_supply import WorkerDesk, WorkerSupply

IMPORTED_WHEN_CONFINED = (
    *("IPython", "ipykernel", "jupyter_client", "jupyter_core", "traitlets", "zmq", "tornado"),
    *("comm", "dateutil", "psutil", "packaging", "structlog"),
    *("nh3", "tinycss2", "markdown_it", "mdit_py_plugins", "msgspec"),
    *("backports", "compression"),
)
"""The packages from which a front end imports modules after it is confined."""


def open_broker(
    handlers: Handlers,
    nursery: ForkProcess | None,
    ending: contextlib.ExitStack,
    *,
    language: str,
    flavours: Sequence[Flavour],
    begin: Callable[[], None],
    at_end: Callable[[], None],
) -> tuple[ProcessBroker, WorkerSupply]:
    """Makes the broker, in another process, and the supply of workers, which asks it.

    Must come first: the broker should not have the files that the process opens later. Its process
    calls `begin` first, and `at_end` when the kernel has ended; `ending` closes it. Workers are
    forked from the `nursery`, or from a process of the kernel's own, with a guest of a `language`
    and the first compiled one of the `flavours`.
    """
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve_workers() -> None:
        own.close()
        serving = WorkerDesk(theirs, ForkServer(nursery, has_spares=False), language, flavours)
        desk.append(threading.Thread(target=serving.run, daemon=True))
        desk[0].start()
        begin()

    def end() -> None:
        at_end()
        desk[0].join()  # it ends the last worker, if no other process does

    desk: list[threading.Thread] = []
    broker = ProcessBroker.spawn(handlers, serve_workers, end)
    theirs.close()
    if nursery is not None:  # this process must not ask for workers without walls
        nursery.close()
    ending.callback(broker.close)
    supply = WorkerSupply(own)
    ending.callback(supply.close)
    return broker, supply


def kept_by(file: Path, config: Config, read: tuple[Path, ...] = ()) -> KeptPaths:
    """Returns the paths that a front end keeps, none of them in its session's folders.

    They are the connection file, its folder if the kernel writes it, ipc sockets' folders, and the
    folders that it has to `read`.
    """
    made: tuple[Path, ...] = ()
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = (file.parent,)  # the file is written there, and removed at the end
    return KeptPaths(
        writable=made,
        readable=read,
        files=(file,),
        sockets=_socket_folders(file, config),
        packages=IMPORTED_WHEN_CONFINED,
    )


def _socket_folders(file: Path, config: Config) -> tuple[Path, ...]:
    """The folders of an ipc transport's sockets; its `ip` is the stem of their names."""
    listens = dict(config.get("KernelConnection", {}))
    with contextlib.suppress(OSError, ValueError, TypeError):  # a later read reports the error
        listens |= json.loads(file.read_text(encoding="utf-8"))
    if listens.get("transport") != "ipc":
        return ()
    return (Path(str(listens.get("ip") or file)).absolute().parent, file.parent)
