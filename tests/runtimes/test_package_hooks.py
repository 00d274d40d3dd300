"""Packages that are changed when they are imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from wasm_kernel_agent.package_hooks import (
    Change,
    ChangingFinder,
    name_plotlys_renderer,
    show_plotly,
    show_vegalite,
)

Import = Callable[[str, Change], ModuleType]


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a module of this text, with a change."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(text: str, change: Change) -> ModuleType:
        (tmp_path / "changed_here.py").write_text(text)
        monkeypatch.setattr(
            sys, "meta_path", [ChangingFinder({"changed_here": change}), *sys.meta_path]
        )
        monkeypatch.delitem(sys.modules, "changed_here", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("changed_here")

    return load


def test_a_figure_that_nothing_draws_says_what_would(changed: Import) -> None:
    text = "class PlotlyRenderer:\n    def to_mimebundle(self, figure): return {'plotly': figure}"
    module = changed(text, name_plotlys_renderer)
    bundle = module.PlotlyRenderer().to_mimebundle({"data": []})
    assert bundle.pop("plotly") == {"data": []}
    assert "pip install 'wasm-kernel[plots]'" in bundle["text/plain"]


@pytest.mark.parametrize(
    ("before", "after"), [("plotly_mimetype+notebook", "plotly_mimetype"), ("png", "png")]
)
def test_figures_are_sent_as_data_alone(changed: Import, before: str, after: str) -> None:
    text = f"class renderers:\n    default = {before!r}"
    assert changed(text, show_plotly).renderers.default == after


def test_charts_are_sent_in_a_form_that_jupyterlab_draws(changed: Import) -> None:
    text = "class renderers:\n    made = {}\n    register = made.__setitem__\n    enable = made.get"
    made = changed(text, show_vegalite).renderers.made
    data, metadata = made["mimetype"]({"mark": "bar"}, embed_options={})
    assert data["application/vnd.vegalite.v5+json"] == {"mark": "bar"}
    assert metadata == {"application/vnd.vegalite.v5+json": {"embed_options": {}}}


def test_another_version_of_a_package_is_left_alone(changed: Import) -> None:
    module = changed("number = 1", name_plotlys_renderer)
    assert module.number == 1
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
