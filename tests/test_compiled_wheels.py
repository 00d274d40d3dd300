"""The wheels with compiled code: installed beside the package, their files are used there."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import compiled_wheels
from compiled_wheels import Wheel, WheelError, code_wheel
from tests.engine.test_compiler import answer_of, described
from tests.engine.test_compiler import binary as binary  # noqa: PLC0414 - a fixture
from wasm_kernel import __version__
from wasm_kernel.engine.cache import INSTALLED, Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.guests.base import GuestLanguage
from wasm_kernel.guests.javascript.language import JavaScriptLanguage
from wasm_kernel.guests.python.language import PythonLanguage


@pytest.fixture
def site(tmp_path: Path, binary: Path) -> Path:
    """A folder of installed packages, with the tiny guest's compiled code among them."""
    made, site = Cache(tmp_path / "made"), tmp_path / "site"
    licences = [("guest/LICENSE", binary.with_name("LICENSE"))]
    licences[0][1].write_text("do what you like")
    wheel = code_wheel(made, [described(binary)], licences).write(tmp_path)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True)
    return site


@pytest.fixture
def cache(site: Path, tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", site / INSTALLED.name)


def test_installed_code_runs_where_it_lies_on_any_such_processor(
    cache: Cache, site: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "_compile", lambda *_: pytest.fail("compiled"))
        assert answer_of(cache, binary, UNCHECKED) == 42
    assert not list(cache.folder.iterdir())
    about = PathDistribution(next(site.glob("wasm_kernel_compiled_code-*.dist-info")))
    assert about.metadata["Requires-Dist"] == f"wasm-kernel=={__version__}"
    assert about.read_text("licenses/guest/LICENSE") == "do what you like"
    with monkeypatch.context() as patch:  # code of another wasmtime is not used
        told: list[str] = []
        patch.setattr("wasm_kernel.engine.wasmtime_api.VERSION", "50.0.2")
        Compiler(cache).module(described(binary), UNCHECKED, told.append)
        assert "compiling" in told[0]
    for path in cache.folder.iterdir():
        path.unlink()
    # code that does not fit is compiled in the ordinary way
    for path in (site / INSTALLED.name).iterdir():
        path.write_bytes(b"for another processor")
    assert answer_of(cache, binary, UNCHECKED) == 42
    assert len(list(cache.folder.glob("*.cwasm"))) == 1


def test_the_image_has_the_licences_of_all_packages_in_it() -> None:
    names = {name.partition("/")[0] for name, _ in compiled_wheels.added_licences()}
    assert {"ipython", "jedi", "rpds-py"} <= names


def test_doctor_tells_of_each_language_where_its_compiled_code_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", installed_in=tmp_path)
    python, javascript = PythonLanguage(cache), JavaScriptLanguage(cache)
    names = (
        python.compiler.name(python.files.wasm, UNCHECKED),
        javascript.compiler.name(javascript.files.interpreter, UNCHECKED),
    )
    languages: tuple[GuestLanguage, ...] = (python, javascript)
    for language, name in zip(languages, names, strict=True):
        said, *_ = states_of_code(language)
        assert "is not compiled: the first" in said
        (tmp_path / name).write_bytes(b"for another processor")
        said, *_ = states_of_code(language)
        assert "is installed, but not used (" in said
        with monkeypatch.context() as patch:
            patch.setattr(Compiler, "check", lambda *_: None)
            said, *_ = states_of_code(language)
            assert said.endswith("guest is installed")


def states_of_code(language: GuestLanguage) -> list[str]:
    """The language's findings about compiled code."""
    found = [each.text for each in language.examine()]
    return [text for text in found if "compiled" in text or "installed" in text]


def test_a_wheel_that_pypi_does_not_take_is_refused(
    tmp_path: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_wheels, "MOST_BYTES", 100)
    with pytest.raises(WheelError, match="PyPI takes 100"):
        Wheel("x", "py3-none-any", "", [("file", binary)], []).write(tmp_path)
