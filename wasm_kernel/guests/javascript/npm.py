"""`%npm`: fetching packages by npm, beyond the walls, and putting them in place, within.

npm runs no script of a package, and links no program. What it fetched is only read by the guest,
through the same file calls as everything else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from wasm_kernel.errors import PackageError
from wasm_kernel.folders.private import OpenPrivate
from wasm_kernel.guests.base import CommandContext, CommandLine, fetch_place
from wasm_kernel.guests.fetcher import plain, run_fetcher
from wasm_kernel.linux.broker import Done, tied_command
from wasm_kernel.linux.task import Cancelled, Task

BYTES_MOST = 300 * 1024 * 1024
FILES_MOST = 30_000
_PACKAGES_MOST = 100
_MODULES, _LIST = "node_modules", "npm.json"
_WANTED = re.compile(
    r"(?P<name>(?:@[a-z0-9~-][a-z0-9._~-]{0,100}/)?[a-z0-9~-][a-z0-9._~-]{0,100})"
    r"(?:@(?P<version>[\w.^~<>=*+-]{1,60}))?"
)
_INSTALL = (
    *("install", "--ignore-scripts", "--no-bin-links", "--no-audit", "--no-fund", "--omit=dev"),
    *("--no-update-notifier", "--no-package-lock", "--install-links", "--loglevel=error"),
)
_NPM = "import os, sys; os.execvp('npm', ['npm', *sys.argv[1:]])\n"
_QUIET = {"NO_COLOR": "1", "npm_config_progress": "false"}
_USAGE = "%npm install NAME..., %npm uninstall NAME... or %npm list"


class FetchPackages(Struct, frozen=True):
    """Packages are to be put into a folder of the sandbox's private one, with all they need.

    Attributes:
        wanted: The packages, such as `lodash` or `lodash@^4.17`.
        into: The folder's name.
    """

    wanted: tuple[str, ...]
    into: str


def fetching(private: OpenPrivate) -> Callable[[FetchPackages, Task], Done]:
    """Returns the broker's handler for one sandbox."""

    def fetch_packages(request: FetchPackages, task: Task) -> Done:
        from tempfile import TemporaryDirectory

        if len(request.wanted) > _PACKAGES_MOST:
            raise PackageError("these are too many packages.")
        wanted = [checked(each) for each in request.wanted]
        # npm goes by paths: it works where whoever is inside can't put links in its way
        with (
            fetch_place(private, request.into) as (place, beside),
            TemporaryDirectory(prefix=".fetched-", dir=beside) as own,
        ):
            install(wanted, Path(own), task)
            os.rename(Path(own, _MODULES), _MODULES, dst_dir_fd=place.fd)
        return Done()

    return fetch_packages


def checked(wanted: str) -> str:
    """Returns the name and version of a package, if they are ones of the registry.

    Raises:
        PackageError: npm would take it for a path, an address or an option.
    """
    if _WANTED.fullmatch(wanted) is None or wanted.startswith("-"):
        raise PackageError(f"{wanted[:100]!r} is no name of a package, such as lodash@^4.17.")
    return wanted


def install(wanted: Sequence[str], folder: Path, task: Task) -> None:
    """Puts packages and what they need into `node_modules` of an empty folder.

    Raises:
        PackageError: one is not there or can't be reached, or `task` was cancelled; in words.
    """
    (folder / "package.json").write_text('{"private": true}')
    task.report(f"Fetching {', '.join(wanted)}")
    said, code = run_fetcher(
        [*tied_command(_NPM), *_INSTALL, "--", *wanted],
        folder,
        task,
        env=_QUIET,
        most=BYTES_MOST,
        on_line=lambda line: None,
    )
    if "FileNotFoundError" in said:
        raise PackageError("npm is not installed beside the kernel. Install it to use %npm.")
    if code:
        raise PackageError(_why(said, wanted))
    (folder / _MODULES).mkdir(exist_ok=True)
    _check(folder / _MODULES)


def _why(said: str, wanted: Sequence[str]) -> str:
    if "E404" in said or "ETARGET" in said:
        return f"npm finds no such package: {', '.join(wanted)}. It may be misspelt."
    if re.search(r"ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN|ECONNRESET|network", said):
        return "the package registry can't be reached from the kernel's machine."
    lines = [line.partition("npm error")[2] for line in said.splitlines() if "npm error" in line]
    return f"npm could not fetch {', '.join(wanted)}: {plain(' '.join(lines[:4]))}"


def _check(folder: Path) -> None:
    """Checks that packages are files that the guest can run; links are removed.

    Raises:
        PackageError: some are compiled, or there are too many files.
    """
    count = 0
    for here, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(here, name)
            count += 1
            if path.is_symlink():
                path.unlink()
            elif name.endswith(".node") or name == "binding.gyp":
                package = path.relative_to(folder).parts[0]
                raise PackageError(f"{package} needs compiled code, which the sandbox can't run.")
        if count > FILES_MOST:
            raise PackageError(f"these are more than {FILES_MOST:,} files.")


class NpmCommand:
    """Installs and removes the packages of one session. Called on its sandbox's own thread.

    Args:
        folder: The session's folder for packages, which the guest reads.
        fetched: Where packages lie meanwhile, out of the guest's sight.
    """

    def __init__(self, folder: Path, fetched: Path) -> None:
        self._folder, self._fetched = folder, fetched

    def __call__(self, line: CommandLine, context: CommandContext, /) -> Mapping[str, Any]:
        """Does what a `%npm` line says; returns what is to be said of it.

        Raises:
            PackageError: it can't be done; nothing was changed.
            Cancelled: the cell was interrupted; nothing was changed.
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
        """Returns what cells asked for, by name."""
        if not (self._folder / _MODULES).is_dir() and (self._folder / "old").is_dir():
            (self._folder / "old").rename(self._folder / _MODULES)  # a kernel was killed
        try:
            found = msgspec.json.decode((self._folder / _LIST).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            return {}
        return {name: wanted for name, wanted in found.items() if _WANTED.fullmatch(wanted)}

    def _version(self, name: str) -> str:
        try:
            manifest = json.loads((self._folder / _MODULES / name / "package.json").read_bytes())
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
                (into / _MODULES).mkdir()
            if context.cancelled:
                raise Cancelled
            self._swap(into / _MODULES, asked)
        except PackageError as problem:
            if context.cancelled:
                raise Cancelled from None
            raise PackageError(f"Nothing was changed: {problem}") from problem
        finally:
            shutil.rmtree(self._fetched, ignore_errors=True)

    def _swap(self, new: Path, asked: Mapping[str, str]) -> None:
        there, old = self._folder / _MODULES, self._folder / "old"
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
