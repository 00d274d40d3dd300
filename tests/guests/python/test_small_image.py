"""Sessions that begin before the whole base image is there: their imports, and their later
images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import NoReturn

import pytest
from msgspec.structs import replace

from tests.faces import says
from tests.local import create_sandbox, get_session_sandbox
from wasm_kernel.engine.flavours import BASELINE, UNCHECKED
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import prepare_on_own_thread
from wasm_kernel.guests.python.language import PythonLanguage, shared_language
from wasm_kernel.linux import trees
from wasm_kernel.sessions.archives import export_session, import_session

IMPORTS = """
import importlib.util, sys
print([name for name in ('numpy', 'pandas', 'matplotlib') if name in sys.modules])
print(importlib.util.find_spec('numpy').loader.is_package('numpy'))
import numpy, pandas, tqdm
import matplotlib.pyplot as plt
frame = pandas.DataFrame({'a': [1, 2]})
frame['b'] = frame.a.sum()
print(numpy.int_ is numpy.int64, frame.b.dtype, plt.get_backend(), tqdm.tqdm.monitor_interval)
frame.plot();
"""


class NoBroker:
    """A broker to which no request may come."""

    def call(self, request: object, reply: object, task: object = None) -> NoReturn:
        raise AssertionError(request)

    def close(self) -> None:
        """Does nothing."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "root"
    trees.remove_tree(tmp_path / "root")


@pytest.fixture
def beginner(warm: None) -> PythonLanguage:
    """A language that finds no whole image yet, and makes none."""
    language = PythonLanguage()
    language._prepared_for = lambda flavour: language.small  # type: ignore[method-assign]
    language.prepared.image_at_hand = lambda: None  # type: ignore[method-assign]
    prepare_on_own_thread(language, UNCHECKED, lambda text: None)
    return language


def test_a_first_session_imports_what_others_find_in_memory(
    beginner: PythonLanguage, root: Path
) -> None:
    with create_sandbox(workspace=root, language=beginner) as sandbox:
        result = sandbox.execute(IMPORTS)
    shown = "[]\nTrue\nTrue int64 module://matplotlib_inline.backend_inline 0\n"
    assert (result.stdout, result.error) == (shown, None)
    assert any("image/png" in output.data for output in result.outputs)


def test_a_session_goes_on_over_the_image_that_it_began_with(
    beginner: PythonLanguage, root: Path
) -> None:
    with create_sandbox(
        workspace=root / "one", session_id="one", language=beginner, resume=Resume.ALWAYS
    ) as sandbox:
        says(sandbox, "x = [1, 2]; file = open('a', 'w+')")
    language = shared_language(None)
    with create_sandbox(
        workspace=root / "one", session_id="one", language=language, resume=Resume.ALWAYS
    ) as sandbox:
        assert says(sandbox, "file.write('kept'); file.flush(); print(sum(x))") == "3"
    with create_sandbox(
        workspace=root / "one", session_id="one", language=language, resume=Resume.NEVER
    ) as sandbox:
        assert says(sandbox, "import sys; print('x' in globals(), 'pandas' in sys.modules)") == (
            "False True"
        )


def test_an_archive_of_a_first_session_opens_over_the_whole_image(
    beginner: PythonLanguage, root: Path, tmp_path: Path
) -> None:
    with create_sandbox(
        workspace=root / "one", session_id="one", language=beginner, resume=Resume.ALWAYS
    ) as sandbox:
        says(sandbox, "x = [1, 2]; file = open('a', 'w+')")
    export_session("one", tmp_path / "one.tar", root)
    made = import_session(tmp_path / "one.tar", root, session_id="two")
    assert (made.states > 0, made.note) == (True, "")
    with get_session_sandbox("two", workspace_root=root) as sandbox:
        code = "import numpy; print(file.write('kept'), sum(x), numpy.arange(3).sum())"
        assert says(sandbox, code) == "4 3 3"


def test_a_session_goes_on_when_its_image_was_removed_from_the_cache(
    beginner: PythonLanguage, root: Path, tmp_path: Path
) -> None:
    """The user removed it, or the cache did, since no session had begun over it for a month."""
    base = beginner.small.image_at_hand()
    assert base is not None
    own = replace(base, path=tmp_path / "image", record=replace(base.record, build="own"))
    copyfile(base.path, own.path)
    beginner.small._image = own
    with create_sandbox(workspace=root, language=beginner) as sandbox:
        says(sandbox, "x = 5")
        own.path.unlink()
        assert not sandbox.execute("import os; os.abort()").success
        assert says(sandbox, "print(x)") == "5"


def test_only_the_baseline_compilers_code_goes_with_the_small_image(
    beginner: PythonLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deterministic session has the whole image, as on every other machine."""
    language = PythonLanguage(broker=NoBroker())
    monkeypatch.setattr(language.prepared, "image_at_hand", lambda: None)
    assert language.small.image_at_hand() is not None  # an earlier session of this process made it
    assert language._prepared_for(BASELINE) is language.small
    assert language._prepared_for(UNCHECKED) is language.prepared  # the broker makes it
    monkeypatch.undo()
    assert language._prepared_for(BASELINE) is language.prepared


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


def test_an_interrupt_waits_until_a_package_is_imported_as_half_of_it_is_of_no_use(
    beginner: PythonLanguage, root: Path
) -> None:
    with create_sandbox(workspace=root, language=beginner) as sandbox:
        error = sandbox.execute(INTERRUPTED).error
        assert error is not None
        assert error.ename == "KeyboardInterrupt"
        code = "import numpy; print(numpy.arange(3).sum(), 'after' in globals())"
        assert says(sandbox, code) == "3 False"


def test_an_interrupt_does_not_wait_for_a_module_of_the_user(
    beginner: PythonLanguage, root: Path
) -> None:
    with create_sandbox(workspace=root, language=beginner) as sandbox:
        (root / "own.py").write_text("import _thread\n_thread.interrupt_main()\nwhile True: pass")
        error = sandbox.execute("import own").error
        assert error is not None
        assert error.ename == "KeyboardInterrupt"


@pytest.mark.soak
def test_another_backend_that_a_cell_chose_before_its_first_figure_stays(
    beginner: PythonLanguage, root: Path
) -> None:
    code = "import matplotlib; matplotlib.use('svg'); import matplotlib.pyplot as plt\n"
    with create_sandbox(workspace=root, language=beginner) as sandbox:
        assert says(sandbox, code + "print(plt.get_backend())") == "svg"


def test_variables_are_kept_when_better_code_is_ready(
    warm: None, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language, better = shared_language(None), replace(UNCHECKED)
    with create_sandbox(workspace=root, language=language) as sandbox:
        says(sandbox, "x = 41; squares = (i * i for i in range(9)); next(squares)\nopen('f', 'w')")
        first = sandbox._runner.guest
        monkeypatch.setattr(language, "code_for", lambda flavour: better)
        assert says(sandbox, "x += 1; print(x, next(squares))") == "42 1"
        moved = sandbox._runner.guest
        assert (moved.flavour, moved is first) == (better, False)
        assert says(sandbox, "print(x, next(squares))") == "42 4"
        assert sandbox._runner.guest is moved
