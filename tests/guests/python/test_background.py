"""First cells may run the baseline compiler's code, until better code is compiled."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.engine.test_compiler import TINY, described, silent
from tests.faces import error_of, says
from tests.faults import Does, Faults, faulty
from tests.guests.python.first_sessions import OWN_IMAGE
from tests.tasks import LocalBroker
from wasm_kernel import Sandbox, create_sandbox, get_session_sandbox
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import BASELINE, BASELINE_SETTING, FUEL, UNCHECKED, Flavour
from wasm_kernel.guests.base import prepare_on_own_thread
from wasm_kernel.guests.python import background
from wasm_kernel.guests.python.files import PythonFiles
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.state.image import BaseImage


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


def test_endless_requests_get_one_process(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
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


FIRST = "tests.guests.python.first_sessions"
IMPORTS = """
import importlib.util, sys
print([name for name in ('numpy', 'pandas', 'matplotlib') if name in sys.modules])
print(importlib.util.find_spec('numpy').loader.is_package('numpy'))
import numpy, tqdm
import matplotlib.pyplot as plt
print(numpy.int_ is numpy.int64, plt.get_backend(), tqdm.tqdm.monitor_interval)
plt.plot([1, 2]);
"""


@pytest.fixture(scope="module")
def small() -> BaseImage:
    """The small image, which is made if it is missing."""
    language = PythonLanguage()
    language._prepared_for = lambda flavour: language.small  # type: ignore[method-assign]
    prepare_on_own_thread(language, UNCHECKED, lambda text: None)
    image = language.small.image_at_hand()
    assert image is not None
    return image


@pytest.fixture(scope="module")
def faults(small: BaseImage) -> Iterator[Faults]:
    """Sandboxes that begin before the whole image is there."""
    with faulty(FIRST, "wasm_kernel.guests.python.language:PythonLanguage.start") as made:
        yield made


@pytest.fixture
def first(faults: Faults, tmp_path: Path) -> Iterator[Sandbox]:
    with create_sandbox(workspace=tmp_path / "app") as sandbox:
        yield sandbox


def test_a_first_session_imports_what_others_find_in_memory(first: Sandbox) -> None:
    result = first.execute(IMPORTS)
    shown = "[]\nTrue\nTrue module://matplotlib_inline.backend_inline 0\n"
    assert (result.stdout, result.error) == (shown, None)
    assert any("image/png" in output.data for output in result.outputs)


def test_a_first_session_goes_on_over_its_image_and_its_archive_over_the_whole_one(
    faults: Faults, tmp_path: Path
) -> None:
    with get_session_sandbox("one", workspace_root=tmp_path) as sandbox:
        says(sandbox, "x = [1, 2]; file = open('a', 'w+')")
    export_session("one", tmp_path / "one.tar", tmp_path)
    made = import_session(tmp_path / "one.tar", tmp_path, session_id="two")
    assert (made.states > 0, made.note) == (True, "")
    code = "import numpy; print(file.write('kept'), sum(x), numpy.arange(3).sum())"
    with faulty():  # the whole image is there
        for name in ("one", "two"):
            with get_session_sandbox(name, workspace_root=tmp_path) as sandbox:
                assert says(sandbox, code) == "4 3 3"
        with create_sandbox(workspace=tmp_path / "new") as sandbox:
            assert says(sandbox, "import sys; print('pandas' in sys.modules)") == "True"


def test_a_session_goes_on_when_its_image_was_removed_from_the_cache(
    small: BaseImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user removed it, or the cache did, since no session had begun over it for a month."""
    copyfile(small.path, own := tmp_path / "image")
    monkeypatch.setenv(OWN_IMAGE, str(own))
    with faulty(FIRST), create_sandbox(workspace=tmp_path / "app") as sandbox:
        says(sandbox, "x = 5")
        own.unlink()
        assert not sandbox.execute("import os; os.abort()").success
        assert says(sandbox, "print(x)") == "5"


INTERRUPTED = """
import _thread, sys
class Finder:
    def find_spec(self, name, *_):
        if name == 'numpy.dtypes':
            sys.meta_path.remove(self)
            _thread.interrupt_main()
sys.meta_path.insert(0, Finder())
import numpy
after = 1
"""
"""The interrupt comes during an import, as from a user who finds that it takes long."""


def test_an_interrupt_waits_for_a_package_and_no_module_of_the_user(first: Sandbox) -> None:
    assert error_of(first.execute(INTERRUPTED)).startswith("KeyboardInterrupt:")
    code = "import numpy; print(numpy.arange(3).sum(), 'after' in globals())"
    assert says(first, code) == "3 False"
    own = first.workspace / "own.py"
    own.write_text("import _thread\n_thread.interrupt_main()\nwhile True: pass")
    assert error_of(first.execute("import own")).startswith("KeyboardInterrupt:")


@pytest.mark.soak
def test_a_first_session_has_pandas(first: Sandbox) -> None:
    code = "import pandas; frame = pandas.DataFrame({'a': [1, 2]}); frame['b'] = frame.a.sum()\n"
    assert says(first, code + "frame.plot(); print(frame.b.dtype)") == "int64"


@pytest.mark.soak
def test_another_backend_that_a_cell_chose_before_its_first_figure_stays(first: Sandbox) -> None:
    code = "import matplotlib; matplotlib.use('svg'); import matplotlib.pyplot as plt\n"
    assert says(first, code + "print(plt.get_backend())") == "svg"


def test_variables_are_kept_when_better_code_is_ready(first: Sandbox, faults: Faults) -> None:
    says(first, "x = 41; squares = (i * i for i in range(9)); next(squares)\nopen('f', 'w')")
    before = faults["PythonLanguage.start"].calls
    with faults[FIRST].on(Does.RETURN_NONE):
        assert says(first, "x += 1; print(x, next(squares))") == "42 1"
        assert faults["PythonLanguage.start"].calls == before + 1
        assert says(first, "print(x, next(squares))") == "42 4"
        assert faults["PythonLanguage.start"].calls == before + 1
