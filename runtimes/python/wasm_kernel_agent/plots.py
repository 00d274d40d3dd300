"""Inline figures: matplotlib imported, its fonts known, its inline backend active."""

from __future__ import annotations

import io
import os
from typing import Any

_NAME = "inline"
_MODULE = "matplotlib_inline.backend_inline"
_BACKEND = f"module://{_MODULE}"  # as ipykernel spells it, and as libraries look for it


def prepare(shell: Any) -> None:
    """Import pyplot, make figures appear inline, and draw one so that first plots are quick."""
    from matplotlib import rcParamsOrig
    from matplotlib.backends.registry import backend_registry

    # matplotlib finds this backend through package metadata, which the guest's zip has not.
    registry: Any = backend_registry
    original: Any = rcParamsOrig
    registry._ensure_entry_points_loaded()
    if not registry.is_valid_backend(_NAME):
        registry._validate_and_store_entry_points([(_NAME, _MODULE)])
    os.environ["MPLBACKEND"] = _BACKEND
    original["backend"] = _BACKEND  # to which a bare `%matplotlib` or `%pylab` returns
    from IPython.core import pylabtools
    from matplotlib import pyplot
    from matplotlib_inline import backend_inline

    activate: Any = pylabtools.activate_matplotlib
    configure: Any = backend_inline.configure_inline_support
    activate(_BACKEND)
    configure(shell, _NAME)
    figure = pyplot.figure()
    figure.add_subplot().plot([0, 1], label="$x$")
    figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    pyplot.close(figure)
    _forget(pyplot)


def _forget(pyplot: Any) -> None:
    """Leave no figure of the boot for a first cell to show."""
    from matplotlib_inline import backend_inline

    show: Any = backend_inline.show
    show._to_draw = []
    show._draw_called = False
    pyplot.draw_if_interactive.called = False
