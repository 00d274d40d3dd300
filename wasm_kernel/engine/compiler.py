"""From a wasm file to a compiled module: engines, the cache, the lock, the progress.

Two engines a process: fuel metering changes the compiled code, so each flavour is compiled at its
first need, which takes about a minute, and is kept in the cache for every later process.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import wasmtime

from wasm_kernel.engine import seams
from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import CompileError
from wasm_kernel.record import record

WASM_STACK = 8 * 1024 * 1024  # what the Python artifact is linked for
_COMPILE_SECONDS = 60  # on two cores; only ever said as "about"
_TELL_SECONDS = 1.0

Progress = Callable[[str], None]
"""Hears plain sentences about what takes long, from any thread."""


@record
class Compiled:
    """A module that is ready to be instantiated, and the engine it was compiled for."""

    engine: wasmtime.Engine
    module: wasmtime.Module
    metered: bool


def _engine(metered: bool) -> wasmtime.Engine:
    config = wasmtime.Config()
    config.consume_fuel = metered
    config.epoch_interruption = True
    seams.set_async_stack(config, WASM_STACK)  # first: wasmtime aborts if the next is larger
    config.max_wasm_stack = WASM_STACK
    return wasmtime.Engine(config)


def every_second(tell: Callable[[float], None]) -> Callable[[float], None]:
    """`tell`, but for calls that come sooner than a second after the last."""
    last = -_TELL_SECONDS

    def waiting(seconds: float) -> None:
        nonlocal last
        if seconds - last >= _TELL_SECONDS:
            last = seconds
            tell(seconds)

    return waiting


class Compiler:
    """Compiles and loads modules for one process; any thread may use it."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._guard = threading.Lock()
        self._engines: dict[bool, wasmtime.Engine] = {}
        self._modules: dict[tuple[str, bool], wasmtime.Module] = {}

    def engine(self, metered: bool) -> wasmtime.Engine:
        """The process's engine of a flavour."""
        with self._guard:
            if metered not in self._engines:
                self._engines[metered] = _engine(metered)
            return self._engines[metered]

    def name(self, digest: str, metered: bool) -> str:
        """The cache's name for a compiled module: everything that changes the code is in it."""
        flavour = "fuel" if metered else "plain"
        text = f"{digest} {seams.VERSION} {flavour} {WASM_STACK}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}-{flavour}.cwasm"

    def module(self, binary: Path, digest: str, metered: bool, progress: Progress) -> Compiled:
        """The compiled module of `binary`, whose SHA-256 is `digest`.

        Raises:
            CompileError: the file is not the one that `digest` names, or does not compile.
        """
        engine = self.engine(metered)
        key = (digest, metered)
        if key not in self._modules:
            self._modules[key] = self._load_or_compile(engine, binary, digest, metered, progress)
        return Compiled(engine, self._modules[key], metered)

    def _load_or_compile(
        self, engine: wasmtime.Engine, binary: Path, digest: str, metered: bool, progress: Progress
    ) -> wasmtime.Module:
        self.cache.prepare()
        name = self.name(digest, metered)
        loaded = self._load(engine, name)
        if loaded is not None:
            return loaded
        waiting = every_second(
            lambda seconds: progress(
                f"another process is compiling the Python guest: waiting for {seconds:.0f} s"
            )
        )
        with self.cache.lock(name, waiting):
            loaded = self._load(engine, name)
            return loaded or self._compile(engine, binary, digest, name, progress)

    def _load(self, engine: wasmtime.Engine, name: str) -> wasmtime.Module | None:
        path = self.cache.trusted(name)
        if path is None:
            return None
        try:
            return wasmtime.Module.deserialize_file(engine, str(path))
        except wasmtime.WasmtimeError:
            self.cache.discard(name, "does not fit this wasmtime or this processor")
            return None

    def _compile(
        self, engine: wasmtime.Engine, binary: Path, digest: str, name: str, progress: Progress
    ) -> wasmtime.Module:
        code = binary.read_bytes()
        if hashlib.sha256(code).hexdigest() != digest:
            raise CompileError(
                f"{binary.name} is not the file that its package describes. Reinstall wasm-kernel."
            )
        with _Telling(progress):
            try:
                module = wasmtime.Module(engine, code)
            except wasmtime.WasmtimeError as problem:
                raise CompileError(f"{binary.name} does not compile: {problem}") from problem
            self.cache.write(name, lambda path: _serialize(module, path))
        return module


def _serialize(module: wasmtime.Module, path: Path) -> None:
    path.write_bytes(module.serialize())


def _how_far(seconds: float) -> str:
    if seconds <= _COMPILE_SECONDS:
        return f"{seconds:.0f} s of about {_COMPILE_SECONDS} s"
    return f"{seconds:.0f} s, longer than usual (is this machine busy?)"


class _Telling:
    """Says every second how long the compilation has taken, while it blocks its own thread."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="compiling", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _tell(self) -> None:
        begun = time.monotonic()
        while True:
            seconds = time.monotonic() - begun
            self._progress(
                f"compiling the Python guest for this machine, once: {_how_far(seconds)}"
            )
            if self._over.wait(_TELL_SECONDS):
                return
