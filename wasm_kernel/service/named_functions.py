"""Functions of the host that the options of a command name, as a server or a batch offers them.

A module is found as Python finds any, but never in the current folder, where a stranger's notebook
may lie beside a stranger's module. A file is named by its path.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import PolicyError, describe
from wasm_kernel.policy import user_path
from wasm_kernel.service.functions import Functions

if TYPE_CHECKING:
    from wasm_kernel.service.host_function import Function, HostFunction

_OPTION, _SUFFIX = "--functions", ".py"


def add_repeated(
    command: argparse.ArgumentParser, names: str, metavar: Any, about: str, **fields: Any
) -> None:
    """Adds an option that may be repeated to a command; its `names` are split by blanks."""
    fields |= {"action": "append", "default": [], "metavar": metavar}
    command.add_argument(*names.split(), help=f"{about}; may be repeated", **fields)


def path_of(text: str) -> Path:
    """Returns the path in an option of a command."""
    try:
        return user_path(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def add_functions(command: argparse.ArgumentParser) -> None:
    """Adds the option `--functions` to a command; `named_functions` takes its values."""
    about = "a module or FILE.py of yours, whose functions cells may call"
    add_repeated(command, _OPTION, "MODULE[:NAME,...]", about)


def named_functions(words: Sequence[str]) -> list[Function | HostFunction]:
    """Returns the functions that `words` name.

    Each word is a module or a file, `MODULE` or `FILE.py`, for all of its own public functions, or
    `MODULE:NAME,...` for those of these names. Raises `PolicyError` if a module can't be imported,
    has no such function, or one can't be offered.
    """
    found: list[Function | HostFunction] = []
    try:
        for word in words:
            place, _, names = word.partition(":")
            module = _module_of(place)
            found += _named(module, names.split(",") if names else _public(module))
        Functions(found)
    except (TypeError, ValueError) as problem:
        raise PolicyError(_OPTION, f"can't be used: {problem}") from None
    return found


def _module_of(place: str) -> ModuleType:
    try:
        with redirect_stdout(sys.stderr):  # stdout may be for a protocol, or for JSON
            if place.endswith(_SUFFIX):
                return _run_file(user_path(place).resolve())
            return importlib.import_module(place)
    except Exception as problem:  # the module's own code may raise anything
        raise ValueError(f"{place!r} can't be imported ({describe(problem)})") from problem


@cache
def _run_file(file: Path) -> ModuleType:
    """Returns the module that a file makes, under a name that no other module has."""
    name = file.stem.replace(".", "_")
    while name in sys.modules or find_spec(name) is not None:  # such as `json`
        name += "_"
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "its suffix is a module's"
    module = module_from_spec(spec)
    sys.modules[name] = module  # annotations that are texts are looked up there
    spec.loader.exec_module(module)
    return module


def _named(module: ModuleType, names: Iterable[str]) -> Iterator[Function | HostFunction]:
    for name in names:
        if not hasattr(module, name):
            raise ValueError(f"{module.__name__} has no function {name!r}")
        yield getattr(module, name)


def _public(module: ModuleType) -> Sequence[str]:
    """Returns the names in `__all__`, or those of its own functions without an underscore."""
    names: Sequence[str] | None = getattr(module, "__all__", None)
    if names is None:
        own = inspect.getmembers(module, lambda each: _is_of(each, module))
        names = [name for name, _ in own if not name.startswith("_")]
    if not names:
        raise ValueError(f"{module.__name__} has no public function")
    return names


def _is_of(value: object, module: ModuleType) -> bool:
    from wasm_kernel.service.host_function import HostFunction

    return isinstance(value, HostFunction) or (
        inspect.isfunction(value) and value.__module__ == module.__name__
    )
