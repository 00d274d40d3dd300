"""The speed of a start: imports that a kernel skips; and the progress of a slow start.

The kernel needs a few modules of ipykernel and jupyter_client, and `ipykernel.kernelbase` needs one
exception class of `IPython.core.error`. But importing any module of a package runs the package's
`__init__` first, and these import everything they have: managers and clients of kernels, a shell
that this process never has (the guest has its own). Together that took a tenth of a kernel's start,
and ssl, for an asyncio that makes no connections, a fiftieth.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.guests.protocol import ClearOutput, Stream

# -- imports that a start skips

if TYPE_CHECKING:
    import asyncio

    from wasm_kernel.execution.interfaces import Listener
    from wasm_kernel.service.sandbox import Sandbox

_guard = threading.RLock()  # reentrant: a package's own `__init__` may look names up in it


def lazily(name: str) -> None:
    """Makes a package's modules importable without running its `__init__`.

    `__init__` runs when a name is first looked up in the package itself, so that importers of the
    package find all of it. Does nothing if the package is already loaded, or not found. Called on
    the main thread, before others import anything.
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
    """Hides a module from the imports in the block, which then never use it.

    Does nothing if the module is already loaded. Called on the main thread, before others import
    anything.
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


# -- a slow start

QUIET_SECONDS = 1.0  # seconds of silence; a warm start needs far less
PROGRESS_SECONDS = 2.0  # seconds between two lines
COLUMNS = 79  # a terminal can't clear a line that it has wrapped
LONG_SECONDS = 3.0  # front ends wait 4 s for an answer when they look for widgets at their start


class StartProgress:
    """The progress of the sandbox's start, shown in the cell that waits for it.

    A first start on a cold cache takes a minute or more. Any thread may `tell`; the event loop runs
    the rest.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._latest = "starting the sandbox"
        self._guard = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._is_long: Future[None] = Future()  # done as soon as the start is known to be long
        self._long_from = time.monotonic() + LONG_SECONDS
        self._has_ended = False

    def start(self) -> Future[None]:
        """Starts the sandbox if it has no guest yet, or sleeps; the future ends when it has one."""
        with self._guard:
            if self._has_ended:
                self._begin()
        started = self.sandbox.start(self.tell)
        started.add_done_callback(self._end)
        return started

    def _end(self, _: object) -> None:
        self._has_ended = True

    @property
    def is_going_on(self) -> bool:
        """True if the sandbox starts now; False if it is up, or closed."""
        try:
            return not self.start().done()
        except WasmKernelError:  # it is closed
            return False

    async def is_up(self) -> bool:
        """Returns whether the guest starts in time: a first start takes a minute."""
        started = self.start()
        return await self.wait(started) and started.exception() is None

    def tell(self, sentence: str) -> None:
        """Notes the progress of the start; only a long start reports any."""
        self._latest = sentence
        with self._guard:
            if not self._is_long.done():
                self._is_long.set_result(None)

    async def wait(self, ended: Future[None] | asyncio.Task[Any]) -> bool:
        """Waits for `ended`, unless the start takes long; returns whether it has ended."""
        import asyncio

        if not ended.done():
            loop, over = asyncio.get_running_loop(), asyncio.Event()

            def end(_: object) -> None:
                loop.call_soon_threadsafe(over.set)

            ended.add_done_callback(end)
            self._is_long.add_done_callback(end)
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._long_from - time.monotonic())
        return ended.done()

    async def narrate(
        self, started: Future[None], cell: asyncio.Future[Any], page: Listener
    ) -> None:
        """Shows the progress in the waiting cell, in one line, until `started` or `cell` ends.

        The thread of the start removes the line at its end, so that the cell's own output comes
        after it, and is all that the notebook keeps.
        """
        import asyncio

        width, is_over = 0, False

        def end() -> None:
            nonlocal is_over
            with self._guard:
                if width and not is_over:
                    page.emit(Stream("stderr", f"\r{'':{width}}\r"))  # for terminals
                    page.emit(ClearOutput(wait=False))
                is_over = True

        started.add_done_callback(lambda _: end())
        begun, patience = time.monotonic(), QUIET_SECONDS
        while not (started.done() or cell.done()):
            await asyncio.wait((cell,), timeout=patience)
            if cell.done():
                break
            seconds, patience = time.monotonic() - begun, PROGRESS_SECONDS
            line = f"[wasm-kernel] {self._latest}"[:COLUMNS]
            if len(longer := f"{line} ({seconds:.0f} s so far)") <= COLUMNS:
                line = longer
            with self._guard:
                if not is_over:
                    page.emit(Stream("stderr", f"\r{line:<{width}}"))
                    width = max(width, len(line))
        end()
