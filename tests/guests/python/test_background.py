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
from tests.tasks import LocalBroker
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import BASELINE, BASELINE_SETTING, FUEL, UNCHECKED, Flavour
from wasm_kernel.guests.python import background
from wasm_kernel.guests.python.files import PythonFiles
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.linux.locks import FileLock


def language_in(cache: Cache, binary: Path, *, walls: bool) -> PythonLanguage:
    """A language whose guest is the tiny one, in a process with or without a second wall."""
    language = PythonLanguage(cache, LocalBroker({}) if walls else None)
    digest = hashlib.sha256(TINY).hexdigest()
    language.files = PythonFiles("key", str(binary), digest, "", "3.15.0", {})
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
    assert language.code_for(FUEL) is FUEL
    assert language.code_for(UNCHECKED) is (BASELINE if begins else UNCHECKED)
    Compiler(cache).module(language.files.wasm, UNCHECKED, silent)  # as another process does it
    assert language.code_for(UNCHECKED) is UNCHECKED


def test_the_baseline_compilers_code_goes_when_there_is_better(cache: Cache, binary: Path) -> None:
    compiler, guest = Compiler(cache), described(binary)
    compiler.module(guest, BASELINE, silent)
    language, needed = language_in(cache, binary, walls=True), list[Flavour]()

    def build() -> None:
        needed.append(language.code_for(UNCHECKED))
        language.prepared.image_at_hand = lambda: ANY  # type: ignore[method-assign]
        needed.append(language.code_for(UNCHECKED))

    background.compile_alone(compiler, guest, build)
    assert needed == [BASELINE, UNCHECKED]  # the guest does not wait for the image
    assert [path.name for path in cache.folder.glob("*.cwasm")] == [compiler.name(guest, UNCHECKED)]


def test_one_process_compiles_in_the_background(
    cache: Cache, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_LOCK_SECONDS", 0.0)
    assert background.running(cache) == 0
    cache.path("background.process").write_text("1234")
    other = FileLock(cache.path("background.lock"))
    assert other.acquire()
    assert background.running(cache) == 1234
    background.begin(cache)  # starts nothing
    background.compile_alone(Compiler(cache), described(binary), lambda: None)
    assert not list(cache.folder.glob("*.cwasm"))
    other.release()
    assert background.running(cache) == 0  # it may have been killed: the next begins anew


def test_endless_requests_get_one_process_at_a_time(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    real = subprocess.Popen

    def begin(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        begun.append(command)
        return real([sys.executable, "-c", "input()"], **{**options, "stdin": subprocess.PIPE})

    monkeypatch.setattr(subprocess, "Popen", begin)
    for _ in range(3):
        background.begin(cache)
    assert [command[-1] for command in begun] == [str(cache.folder)]
    process = background._begun.pop(cache.path("background.lock"))
    process.communicate(b"\n")
