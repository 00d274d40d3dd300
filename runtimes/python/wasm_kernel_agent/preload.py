"""A package that is imported while the base image is made, and put aside until a cell wants it.

Its modules lie in the image's memory, shared and never saved again; importing it later costs
nothing but a look. Until then it is not in `sys.modules`, and nothing of it has run for a session.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Dormant(MetaPathFinder, Loader):
    """Gives a package that was put aside to whoever imports it first.

    Args:
        name: The package, which is imported now.
        waking: Called when a cell imports it.
    """

    def __init__(self, name: str, waking: Callable[[ModuleType], Any]) -> None:
        importlib.import_module(name)
        inside = [n for n in sys.modules if n == name or n.startswith(f"{name}.")]
        self._modules = {each: sys.modules.pop(each) for each in inside}
        self._own_spec = self._modules[name].__spec__
        self._name = name
        self._waking = waking

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package's own spec, with this as its loader; None once it is awake."""
        own = self._own_spec
        if fullname != self._name or not self._modules or own is None:
            return None
        spec = ModuleSpec(fullname, self, origin=own.origin, is_package=True)
        spec.submodule_search_locations = own.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that was put aside."""
        return self._modules[self._name]

    def exec_module(self, module: ModuleType) -> None:
        """Its code has run already; the modules below it are there from now on."""
        modules, self._modules = self._modules, {}
        for name, each in modules.items():
            sys.modules.setdefault(name, each)
        module.__spec__ = self._own_spec
        self._waking(module)


def put_aside(name: str, waking: Callable[[ModuleType], Any]) -> None:
    """Import a package now, and let cells find it later."""
    sys.meta_path.insert(0, Dormant(name, waking))
