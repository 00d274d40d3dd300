"""Compiled modules: made once for all processes, kept, and made again if they do not fit."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import wasmtime

from tests.faces import PATIENCE, full_disk
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiler, GuestBinary, how_long
from wasm_kernel.engine.flavours import FLAVOURS, FUEL, UNCHECKED, Flavour
from wasm_kernel.errors import CacheWarning, CompileError
from wasm_kernel.frontends.jupyter.startup import COLUMNS

TINY = wasmtime.wat2wasm('(module (func (export "f") (result i32) (i32.const 42)))')
DIGEST = hashlib.sha256(TINY).hexdigest()

BUILDER = """
import pathlib, sys, time
from wasm_kernel.engine import compiler
from wasm_kernel.engine.cache import Cache

folder, binary, digest, seconds = sys.argv[1:]
serialize = compiler._serialize

def slowly(module, path):
    print("compiled", flush=True)
    with path.open("wb") as file:
        data = module.serialize()
        file.write(data[: len(data) // 2])
        file.flush()
        time.sleep(float(seconds))
        file.write(data[len(data) // 2 :])

compiler._serialize = slowly
from wasm_kernel.engine.flavours import UNCHECKED
made = compiler.Compiler(Cache(pathlib.Path(folder)))
guest = compiler.GuestBinary(pathlib.Path(binary), digest, "the guest", 8 << 20, "Reinstall it.")
made.module(guest, UNCHECKED, lambda text: None)
print("loaded", flush=True)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    return Cache(tmp_path / "cache")


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """A very small wasm file."""
    path = tmp_path / "tiny.wasm"
    path.write_bytes(TINY)
    return path


def described(path: Path, digest: str = DIGEST) -> GuestBinary:
    """A wasm file as its package describes it."""
    return GuestBinary(path, digest, "the tiny guest", 8 << 20, "Reinstall it.")


def silent(text: str) -> None:
    """Ignores the progress."""


def answer_of(cache: Cache, binary: Path, flavour: Flavour = UNCHECKED) -> int:
    """The module's answer in a new process."""
    compiled = Compiler(cache).module(described(binary), flavour, silent)
    store = wasmtime.Store(compiled.engine)
    if flavour.fuel:
        store.set_fuel(1000)
    function = wasmtime.Instance(store, compiled.module, []).exports(store)["f"]
    assert isinstance(function, wasmtime.Func)
    return int(function(store))


def modules_in(cache: Cache) -> list[Path]:
    return sorted(cache.folder.glob("*.cwasm"))


def builder(cache: Cache, binary: Path, seconds: float) -> subprocess.Popen[str]:
    """Another process that compiles, and takes `seconds` to write."""
    command = [sys.executable, "-c", BUILDER, str(cache.folder), str(binary), DIGEST, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_compiled_module_is_kept_for_its_flavour(cache: Cache, binary: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        Compiler(cache).module(described(binary), UNCHECKED, told.append)
    assert len([text for text in told if "compiling the tiny guest" in text]) == 1
    assert {answer_of(cache, binary, flavour) for flavour in FLAVOURS.values()} == {42}
    assert len({path.read_bytes() for path in modules_in(cache)}) == len(FLAVOURS)


def test_names_tell_wasmtimes_versions_apart(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Compiler(cache).name(described(Path()), FUEL)
    monkeypatch.setattr("wasm_kernel.engine.wasmtime_api.VERSION", "1.0.0")
    assert Compiler(cache).name(described(Path()), FUEL) != ours


def test_a_file_that_is_not_wasm_or_not_its_packages_is_refused(
    cache: Cache, binary: Path, tmp_path: Path
) -> None:
    with pytest.raises(CompileError, match="Reinstall"):
        Compiler(cache).module(described(binary, "0" * 64), UNCHECKED, silent)
    path = tmp_path / "no.wasm"
    path.write_bytes(b"no wasm")
    digest = hashlib.sha256(b"no wasm").hexdigest()
    with pytest.raises(CompileError, match="does not compile"):
        Compiler(cache).module(described(path, digest), UNCHECKED, silent)


def test_a_module_for_another_wasmtime_is_made_again(cache: Cache, binary: Path) -> None:
    cache.prepare()
    cache.write(
        Compiler(cache).name(described(Path()), UNCHECKED),
        lambda path: put(path, b"another wasmtime's"),
    )
    with pytest.warns(CacheWarning, match="does not fit"):
        assert answer_of(cache, binary) == 42
    assert answer_of(cache, binary) == 42


def test_two_processes_at_once_compile_once(cache: Cache, binary: Path) -> None:
    both = [builder(cache, binary, 0.3) for _ in range(2)]
    said = "".join(process.communicate(timeout=60)[0] for process in both)
    assert (said.count("compiled"), said.count("loaded")) == (1, 2)
    assert len(modules_in(cache)) == 1


def test_after_a_builder_was_killed_there_is_one_good_file(cache: Cache, binary: Path) -> None:
    doomed = builder(cache, binary, 60)
    assert doomed.stdout is not None
    assert doomed.stdout.readline() == "compiled\n"
    waiting = builder(cache, binary, 0)
    time.sleep(0.3)
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    assert "loaded" in waiting.communicate(timeout=60)[0]
    assert len(modules_in(cache)) == 1
    assert answer_of(cache, binary) == 42


def test_a_module_can_be_used_while_it_is_written(
    cache: Cache, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = threading.Event()

    def when_used(module: wasmtime.Module, path: Path) -> None:
        assert used.wait(PATIENCE)
        path.write_bytes(module.serialize())

    monkeypatch.setattr("wasm_kernel.engine.compiler._serialize", when_used)
    with Compiler(cache).being_kept(described(binary), UNCHECKED, silent) as compiled:
        assert [each.name for each in compiled.module.exports] == ["f"]
        assert modules_in(cache) == []
        used.set()
    assert len(modules_in(cache)) == 1


def test_full_disks_are_told(cache: Cache, binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wasm_kernel.engine.compiler._serialize", full_disk)
    with pytest.raises(OSError, match="No space left"):
        Compiler(cache).module(described(binary), UNCHECKED, silent)
    assert list(cache.folder.glob("*.cwasm")) == []


def test_a_processor_without_code_is_refused_in_a_sentence() -> None:
    code = "import platform; platform.machine = lambda: 'riscv64'; import wasm_kernel."
    for imported, said in (("engine.cache", "ImportError: "), ("frontends.cli.main", "")):
        ended = subprocess.run(
            [sys.executable, "-c", code + imported], check=False, stderr=subprocess.PIPE, text=True
        )
        lines = ended.stderr.splitlines()
        assert lines[-1].startswith(f"{said}wasm-kernel can't run on riscv64 processors")
        assert (len(lines) == 1) == (not said)


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_the_time_left_is_told_by_the_processors_that_a_compilation_gets() -> None:
    more = "s left, or more"
    assert how_long(90, 0, 0, processors=2) == f"about 45 {more}"
    assert how_long(90, 20, 10, processors=2) == f"about 35 {more}"
    assert how_long(90, 20, 80, processors=2) == f"about 280 {more}"  # a busy machine
    assert how_long(90, 0, 10, processors=2).endswith(more)
    late = how_long(90, 91, 60, processors=2)
    assert late == "longer than estimated"
    for told in (late, how_long(90, 1, 60, processors=2)):  # in one line of a terminal
        assert len(f"[wasm-kernel] compiling the Python guest, once: {told}") <= COLUMNS
