"""The names that an import can name: for completion, without importing anything.

IPython looks for modules in folders, and the guest's lie in zips. It imports a module to list the
names in it, which takes seconds for a large package and runs the code of a user's module.
"""

from __future__ import annotations

import dis
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from IPython.core import completerlib

_CACHE = "rootmodules_cache"  # IPython's table: entries of `sys.path`, and the names below each
_IMPORT_STAR = "INTRINSIC_IMPORT_STAR"
_STARS_DEEP = 3  # `from module import *`, in a module that such a line names, and so on


def install(shell: Any) -> None:
    """Gives IPython's completion of imports these names. Those at the top are listed once."""
    import_and_list = completerlib.try_import

    def names_in(module: str, only_modules: bool = False) -> list[str]:
        if module in sys.modules:
            return import_and_list(module, only_modules)
        modules = [name for place in _places(module) for name in _modules_in(place)]
        defined = [] if only_modules else [*_names_defined(module)]
        return modules + defined if defined or only_modules else import_and_list(module)

    library: Any = completerlib
    library.module_list, library.try_import = _modules_in, names_in
    zips = [path for path in sys.path if path.endswith(".zip")]
    shell.db[_CACHE] = {path: _modules_in(path) for path in zips}


def _modules_in(path: str) -> list[str]:
    """Returns the names of the modules in a folder, or in a folder of a zip."""
    return [each.name for each in pkgutil.iter_modules([path or "."]) if each.name.isidentifier()]


def _places(package: str) -> Sequence[str]:
    """Returns the folders of a package."""
    top, *parts = package.split(".")
    spec = importlib.util.find_spec(top)
    found = (spec.submodule_search_locations if spec else None) or ()
    return ["/".join([each, *parts]) for each in found]


def _names_defined(module: str, depth: int = _STARS_DEEP) -> Iterator[str]:
    """Yields the names that a module's code assigns, imports or defines."""
    code, package = _code_of(module)
    if code is None or depth == 0:
        return
    steps = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    for at, step in enumerate(steps):
        if step.opname == "STORE_NAME":
            yield step.argval
        elif step.argrepr == _IMPORT_STAR:  # after the level, ('*',), and the module
            level, _, imported = steps[at - 3 : at]
            name = importlib.util.resolve_name("." * level.argval + imported.argval, package)
            yield from (each for each in _names_defined(name, depth - 1) if each[0] != "_")


def _code_of(module: str) -> tuple[CodeType | None, str]:
    """Returns the code of a module, None if it is not Python's; and the package that it is in."""
    parent = module.rpartition(".")[0]
    places = _places(parent) if parent else sys.path
    for place in places:
        finder: Any = pkgutil.get_importer(place)
        spec = finder.find_spec(module) if finder else None
        if spec is not None:
            code = spec.loader.get_code(module) if spec.loader else None
            return code, module if spec.submodule_search_locations is not None else parent
    return None, parent
