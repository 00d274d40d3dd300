"""The notice that numpy hears of no floating-point error here, for cells that wait for one.

Divisions by zero and overflows set flags in ordinary processors, from which numpy makes its
warnings and errors. WebAssembly has no such flags. Most code does not mind: `inf` and `nan` are
what they are everywhere. A cell that asks for errors relies on them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy

from wasm_kernel_agent.host import note

_NO_FLAGS = (
    "numpy hears of no division by zero, overflow or invalid operation here, so {how!r} has no "
    "effect: results are inf or nan. Look for these with numpy.isfinite(...).all(). "
    "(This is said once.)"
)
_CELLS = "__main__"  # the module of all code that stands in cells
_RELYING = ("raise", "call", "print", "log")  # "warn" is also what is set back after "ignore"


class FloatNotice:
    """Says it once a session, when a cell itself asks numpy for errors."""

    def __init__(self) -> None:
        self._is_done = False

    def install(self) -> None:
        """Lets `numpy.errstate` and `numpy.seterr` say it."""
        module: Any = numpy
        module.errstate.__init__ = self._telling(module.errstate.__init__)
        module.seterr = self._telling(module.seterr)

    def _telling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def telling(*args: Any, **settings: Any) -> Any:
            __tracebackhide__ = True
            given = (*args, *settings.values())
            how = next((value for value in given if value in _RELYING), None)
            if how and not self._is_done and sys._getframe(1).f_globals.get("__name__") == _CELLS:
                self._is_done = True
                note(_NO_FLAGS.format(how=how))
            return original(*args, **settings)

        return functools.wraps(original)(telling)
