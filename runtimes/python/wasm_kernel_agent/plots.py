"""Inline figures: matplotlib imported, its fonts known, its inline backend active."""

from __future__ import annotations

import io
from typing import Any

_NAME = "inline"
_MODULE = "matplotlib_inline.backend_inline"


def prepare(shell: Any) -> None:
    """Import pyplot, make figures appear inline, and draw one so that first plots are quick."""
    from matplotlib.backends.registry import backend_registry

    # matplotlib finds this backend through package metadata, which the guest's zip has not.
    registry: Any = backend_registry
    registry._ensure_entry_points_loaded()
    if not registry.is_valid_backend(_NAME):
        registry._validate_and_store_entry_points([(_NAME, _MODULE)])
    from matplotlib import pyplot

    shell.enable_matplotlib("inline")
    figure = pyplot.figure()
    figure.add_subplot().plot([0, 1], label="$x$")
    figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    pyplot.close(figure)
    _forget_figures()


def _forget_figures() -> None:
    """No figure of the boot may appear in a first cell."""
    from matplotlib_inline import backend_inline

    backend_inline.show._to_draw = []
    backend_inline.show._draw_called = False
