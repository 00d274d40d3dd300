"""A fast start: imports that a kernel does without, and bytecode for those that it needs; and how
far a slow one is.

The kernel needs a few modules of ipykernel and jupyter_client, and `ipykernel.kernelbase` needs one
exception class of `IPython.core.error`. But importing any module of a package runs the package's
`__init__` first, and these import everything they have: managers and clients of kernels, a shell
that this process never has (the guest has its own). Together that took a tenth of a kernel's start,
and ssl, for an asyncio that makes no connections, a fiftieth.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import cache_from_source, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.frontends.jupyter.settings import RUNTIME

# -- imports that a start does without

if TYPE_CHECKING:
    import asyncio
    import subprocess
    from concurrent.futures import Future

_guard = threading.RLock()  # a package's own `__init__` may look names up in it


def lazily(name: str) -> None:
    """Makes a package's modules importable without running its `__init__`.

    That runs when a name is first looked up in the package itself, so whoever imports the package
    finds all of it. Does nothing if the package is loaded already, or not found. Main thread,
    before others import anything.
    """
    spec = PathFinder.find_spec(name)
    if name in sys.modules or spec is None or spec.submodule_search_locations is None:
        return
    package, loader = module_from_spec(spec), spec.loader
    assert loader is not None

    def complete(attribute: str) -> Any:
        with _guard:
            if vars(package).pop("__getattr__", None) is not None:
                loader.exec_module(package)
        return getattr(package, attribute)

    vars(package)["__getattr__"] = complete
    sys.modules[name] = package


@contextmanager
def without(name: str) -> Iterator[None]:
    """Hides a module in the block: what is imported there does without it, also afterwards.

    Does nothing if the module is loaded already. Main thread, before others import anything.
    """
    absent: Any = None  # the import system's mark for a module that does not exist
    if name in sys.modules:
        yield
        return
    sys.modules[name] = absent
    try:
        yield
    finally:
        del sys.modules[name]


# -- bytecode

_IMPORTS = "import wasm_kernel.frontends.jupyter.kernel, wasm_kernel.frontends.jupyter.connection"
_IMPORTS += ", wasm_kernel.execution.create"
_IMPORTS += f", wasm_kernel.guests.{RUNTIME.value}.language"


def needs_bytecode() -> bool:
    """Returns whether bytecode is missing and can be written, judged by the last module of a start.

    Python compiles a module when it is first imported, and keeps the bytecode beside it. Some
    installers do that themselves (pip), others leave it to Python (uv, an editable install). A
    confined kernel can write nothing there, so each of its starts would compile everything anew, at
    a third of the start's time. So a process outside does it once, while the first kernel starts.
    """
    last = Path(__file__).with_name("kernel.py")
    kept = cache_from_source(str(last))
    return not (
        sys.dont_write_bytecode or Path(kept).exists() or not os.access(last.parent, os.W_OK)
    )


def write_bytecode() -> subprocess.Popen[bytes]:
    """Starts another interpreter that imports what a kernel does; does not wait for it.

    It ends with this process: the next start goes on from there.
    """
    import subprocess

    from wasm_kernel.linux.broker import tied_command

    quiet = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 - the command is fixed
        tied_command(_IMPORTS), stdin=quiet, stdout=quiet, stderr=quiet
    )


# -- a slow start

QUIET_SECONDS = 1.0  # seconds of silence; a warm start needs far less
PROGRESS_SECONDS = 5.0  # seconds between two lines


class StartProgress:
    """The progress of the sandbox's start, shown in the cell that waits for it.

    A first start on a cold cache takes a minute or two. Any thread may `tell`; the event loop runs
    `narrate`.
    """

    def __init__(self) -> None:
        self._latest = "starting the sandbox"
        self._guard = threading.Lock()

    def tell(self, sentence: str) -> None:
        """Remembers how far the start is."""
        self._latest = sentence

    async def narrate(
        self, started: Future[None], cell: asyncio.Future[Any], say: Callable[[str], None]
    ) -> None:
        """Calls `say` now and then with the progress, in one line, until `started` or `cell` ends.

        The line ends with the start, on the thread that starts, so the cell's own output comes
        after it.
        """
        import asyncio

        width, is_over = 0, False

        def end() -> None:
            nonlocal is_over
            with self._guard:
                if width and not is_over:
                    say("\n")
                is_over = True

        started.add_done_callback(lambda _: end())
        begun, patience = time.monotonic(), QUIET_SECONDS
        while not (started.done() or cell.done()):
            await asyncio.wait((cell,), timeout=patience)
            if cell.done():
                break
            seconds, patience = time.monotonic() - begun, PROGRESS_SECONDS
            line = f"[wasm-kernel] {self._latest} ({seconds:.0f} s so far)"
            with self._guard:
                if not is_over:
                    say(f"\r{line:<{width}}")
                    width = len(line)
        end()
