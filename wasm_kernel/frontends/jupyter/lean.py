"""Imports that a kernel's start does without.

The kernel needs a few modules of ipykernel and jupyter_client, and `ipykernel.kernelbase` needs one
exception class of `IPython.core.error`. But importing any module of a package runs the package's
`__init__` first, and these import everything they have: managers and clients of kernels, a shell
that this process never has (the guest has its own). Together that took a tenth of a kernel's start,
and ssl, for an asyncio that connects to nobody, a fiftieth.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

_guard = threading.RLock()  # a package's own `__init__` may ask for names of it


def lazily(name: str) -> None:
    """Have a package's modules importable, and its `__init__` run with the first use of a name that
    the package has not: who imports the package for its own sake finds all of it.

    Nothing is done where it is loaded already, or not where it is looked for. Main thread, before
    others import anything.
    """
    spec = PathFinder.find_spec(name)
    if name in sys.modules or spec is None or spec.submodule_search_locations is None:
        return
    package, loader = module_from_spec(spec), spec.loader
    assert loader is not None

    def complete(attribute: str) -> Any:
        with _guard:
            if vars(package).pop("__getattr__", None) is not None:
                loader.exec_module(package)
        return getattr(package, attribute)

    vars(package)["__getattr__"] = complete
    sys.modules[name] = package


@contextmanager
def without(name: str) -> Iterator[None]:
    """While it lasts, a module is not there: what is imported does without it, and goes on so.

    Afterwards anybody else finds it. Nothing is done where it is loaded already. Main thread,
    before others import anything.
    """
    absent: Any = None  # what the import system takes for "there is none"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = absent
    try:
        yield
    finally:
        del sys.modules[name]
