"""Where a process imports from once its walls stand.

Most folders on `sys.path` hold Python's packages and nothing else: they stay readable as a whole.
The folder that the process was started in, the user's home, and every folder that contains one of
the two hold the user's own files as well. There, and outside of `sys.path`, only the packages that
the process needs stay readable, each by its own folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from wasm_kernel.record import record

_FINDERS = {BuiltinImporter, FrozenImporter, PathFinder}  # editable installs may add others


@record
class ImportPlaces:
    """What stays readable.

    Attributes:
        folders: Folders that are readable as a whole.
        packages: Single packages, and modules without a package, that lie elsewhere.
        left_out: The entries of `sys.path` that can't be read any more.
    """

    folders: tuple[Path, ...]
    packages: tuple[Path, ...]
    left_out: tuple[str, ...]


def import_places(later: Sequence[str]) -> ImportPlaces:
    """Returns where modules are imported from.

    A package that lies outside of the readable folders is imported here, as others that it needs
    may lie beside it.

    Args:
        later: The packages that the process may import when it can't read more than this any more.
    """
    private = _private()
    readable, left_out = [_own_package(), *_prefixes(private)], []
    for entry in sys.path:
        path = Path(entry).resolve()
        if private.holds_only_packages(path):
            readable.append(path)
        else:
            left_out.append(entry)
    if not left_out and _FINDERS.issuperset(sys.meta_path):
        return ImportPlaces(tuple(readable), (), ())  # everything comes from `sys.path`
    known = tuple(f"{path}{os.sep}" for path in {*map(str, readable), *sys.path} - {*left_out})
    for name in later:
        if not _place_of(name).startswith(known):
            with contextlib.suppress(ImportError):  # whoever needs it says what is missing
                import_module(name)
    elsewhere = {Path(place).resolve() for place in _loaded() if not place.startswith(known)}
    packages = (place for place in elsewhere if not private.home.is_relative_to(place))
    return ImportPlaces(tuple(readable), tuple(packages), tuple(left_out))


def leave_out(places: ImportPlaces) -> None:
    """Takes what can't be read any more off `sys.path`: a package of it would be found, and fail.

    Other folders may have another version of such a package, which is imported then.
    """
    sys.path[:] = [entry for entry in sys.path if entry not in places.left_out]


@record
class _Private:
    """The folders with the user's own files, and those that certainly have none of them."""

    home: Path
    started_in: Path
    installed: tuple[Path, ...]

    def holds_only_packages(self, path: Path) -> bool:
        """Whether a folder is none of the user's, and contains none."""
        if self.home.is_relative_to(path):
            return False
        inside = any(path.is_relative_to(folder) for folder in self.installed)
        return inside or not self.started_in.is_relative_to(path)


def _private() -> _Private:
    folders = ("lib", sys.platlibdir)
    installed = {Path(p, lib).resolve() for p in (sys.prefix, sys.base_prefix) for lib in folders}
    return _Private(_home(), Path.cwd().resolve(), tuple(installed))


def _home() -> Path:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return Path("/")  # this user has none


def _prefixes(private: _Private) -> Iterator[Path]:
    for name in {sys.prefix, sys.base_prefix, sys.exec_prefix}:
        path = Path(name).resolve()
        if private.holds_only_packages(path):
            yield path


def _own_package() -> Path:
    """This package's folder: an editable install need not be on `sys.path`."""
    return Path(__file__).resolve().parent.parent


def _place_of(name: str) -> str:
    """The file or folder of a package that may not be loaded yet; empty if there is none."""
    with contextlib.suppress(ImportError, ValueError):
        spec = find_spec(name)
        if spec is not None:
            return next(iter(spec.submodule_search_locations or ()), spec.origin or "")
    return ""


def _loaded() -> Iterator[str]:
    """The files and folders of the packages that are loaded."""
    for name, module in [*sys.modules.items()]:
        if "." not in name and isinstance(module, ModuleType):
            yield from map(str, vars(module).get("__path__") or ())
            if "__path__" not in vars(module) and isinstance(vars(module).get("__file__"), str):
                yield vars(module)["__file__"]
