"""Figures of matplotlib, drawn inline: the guest has neither windows nor scripts in the page."""

from __future__ import annotations

import functools
from typing import Any

from wasm_kernel_agent.host import note

INLINE = "inline"
_MODULE = "matplotlib_inline.backend_inline"
BACKEND = f"module://{_MODULE}"  # as ipykernel spells it, and as libraries look for it
_INTERACTIVE = {
    *("widget", "ipympl", "notebook", "nbagg", "webagg", "module://ipympl.backend_nbagg"),
    *("qt", "qt4", "qt5", "qt6", "qtagg", "qtcairo", "qt4agg", "qt5agg", "qt5cairo"),
    *("gtk", "gtk3", "gtk4", "gtk3agg", "gtk3cairo", "gtk4agg", "gtk4cairo", "osx", "macosx"),
    *("tk", "tkagg", "tkcairo", "wx", "wxagg", "wxcairo"),
}
"""The names of backends, and of `%matplotlib`, for figures in a window or with a script."""
_NOT_HERE = (
    "{asked} needs a window, or a script in the page. The sandbox has neither. Figures are drawn "
    "inline instead; for figures that answer, use Plotly or Altair (%pip install)."
)


def possible(backend: Any, asked: str, inline: str = BACKEND) -> Any:
    """Returns a backend, or `inline` for one that can't be had here; a notice then says so.

    So a notebook that asks for such a backend still runs. `asked` is the text by which it asks.
    """
    if not (isinstance(backend, str) and backend.lower() in _INTERACTIVE):
        return backend
    note(_NOT_HERE.format(asked=asked.format(backend)))
    return inline


def know_backend(module: Any) -> None:
    """Lets matplotlib find the backend that draws figures inline.

    It finds it through package metadata, which the guest's zip does not have.
    """
    registry = module.backend_registry
    registry._validate_and_store_entry_points([(INLINE, _MODULE)])
    registry._loaded_entry_points = True


def return_inline(matplotlib: Any) -> None:
    """Lets a bare `%matplotlib` or `%pylab`, and `use`, return to figures inline."""
    matplotlib.rcParamsOrig["backend"] = BACKEND
    original = matplotlib.use

    @functools.wraps(original)
    def use(backend: Any, *, force: bool = True) -> None:
        original(possible(backend, "matplotlib.use({!r})"), force=force)

    matplotlib.use = use


def show_below_cells(pyplot: Any) -> None:
    """Makes figures appear below their cells, unless a cell has chosen another backend."""
    original = pyplot.switch_backend

    @functools.wraps(original)
    def switch_backend(newbackend: Any) -> None:
        original(possible(newbackend, "plt.switch_backend({!r})"))

    pyplot.switch_backend = switch_backend
    if pyplot.rcParams["backend"] != BACKEND:
        return
    from IPython import get_ipython
    from IPython.core import pylabtools
    from matplotlib_inline import backend_inline

    activate: Any = pylabtools.activate_matplotlib
    configure: Any = backend_inline.configure_inline_support
    activate(BACKEND)
    configure(get_ipython(), INLINE)
