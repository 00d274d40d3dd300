"""`%npm`: installing packages for the guest, which the broker has fetched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from wasm_kernel.errors import PackageError, WasmKernelError, describe
from wasm_kernel.guests.base import CommandContext, CommandLine
from wasm_kernel.guests.broker_handlers import FetchedPackages, FetchPackages
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import Cancelled

MODULES = "node_modules"
_LIST, _LIST_BYTES = "npm.json", 1024 * 1024
_USAGE = "%npm install NAME..., %npm uninstall NAME... or %npm list"
_WANTED = re.compile(
    r"(?P<name>(?:@[a-z0-9~-][a-z0-9._~-]{0,100}/)?[a-z0-9~-][a-z0-9._~-]{0,100})"
    r"(?:@(?P<version>[\w^~<>=*+-][\w.^~<>=*+-]{0,59}))?"
)


def checked(wanted: str) -> str:
    """Returns the name and version of a package of the registry.

    Raises `PackageError` if npm would take it for a path, an address or an option.
    """
    is_file = wanted.lower().endswith((".tgz", ".tar", ".tar.gz"))
    if _WANTED.fullmatch(wanted) is None or wanted.startswith("-") or is_file:
        raise PackageError(f"{wanted[:100]!r} is not the name of a package, such as lodash@^4.17.")
    return wanted


class NpmCommand:
    """Installs and removes the packages of one session. Called on its sandbox's own thread.

    The guest reads `folder`. During an install packages lie in `fetched`, which the guest does not
    see. The host keeps a record of its own with their names and versions, and reads no file that
    came with them.
    """

    def __init__(self, folder: Path, fetched: Path) -> None:
        self._folder, self._fetched = folder, fetched

    def __call__(self, line: CommandLine, context: CommandContext, /) -> Mapping[str, Any]:
        """Runs a `%npm` line; returns the words to print.

        Raises `PackageError` or `Cancelled`, and then changes nothing.
        """
        verb, *words = line.line.split() or ["list"]
        asked = self._asked()
        if verb in ("list", "ls") and not words:
            return {"said": "\n".join(map(_shown, asked.values())) or "none"}
        if verb in ("install", "i", "add") and words:
            named = {name_of(checked(each)): each for each in words}
            there = self._change(asked | named, context)
            return {"said": f"Installed {', '.join(_shown(there[name]) for name in named)}."}
        if verb in ("uninstall", "remove", "rm") and words:
            missing = [name for name in words if name not in asked]
            if missing:
                raise PackageError(f"{missing[0][:100]} is not installed here.")
            left = {name: wanted for name, wanted in asked.items() if name not in words}
            self._change(left, context)
            return {"said": f"Removed {', '.join(words)}."}
        raise PackageError(f"the words are {_USAGE}.")

    def _asked(self) -> dict[str, str]:
        if not (self._folder / MODULES).is_dir() and (self._folder / "old").is_dir():
            (self._folder / "old").rename(self._folder / MODULES)  # a kernel was killed
        try:
            with Folder.open(self._folder) as folder:
                found = folder.read_record(_LIST, dict[str, str], _LIST_BYTES)
        except OSError:
            return {}
        return {name: wanted for name, wanted in found.items() if _WANTED.fullmatch(wanted)}

    def _change(self, asked: Mapping[str, str], context: CommandContext) -> Mapping[str, str]:
        """Installs exactly these packages with their dependencies; returns the new record."""
        shutil.rmtree(self._fetched, ignore_errors=True)  # left by a killed kernel
        into = self._fetched / "npm"
        into.mkdir(parents=True, mode=0o700)
        try:
            there: dict[str, str] = {}
            if asked:
                request = FetchPackages(tuple(asked.values()), into.name)
                found = context.broker.call(request, FetchedPackages, context).versions
                there = {name: checked(f"{name}@{found.get(name, '')}") for name in asked}
            else:
                (into / MODULES).mkdir()
            if context.cancelled:
                raise Cancelled
            self._swap(into / MODULES, there)
            return there
        except (WasmKernelError, OSError) as problem:
            if context.cancelled:
                raise Cancelled from None
            why = str(problem) if isinstance(problem, WasmKernelError) else f"{describe(problem)}."
            raise PackageError(f"Nothing was changed: {why}") from problem
        finally:
            shutil.rmtree(self._fetched, ignore_errors=True)

    def _swap(self, new: Path, asked: Mapping[str, str]) -> None:
        there, old = self._folder / MODULES, self._folder / "old"
        shutil.rmtree(old, ignore_errors=True)
        if there.is_dir():
            there.rename(old)
        new.rename(there)
        aside = self._folder / f"{_LIST}.new"
        aside.write_bytes(msgspec.json.encode(asked))
        aside.replace(self._folder / _LIST)
        shutil.rmtree(old, ignore_errors=True)


def _shown(package: str) -> str:
    """Returns a package of the record as it is shown: `lodash 4.17.21`."""
    name, _, version = package.rpartition("@")
    return f"{name} {version}" if name else package


def name_of(wanted: str) -> str:
    """Returns the name of a package that was `checked`."""
    found = _WANTED.fullmatch(wanted)
    assert found is not None
    return found["name"]
