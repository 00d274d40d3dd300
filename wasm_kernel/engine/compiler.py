"""Compiling a wasm file to a module: engines, the cache, the lock, the progress.

Each flavour has an engine and compiled code of its own: it is compiled at its first need, which
takes a minute or more, and is kept in the cache for every later process.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import wasmtime
from msgspec import Struct

from wasm_kernel.engine import wasmtime_api
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.flavours import Flavour, FlavourName
from wasm_kernel.errors import CompileError

_TELL_SECONDS = 1.0
_PACE_SECONDS = 3.0  # from then on, the pace so far predicts how long a compilation takes

Progress = Callable[[str], None]
"""Gets plain sentences about a task that takes long, on any thread."""


class GuestBinary(Struct, frozen=True):
    """A guest's wasm file, which is linked for a wasm stack of `stack_bytes`.

    The digest is the one that its package notes, and is checked before compiling. Messages use the
    title, such as "the tiny guest", and the remedy, a sentence for the case that the file is
    another one.
    """

    path: Path
    sha256: str
    title: str
    stack_bytes: int
    remedy: str


class Processor(Struct, frozen=True):
    """A processor that code can be compiled for: Cranelift's name of its features, and a triple."""

    name: str
    triple: str


X86_64_V3 = Processor("x86-64-v3", "x86_64-unknown-linux-gnu")


class Compiled(Struct, frozen=True):
    """A module that is ready to be instantiated, and the engine it was compiled for."""

    engine: wasmtime.Engine
    module: wasmtime.Module
    flavour: Flavour


def _engine(flavour: Flavour, stack_bytes: int, processor: Processor | None) -> wasmtime.Engine:
    config = wasmtime.Config()
    if processor is not None:
        config.target = processor.triple
        config.cranelift_flag_enable(processor.name)
    if flavour.is_baseline:
        wasmtime_api.use_baseline_compiler(config)
    config.consume_fuel = flavour.fuel
    # Frames take more of the processor's stack than of the guest's own, above all if they count
    # fuel; the guest's own is to end first, with an error of its language.
    most = 2 * stack_bytes
    wasmtime_api.set_async_stack(config, most)  # first: wasmtime aborts if the next is larger
    config.max_wasm_stack = most
    engine = wasmtime.Engine(config)
    wasmtime_api.trap_unreadable_pages()
    return engine


def every_second(tell: Callable[[float], None]) -> Callable[[float], None]:
    """Returns `tell` without the calls that come sooner than a second after the last."""
    last = -_TELL_SECONDS

    def waiting(seconds: float) -> None:
        nonlocal last
        if seconds - last >= _TELL_SECONDS:
            last = seconds
            tell(seconds)

    return waiting


class Compiler:
    """Compiles and loads modules for one process; any thread may use it.

    Code is compiled for all features of this machine's processor, unless `processor` is another.
    """

    def __init__(self, cache: Cache, processor: Processor | None = None) -> None:
        self.cache = cache
        self._processor = processor
        self._guard = threading.Lock()
        self._engines: dict[tuple[FlavourName, int], wasmtime.Engine] = {}
        self._modules: dict[tuple[str, FlavourName], wasmtime.Module] = {}

    def engine(self, flavour: Flavour, stack_bytes: int) -> wasmtime.Engine:
        """Returns the process's engine of a flavour, for guests with this wasm stack."""
        key = (flavour.name, stack_bytes)
        with self._guard:
            if key not in self._engines:
                self._engines[key] = _engine(flavour, stack_bytes, self._processor)
            return self._engines[key]

    def name(self, binary: GuestBinary, flavour: Flavour) -> str:
        """Returns the cache's name for a compiled module, made from all that changes the code."""
        text = f"{binary.sha256} {wasmtime_api.VERSION} {flavour.name} {binary.stack_bytes}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}-{flavour.name}.cwasm"

    def module(
        self, binary: GuestBinary, flavour: Flavour, progress: Progress = lambda text: None
    ) -> Compiled:
        """Returns a guest's compiled module once it is in the cache. Raises `CompileError`."""
        with self.being_kept(binary, flavour, progress) as compiled:
            return compiled

    @contextlib.contextmanager
    def being_kept(
        self,
        binary: GuestBinary,
        flavour: Flavour,
        progress: Progress,
        side_job: Callable[[], object] = lambda: None,
    ) -> Iterator[Compiled]:
        """Yields a guest's compiled module, which can be used while it is written to the cache.

        Writing a new module takes seconds; the end of the context waits for it. `side_job` runs on
        a thread of its own during the compilation, and not at all if the cache has the code.
        """
        engine = self.engine(flavour, binary.stack_bytes)
        with contextlib.ExitStack() as held:
            if not self.load(binary, flavour):
                made = self._compile_once(binary, flavour, progress, side_job, held)
                self._modules[binary.sha256, flavour.name] = made
            yield Compiled(engine, self._modules[binary.sha256, flavour.name], flavour)

    def load(self, binary: GuestBinary, flavour: Flavour) -> bool:
        """Loads the compiled module of a guest; returns False if it is not compiled yet."""
        key = (binary.sha256, flavour.name)
        if key not in self._modules:
            self.cache.prepare()
            engine = self.engine(flavour, binary.stack_bytes)
            loaded = self._load(engine, self.name(binary, flavour))
            if loaded is None:
                return False
            self._modules[key] = loaded
        return True

    def _compile_once(
        self,
        binary: GuestBinary,
        flavour: Flavour,
        progress: Progress,
        side_job: Callable[[], object],
        held: contextlib.ExitStack,
    ) -> wasmtime.Module:
        """Compiles under the cache's lock, which `held` releases once the code is written."""
        from concurrent.futures import ThreadPoolExecutor

        engine, name = self.engine(flavour, binary.stack_bytes), self.name(binary, flavour)
        waiting = every_second(
            lambda seconds: progress(
                f"another process compiles {binary.title}: waiting for {seconds:.0f} s"
            )
        )
        held.enter_context(self.cache.lock(name, waiting))
        if (loaded := self._load(engine, name)) is not None:
            return loaded
        seconds = flavour.seconds_a_mb * binary.path.stat().st_size / 1e6
        keeper = held.enter_context(ThreadPoolExecutor(1, "keeping"))
        done = keeper.submit(side_job)  # a compilation does not always keep all cores busy
        with _telling(binary.title, seconds, progress):
            module = self._compile(engine, binary)
        written = keeper.submit(self.cache.write, name, lambda path: _serialize(module, path))
        held.callback(written.result)
        done.result()
        return module

    def _load(self, engine: wasmtime.Engine, name: str) -> wasmtime.Module | None:
        if (path := self.cache.trusted(name)) is not None:
            try:
                return wasmtime.Module.deserialize_file(engine, str(path))
            except wasmtime.WasmtimeError:
                self.cache.discard(name, "does not fit this wasmtime or this processor")
        if (installed := self.cache.installed(name)) is not None:
            with contextlib.suppress(wasmtime.WasmtimeError):  # it is for other processors
                return wasmtime.Module.deserialize_file(engine, str(installed))
        return None

    def check(self, path: Path, binary: GuestBinary, flavour: Flavour) -> None:
        """Raises `CompileError` if compiled code is not for this wasmtime and processor."""
        try:
            wasmtime.Module.deserialize_file(self.engine(flavour, binary.stack_bytes), str(path))
        except wasmtime.WasmtimeError as problem:
            why = str(problem).strip().rpartition("\n")[2].lstrip("0123456789: ")  # without a path
            raise CompileError(f"{binary.title}'s compiled code does not fit: {why}") from None

    def _compile(self, engine: wasmtime.Engine, binary: GuestBinary) -> wasmtime.Module:
        code, file = binary.path.read_bytes(), binary.path.name
        if hashlib.sha256(code).hexdigest() != binary.sha256:
            raise CompileError(f"{file} is not the one that its package describes. {binary.remedy}")
        try:
            return wasmtime.Module(engine, code)
        except wasmtime.WasmtimeError as problem:
            raise CompileError(f"{file} does not compile: {problem}") from problem


def _serialize(module: wasmtime.Module, path: Path) -> None:
    path.write_bytes(module.serialize())


def how_long(total: float, used: float, elapsed: float, processors: int) -> str:
    """Returns in words how long work still takes at its pace so far.

    `total` and `used` are seconds of processor time, `elapsed` the seconds since the work began.
    """
    if used >= total:
        return "longer than estimated"
    pace = used / elapsed if elapsed > _PACE_SECONDS else processors
    seconds = 5 * math.ceil((total - used) / max(pace, 0.01) / 5)
    return f"about {seconds} s left, or more"


@contextlib.contextmanager
def _telling(title: str, seconds: float, progress: Progress) -> Iterator[None]:
    """Reports a compilation every second on a thread, since compiling blocks its own thread."""
    over = threading.Event()

    def tell() -> None:
        begun, used = time.monotonic(), time.process_time()
        processors = len(os.sched_getaffinity(0))
        while True:
            elapsed, had = time.monotonic() - begun, time.process_time() - used
            progress(f"compiling {title}, once: {how_long(seconds, had, elapsed, processors)}")
            if over.wait(_TELL_SECONDS):
                return

    thread = threading.Thread(target=tell, name="compiling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
