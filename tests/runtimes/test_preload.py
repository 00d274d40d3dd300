"""A package that was imported early and put aside."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from wasm_kernel_agent.preload import PreloadedPackage

NAME = "sleeping_package"


@pytest.fixture
def woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    """The package is put aside; returns the calls of its `on_import`."""
    folder = tmp_path / NAME
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("runs = []\nruns.append(1)\nfrom .inner import leaf\n")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "leaf.py").write_text("from .. import runs\nruns.append(2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    heard: list[ModuleType] = []
    finder = PreloadedPackage(NAME, heard.append)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield heard
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def test_nothing_of_it_is_there_before_it_is_wanted(woken: list[ModuleType]) -> None:
    assert not [name for name in sys.modules if name.startswith(NAME)]
    assert importlib.util.find_spec(NAME) is not None
    assert not woken


WAYS: dict[str, Callable[[], ModuleType]] = {
    "the package": lambda: importlib.import_module(NAME),
    "a module in it": lambda: importlib.import_module(f"{NAME}.inner.leaf"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_it_wakes_as_it_was_and_runs_once(
    woken: list[ModuleType], way: Callable[[], ModuleType]
) -> None:
    way()
    package = sys.modules[NAME]
    assert package.runs == [1, 2]
    assert woken == [package]
    assert importlib.import_module(f"{NAME}.inner.leaf") is package.inner.leaf
    assert way().__spec__ is not None


def test_the_package_can_be_loaded_again(woken: list[ModuleType]) -> None:
    package = importlib.import_module(NAME)
    importlib.reload(package)
    assert package.runs[0] == 1
    assert woken == [package]
