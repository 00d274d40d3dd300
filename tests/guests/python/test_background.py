"""First cells may run the baseline compiler's code, until better code is compiled."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.engine.test_compiler import TINY, described, silent
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import (
    BASELINE_SETTING,
    BASELINES,
    EPOCH,
    FUEL_EPOCH,
    UNCHECKED,
    Flavour,
)
from wasm_kernel.guests.python import background
from wasm_kernel.guests.python.files import GuestFiles
from wasm_kernel.guests.python.language import PythonLanguage
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
    ("walls", "setting", "processor", "begins"),
    [
        (True, None, "x86_64", True),
        (True, None, "aarch64", False),
        (True, "0", "x86_64", False),
        (False, None, "x86_64", False),
        (False, "1", "x86_64", True),
    ],
)
def test_a_guest_begins_with_the_baseline_behind_a_second_wall_or_where_it_is_asked_for(
    cache: Cache,
    binary: Path,
    monkeypatch: pytest.MonkeyPatch,
    walls: bool,
    setting: str | None,
    processor: str,
    begins: bool,
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=processor))
    monkeypatch.delenv(BASELINE_SETTING, raising=False)
    if setting is not None:
        monkeypatch.setenv(BASELINE_SETTING, setting)
    language = language_in(cache, binary, walls=walls)
    assert language.code_for(FUEL_EPOCH) is FUEL_EPOCH
    for flavour in (EPOCH, UNCHECKED):
        first = BASELINES[flavour.name] if begins else flavour
        assert language.code_for(flavour) is first
        Compiler(cache).module(language.files.wasm, flavour, silent)  # as another process does it
        assert language.code_for(flavour) is flavour


@pytest.mark.parametrize("flavour", [EPOCH, UNCHECKED], ids=lambda flavour: flavour.name)
def test_the_baseline_compilers_code_goes_when_there_is_better(
    cache: Cache, binary: Path, flavour: Flavour
) -> None:
    compiler, guest = Compiler(cache), described(binary)
    compiler.module(guest, BASELINES[flavour.name], silent)
    language, needed = language_in(cache, binary, walls=True), list[Flavour]()

    def build() -> None:
        needed.append(language.code_for(flavour))
        language.prepared.image_at_hand = lambda: ANY  # type: ignore[method-assign]
        needed.append(language.code_for(flavour))

    background.compile_alone(compiler, guest, flavour, build)
    assert needed == [BASELINES[flavour.name], flavour]  # the guest does not wait for the image
    assert [path.name for path in cache.folder.glob("*.cwasm")] == [compiler.name(guest, flavour)]


def test_one_process_compiles_a_flavour_in_the_background(
    cache: Cache, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_LOOK_SECONDS", 0.0)
    assert background.running(cache, EPOCH) == 0
    cache.path("background-epoch.process").write_text("1234")
    other = FileLock(cache.path("background-epoch.lock"))
    assert other.acquire()
    assert [background.running(cache, each) for each in (EPOCH, UNCHECKED)] == [1234, 0]
    background.begin(cache, EPOCH)  # starts nothing
    background.compile_alone(Compiler(cache), described(binary), EPOCH, lambda: None)
    assert not list(cache.folder.glob("*.cwasm"))
    other.release()
    assert background.running(cache, EPOCH) == 0  # it was killed, say: the next one begins anew


def test_endless_requests_get_one_process_at_a_time(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    real = subprocess.Popen

    def begin(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        begun.append(command)
        return real([sys.executable, "-c", "input()"], **{**options, "stdin": subprocess.PIPE})

    monkeypatch.setattr(subprocess, "Popen", begin)
    for flavour in (EPOCH, EPOCH, BASELINES[EPOCH.name], FUEL_EPOCH, EPOCH):
        background.begin(cache, flavour)
    assert [command[-1] for command in begun] == ["epoch"]
    process = background._begun.pop(cache.path("background-epoch.lock"))
    process.communicate(b"\n")
