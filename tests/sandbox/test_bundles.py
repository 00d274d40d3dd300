"""The guest's files: found, remembered, laid out once."""

from __future__ import annotations

import threading
import zipfile
from pathlib import Path

import pytest

from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import BundleError, CacheWarning
from wasm_kernel.guests.python import bundles, environment
from wasm_kernel.guests.python.environment import Environment


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    made = Cache(tmp_path / "cache")
    made.prepare()
    return made


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment of few and small files."""
    data = tmp_path / "mpl-data.zip"
    with zipfile.ZipFile(data, "w") as inner:
        inner.writestr("matplotlibrc", "backend: agg")
    stdlib = tmp_path / "python.zip"
    with zipfile.ZipFile(stdlib, "w") as outer:
        outer.write(data, "matplotlib/mpl-data.zip")
    runtimes = tmp_path / "runtimes" / "python" / "agent"
    runtimes.mkdir(parents=True)
    (runtimes / "__init__.py").write_text("")
    monkeypatch.setattr(environment, "runtimes_folder", lambda: tmp_path / "runtimes")
    monkeypatch.setattr(bundles, "PACKAGES", {"traitlets": "traitlets"})
    return Environment(
        "key", "binary", "0" * 64, str(stdlib), "3.15.0", {"numpy": "2.5.2", "traitlets": "5.0"}
    )


def test_the_environment_is_found() -> None:
    found = environment.find()
    assert Path(found.binary).is_file()
    assert Path(found.stdlib).is_file()
    assert len(found.binary_digest) == 64
    assert found.python_version.startswith("3.")


def test_the_environment_is_remembered(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment.environment(cache)
    monkeypatch.setattr(environment, "find", lambda: pytest.fail("looked again"))
    assert environment.environment(cache) == found


def test_a_touched_agent_is_found_anew(
    cache: Cache, small: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "find", lambda: small)
    environment.environment(cache)
    again = Environment("other", "b", "0" * 64, "s", "3.15.0", {})
    monkeypatch.setattr(environment, "find", lambda: again)
    assert environment.environment(cache) == small
    (tmp_path / "runtimes" / "python" / "agent" / "__init__.py").write_text("changed = 1")
    assert environment.environment(cache) == again


@pytest.mark.parametrize("text", ["{", "[]", '{"stamp": "", "environment": {}}'])
def test_a_damaged_memory_of_it_is_found_anew(
    cache: Cache, small: Environment, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(environment, "find", lambda: small)
    monkeypatch.setattr(environment, "_stamp", lambda: "")
    environment.environment(cache)
    noted = next(
        path for path in cache.folder.glob("environment-*.json") if path.suffixes == [".json"]
    )
    cache.write(noted.name, lambda path: put(path, text))
    with pytest.warns(CacheWarning, match="damaged"):
        assert environment.environment(cache) == small


def put(path: Path, text: str) -> None:
    path.write_text(text)


def test_the_key_changes_with_the_agent(small: Environment, tmp_path: Path) -> None:
    before = environment.find().key
    (tmp_path / "runtimes" / "python" / "agent" / "more.py").write_text("x = 1")
    assert environment.find().key != before


def test_an_agent_without_files_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "runtimes_folder", lambda: tmp_path)
    with pytest.raises(BundleError, match="Reinstall wasm-kernel"):
        environment.agent_files()


def test_a_package_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "PACKAGES", {"nothing": "no-such-distribution"})
    with pytest.raises(BundleError, match="pip install no-such-distribution"):
        environment.find()


def test_missing_artifacts_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "guest_folder", lambda: tmp_path)
    with pytest.raises(BundleError, match="Reinstall wasm-kernel"):
        environment.find()


def test_the_layout_has_the_standard_library_the_bundle_and_the_data(
    cache: Cache, small: Environment
) -> None:
    layout = bundles.lay_out(small, cache)
    assert sorted(path.name for path in layout.lib.iterdir()) == [
        bundles.STDLIB_NAME,
        bundles.BUNDLE_NAME,
    ]
    assert (layout.data / "matplotlibrc").read_text() == "backend: agg"
    assert sorted(path.name for path in layout.root.iterdir()) == ["app", "tmp", "usr"]


def test_the_bundle_holds_the_agent_and_its_packages(cache: Cache, small: Environment) -> None:
    layout = bundles.lay_out(small, cache)
    with zipfile.ZipFile(layout.lib / bundles.BUNDLE_NAME) as bundle:
        names = bundle.namelist()
    assert "agent/__init__.py" in names
    assert "traitlets/traitlets.py" in names
    assert not [name for name in names if name.endswith(".pyc") or "/tests/" in name]


def test_a_package_of_the_bundle_that_is_missing_is_named(
    cache: Cache, small: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "PACKAGES", {"no_such_package": "x"})
    with pytest.raises(BundleError, match="no_such_package"):
        bundles.lay_out(small, cache)


def test_a_failed_layout_is_not_taken_for_one(
    cache: Cache, small: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bundles, "PACKAGES", {"no_such_package": "x"})
        with pytest.raises(BundleError):
            bundles.lay_out(small, cache)
    assert (bundles.lay_out(small, cache).lib / bundles.BUNDLE_NAME).is_file()


def test_files_are_laid_out_once(
    cache: Cache, small: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bundles.lay_out(small, cache)
    monkeypatch.setattr(bundles, "_make", lambda *a: pytest.fail("made again"))
    assert bundles.lay_out(small, cache) == first


def test_two_at_once_lay_out_once(
    cache: Cache, small: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = bundles._make, list[int]()

    def counted(found: Environment, folder: Path) -> None:
        made.append(1)
        make(found, folder)

    monkeypatch.setattr(bundles, "_make", counted)
    threads = [threading.Thread(target=bundles.lay_out, args=(small, cache)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
