"""Changes to packages when a cell imports them: how they show figures here, and what their
compiled code can't do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from wasm_kernel_agent.animations import keep_a_picture
from wasm_kernel_agent.sampling import sample_in_python

Change = Callable[[ModuleType], None]

_VEGALITE = "application/vnd.vegalite.v5+json"  # the newest that JupyterLab draws
_NO_VEGALITE = (
    "[wasm-kernel] This is an Altair chart, and this front end has no renderer for it. "
    "JupyterLab has."
)
_PLOTLY = "plotly_mimetype"
_NO_PLOTLY = (
    "[wasm-kernel] This is a Plotly figure, and this front end has no renderer for it. Run "
    "pip install 'wasm-kernel[plots]' where JupyterLab is installed, and reload its page."
)


class ChangedLoader(Loader):
    """Loads a module as its own loader does, and then changes it."""

    def __init__(self, loader: Any, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module, as its own loader makes it."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module and changes it. It never learns of this loader."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            self._change(module)
        except Exception:  # another version of the package: it is shown as it shows itself
            return


class ChangingFinder(MetaPathFinder):
    """Finds the modules that are changed, through the other finders."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that changes it; None for all other modules."""
        change = self._changes.get(fullname)
        if change is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = ChangedLoader(spec.loader, change)
                return spec
        return None


def install() -> None:
    """Changes packages when they are imported from now on."""
    sys.meta_path.insert(0, ChangingFinder(CHANGES))


def show_vegalite(altair: ModuleType) -> None:
    """Lets Altair send its charts as data, and not as a page with a script."""
    renderers: Any = altair.renderers

    def as_data(spec: Any, **options: Any) -> Any:
        bundle = {_VEGALITE: spec, "text/plain": _NO_VEGALITE}
        return bundle, ({_VEGALITE: options} if options else {})

    for name in ("mimetype", "jupyterlab", "nteract"):
        renderers.register(name, as_data)
    renderers.enable("mimetype")


def name_plotlys_renderer(base: ModuleType) -> None:
    """Lets Plotly's figures say what draws them, where nothing does."""
    renderer: Any = base.PlotlyRenderer
    original = renderer.to_mimebundle

    def to_mimebundle(self: Any, fig_dict: Any) -> Any:
        return {**original(self, fig_dict), "text/plain": _NO_PLOTLY}

    renderer.to_mimebundle = to_mimebundle


def show_plotly(module: ModuleType) -> None:
    """Lets Plotly send its figures as data alone; older versions add a page with a script."""
    renderers: Any = module.renderers
    if renderers.default == f"{_PLOTLY}+notebook":
        renderers.default = _PLOTLY


def take_wide_peaks(module: ModuleType) -> None:
    """Lets scipy take peaks as numpy's default integers, which are wider than positions here."""
    finding: Any = module
    original = finding._arg_peaks_as_expected

    def as_expected(value: Any) -> Any:
        peaks = finding.np.asarray(value)
        if peaks.dtype == finding.np.int64:
            positions = peaks.astype(finding.np.intp)
            value = positions if (positions == peaks).all() else value
        return original(value)

    finding._arg_peaks_as_expected = as_expected


CHANGES: dict[str, Change] = {
    "altair": show_vegalite,
    "matplotlib.animation": keep_a_picture,
    "plotly.io._base_renderers": name_plotlys_renderer,
    "plotly.io._renderers": show_plotly,
    "scipy.signal._peak_finding": take_wide_peaks,
    "sklearn.utils._random": sample_in_python,
}
"""The modules that are changed once they have been imported."""
