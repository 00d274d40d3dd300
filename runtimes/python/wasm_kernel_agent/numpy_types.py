"""numpy's names for its default integer, which a patch of the guest's binary makes 64 bits wide.

The patch (`guest/int64.py` in the sources) changes what numpy's compiled code takes where nobody
names a type. Names such as `np.int_` are bound by Python code when numpy is imported.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy
from numpy._core import arrayprint, numerictypes


def install() -> None:
    """Lets all names of the default integer mean 64 bits. Do it before others import numpy."""
    for name, kind in (("int_", numpy.int64), ("uint", numpy.uint64)):
        for module in _numpys_modules():
            if hasattr(module, name):
                setattr(module, name, kind)
    types: Any = numerictypes.sctypeDict
    types |= {"int": numpy.int64, "int_": numpy.int64, "uint": numpy.uint64}
    printing: Any = arrayprint
    printing._typelessdata[0] = numpy.int64  # the integer whose arrays are shown without `dtype=`


def _numpys_modules() -> list[Any]:
    return [m for name, m in sys.modules.items() if name.partition(".")[0] == "numpy"]
