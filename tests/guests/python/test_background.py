"""First cells may run the baseline compiler's code, until better code was compiled meanwhile."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import pytest

from tests.engine.test_compiler import TINY, described, silent
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import BASELINE, EPOCH, FUEL_EPOCH
from wasm_kernel.guests.python import background
from wasm_kernel.guests.python.files import GuestFiles
from wasm_kernel.guests.python.language import BASELINE_SETTING, PythonLanguage
from wasm_kernel.linux.broker import LocalBroker
from wasm_kernel.linux.locks import FileLock


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    made = Cache(tmp_path / "cache")
    made.prepare()
    return made


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.wasm"
    path.write_bytes(TINY)
    return path


def language_in(cache: Cache, binary: Path, *, walls: bool) -> PythonLanguage:
    """A language whose guest is the tiny one, in a process with or without a second wall."""
    language = PythonLanguage(cache, LocalBroker({}) if walls else None)
    digest = hashlib.sha256(TINY).hexdigest()
    language.files = GuestFiles("key", str(binary), digest, "", "3.15.0", {})
    return language


@pytest.mark.parametrize(
    ("walls", "setting", "processor", "first"),
    [
        (True, None, "x86_64", BASELINE),
        (True, None, "aarch64", EPOCH),
        (True, "0", "x86_64", EPOCH),
        (False, None, "x86_64", EPOCH),
        (False, "1", "x86_64", BASELINE),
    ],
)
def test_a_guest_begins_with_the_baseline_behind_a_second_wall_or_where_it_is_asked_for(
    cache: Cache,
    binary: Path,
    monkeypatch: pytest.MonkeyPatch,
    walls: bool,
    setting: str | None,
    processor: str,
    first: object,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.delenv(BASELINE_SETTING, raising=False)
    if setting is not None:
        monkeypatch.setenv(BASELINE_SETTING, setting)
    language = language_in(cache, binary, walls=walls)
    assert language.code_for(FUEL_EPOCH) is FUEL_EPOCH
    assert language.code_for(EPOCH) is first
    Compiler(cache).module(language.files.wasm, EPOCH, silent)  # another process does it meanwhile
    assert language.code_for(EPOCH) is EPOCH


def test_the_baseline_compilers_code_goes_when_there_is_better(cache: Cache, binary: Path) -> None:
    compiler, guest = Compiler(cache), described(binary)
    compiler.module(guest, BASELINE, silent)
    background.compile_alone(compiler, guest)
    assert [path.name for path in cache.folder.glob("*.cwasm")] == [compiler.name(guest, EPOCH)]


def test_one_process_compiles_in_the_background(
    cache: Cache, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_LOOK_SECONDS", 0.0)
    assert background.running(cache) == 0
    cache.path("background.process").write_text("1234")
    other = FileLock(cache.path("background.lock"))
    assert other.acquire()
    assert background.running(cache) == 1234
    background.begin(cache)  # starts nothing
    background.compile_alone(Compiler(cache), described(binary))
    assert not list(cache.folder.glob("*.cwasm"))
    other.release()
