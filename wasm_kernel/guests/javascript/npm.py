"""`%npm`: putting packages in place within the walls that the broker has fetched beyond them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.base import CommandContext, CommandLine
from wasm_kernel.linux.broker import Done
from wasm_kernel.linux.task import Cancelled

MODULES = "node_modules"
_LIST = "npm.json"
_USAGE = "%npm install NAME..., %npm uninstall NAME... or %npm list"
_WANTED = re.compile(
    r"(?P<name>(?:@[a-z0-9~-][a-z0-9._~-]{0,100}/)?[a-z0-9~-][a-z0-9._~-]{0,100})"
    r"(?:@(?P<version>[\w^~<>=*+-][\w.^~<>=*+-]{0,59}))?"
)


class FetchPackages(Struct, frozen=True):
    """Packages are to be put into a folder of the sandbox's private one, with all they need.

    `wanted` are names such as `lodash` or `lodash@^4.17`; `into` is the folder's name.
    """

    wanted: tuple[str, ...]
    into: str


def checked(wanted: str) -> str:
    """Returns the name and version of a package, if they are ones of the registry.

    Raises `PackageError` if npm would take it for a path, an address or an option.
    """
    is_file = wanted.lower().endswith((".tgz", ".tar", ".tar.gz"))
    if _WANTED.fullmatch(wanted) is None or wanted.startswith("-") or is_file:
        raise PackageError(f"{wanted[:100]!r} is no name of a package, such as lodash@^4.17.")
    return wanted


class NpmCommand:
    """Installs and removes the packages of one session. Called on its sandbox's own thread.

    The guest reads `folder`; packages lie in `fetched` meanwhile, out of its sight.
    """

    def __init__(self, folder: Path, fetched: Path) -> None:
        self._folder, self._fetched = folder, fetched

    def __call__(self, line: CommandLine, context: CommandContext, /) -> Mapping[str, Any]:
        """Does what a `%npm` line says; returns what is to be said of it.

        Raises `PackageError` or `Cancelled`; nothing was changed then.
        """
        verb, *words = line.line.split() or ["list"]
        asked = self._asked()
        if verb in ("list", "ls") and not words:
            return {"said": "\n".join(f"{name} {self._version(name)}" for name in asked) or "none"}
        if verb in ("install", "i", "add") and words:
            named = {_name(checked(each)): each for each in words}
            self._change(asked | named, context)
            told = [f"{name} {self._version(name)}" for name in named]
            return {"said": f"Installed {', '.join(told)}."}
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
            found = msgspec.json.decode((self._folder / _LIST).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            return {}
        return {name: wanted for name, wanted in found.items() if _WANTED.fullmatch(wanted)}

    def _version(self, name: str) -> str:
        try:
            manifest = json.loads((self._folder / MODULES / name / "package.json").read_bytes())
            return str(manifest["version"])[:100]
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _change(self, asked: Mapping[str, str], context: CommandContext) -> None:
        """Puts exactly these packages in place, with what they need."""
        shutil.rmtree(self._fetched, ignore_errors=True)  # what a killed kernel left
        into = self._fetched / "npm"
        into.mkdir(parents=True, mode=0o700)
        try:
            if asked:
                context.broker.call(FetchPackages(tuple(asked.values()), into.name), Done, context)
            else:
                (into / MODULES).mkdir()
            if context.cancelled:
                raise Cancelled
            self._swap(into / MODULES, asked)
        except PackageError as problem:
            if context.cancelled:
                raise Cancelled from None
            raise PackageError(f"Nothing was changed: {problem}") from problem
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


def _name(wanted: str) -> str:
    found = _WANTED.fullmatch(wanted)
    assert found is not None
    return found["name"]
