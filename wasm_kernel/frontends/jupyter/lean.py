"""ipykernel's base class without IPython's shell.

`ipykernel.kernelbase` needs one exception class of `IPython.core.error`, and importing anything of
IPython runs its `__init__`, which imports the whole shell: a tenth of a kernel's start, for a shell
that this process never has (the guest has its own).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

_PACKAGES = ("IPython", "IPython.core")


@contextmanager
def without_the_shell() -> Iterator[None]:
    """While it lasts, modules of IPython are importable and its packages' `__init__` do not run.

    Afterwards no trace is left: who imports IPython then gets all of it. Nothing is done where it
    is loaded already or not where it is looked for. Main thread, before others import anything.
    """
    spec = PathFinder.find_spec(_PACKAGES[0])
    if spec is None or spec.submodule_search_locations is None or _PACKAGES[0] in sys.modules:
        yield
        return
    top = Path(spec.submodule_search_locations[0])
    for name in _PACKAGES:
        bare = ModuleType(name)
        bare.__path__ = [str(top.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = bare
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == _PACKAGES[0]]:
            del sys.modules[name]
