"""The guest's files: found, recorded, and laid out once."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.errors import BundleError, CacheWarning
from wasm_kernel.guests.python import files
from wasm_kernel.guests.python.files import PythonFiles
from wasm_kernel.guests.python.language import PythonLanguage


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PythonFiles:
    """An environment of a few small files."""
    data = tmp_path / "mpl-data.zip"
    with zipfile.ZipFile(data, "w") as inner:
        inner.writestr("matplotlibrc", "backend: agg")
    stdlib = tmp_path / "python.zip"
    with zipfile.ZipFile(stdlib, "w") as outer:
        outer.write(data, "matplotlib/mpl-data.zip")
    runtimes = tmp_path / "runtimes" / "python" / "agent"
    runtimes.mkdir(parents=True)
    (runtimes / "__init__.py").write_text("")
    monkeypatch.setattr(files, "runtimes_folder", lambda: tmp_path / "runtimes")
    monkeypatch.setattr(files, "PACKAGES", ("traitlets",))
    return PythonFiles(
        "key", "binary", "0" * 64, str(stdlib), "3.15.0", {"numpy": "2.5.2", "traitlets": "5.0"}
    )


class Asked(Exception):
    """Raised when the broker is asked."""


class AskedBroker:
    """The broker of a process that must not write to the cache."""

    def call(self, *_: object) -> Any:
        raise Asked

    def close(self) -> None: ...


def test_a_process_that_may_not_write_down_what_it_found_has_it_written_down(cache: Cache) -> None:
    language = PythonLanguage(cache, AskedBroker())
    language.files = files.find(cache)  # as if a caller had asked for the version
    with pytest.raises(Asked):
        language.prepare(UNCHECKED, lambda text: None)


def test_a_touched_agent_is_found_anew(
    cache: Cache, small: PythonFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "find", lambda cache: small)
    files.guest_files(cache)
    again = PythonFiles("other", "b", "0" * 64, "s", "3.15.0", {})
    monkeypatch.setattr(files, "find", lambda cache: again)
    assert files.guest_files(cache) == small
    (tmp_path / "runtimes" / "python" / "agent" / "__init__.py").write_text("changed = 1")
    assert files.guest_files(cache) == again


def test_programs_that_find_packages_in_different_folders_forget_nothing_by_turns(
    cache: Cache, small: PythonFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "find", lambda cache: small)
    files.guest_files(cache)
    (other := tmp_path / "other-packages").mkdir()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(other)
        files.guest_files(cache)
    assert files.remembered(cache) == small


@pytest.mark.parametrize("text", ["{", '{"stamp": "", "files": {}}'])
def test_a_damaged_memory_of_it_is_found_anew(
    cache: Cache, small: PythonFiles, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(files, "find", lambda cache: small)
    monkeypatch.setattr(files, "_stamp", lambda: "")
    files.guest_files(cache)
    noted = next(
        path for path in cache.folder.glob("guest-files-*.json") if path.suffixes == [".json"]
    )
    cache.write(noted.name, lambda path: put(path, text))
    with pytest.warns(CacheWarning, match="damaged"):
        assert files.guest_files(cache) == small


def put(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PACKAGES", ("no_such_distribution",), "pip install no-such-distribution"),
        ("built_folder", lambda *_: Path("/nowhere"), "Reinstall wasm-kernel"),
        ("runtimes_folder", lambda *_: Path("/nowhere"), "Reinstall wasm-kernel"),
    ],
)
def test_what_is_not_installed_is_named(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, name: str, value: object, words: str
) -> None:
    monkeypatch.setattr(files, name, value)
    with pytest.raises(BundleError, match=words):
        files.find(cache)


def test_a_package_of_the_bundle_that_is_missing_is_named_and_leaves_no_layout(
    cache: Cache, small: PythonFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "PACKAGES", ("no_such_package",))
        with pytest.raises(BundleError, match="no_such_package"):
            files.lay_out(small, cache)
    assert (files.lay_out(small, cache) / "lib" / files.BUNDLE_NAME).is_file()


def test_the_bundle_of_the_same_packages_is_the_same_on_another_machine(
    small: PythonFiles, tmp_path: Path
) -> None:
    agent = tmp_path / "runtimes" / "python" / "agent"
    for name in ("b", "a"):  # in the order of another disk's listing
        (agent / name).mkdir()
        (agent / name / "x.py").write_text(name)
    made: list[bytes] = []
    for name in ("here", "there"):
        os.utime(agent / "__init__.py", (1e9 + len(made), 1e9 + len(made)))
        layout = files.lay_out(small, Cache(tmp_path / name))
        made.append((layout / "lib" / files.BUNDLE_NAME).read_bytes())
    assert made[0] == made[1]


def test_an_installed_image_brings_its_own_packages(small: PythonFiles, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", tmp_path / "installed")
    cache.prepare()
    ordinary = files.find(cache)
    older = {"traitlets": "1.0"}
    lines = (Path(ordinary.binary).parent / "SHA256SUMS").read_text().splitlines()
    [stdlib] = [line.split()[0] for line in lines if line.endswith(" python-stdlib.zip")]
    key = files._key(ordinary.binary_digest, stdlib, added=older)
    lib = tmp_path / "installed" / f"bundle-{key}" / "lib"
    lib.mkdir(parents=True)
    (lib / files.BUNDLE_NAME).write_bytes(b"the older packages")
    (lib.parent / files.PACKAGES_NOTE).write_text(json.dumps(older))
    found = files.find(cache)
    assert (found.key, found.packages["traitlets"]) == (key, "1.0")
    layout = files.lay_out(replace(small, key=key), cache)
    assert (layout / "lib" / files.BUNDLE_NAME).read_bytes() == b"the older packages"
    assert (layout / "lib" / files.STDLIB_NAME).is_file()
    (tmp_path / "runtimes" / "python" / "agent" / "new.py").write_text("x = 1")
    assert files.find(cache).packages["traitlets"] != "1.0"


def test_a_guest_whose_code_and_image_were_installed_has_its_files_laid_out(
    cache: Cache, small: PythonFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A confined kernel finds the files there; it could not make them itself."""
    language = PythonLanguage(cache)
    language.files = small
    monkeypatch.setattr(language.compiler, "being_kept", lambda *_: nullcontext())
    monkeypatch.setattr(language.prepared, "image_at_hand", lambda: "the installed one")
    language.prepare(UNCHECKED, lambda text: None)
    assert cache.folder_of(files.folder_name(small)) is not None
