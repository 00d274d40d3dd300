"""The broker's part for JavaScript: it fetches packages by npm.

npm runs no script of a package, and links no program. Only the guest reads the fetched files,
through the same file calls as all files. A package may ask for others by an address, such as a
folder or a repository of this machine, which npm would copy; only the registry's are accepted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.broker_handlers import FetchedBytes, FetchedPackages, FetchPackages
from wasm_kernel.guests.fetcher import plain, run_fetcher
from wasm_kernel.guests.javascript.npm import MODULES, checked, name_of
from wasm_kernel.linux.broker import tied_command
from wasm_kernel.linux.folders import Folder, TooLong
from wasm_kernel.linux.task import Task

FILES_MOST = 30_000
_INSTALL = (
    *("install", "--ignore-scripts", "--no-bin-links", "--no-audit", "--no-fund", "--omit=dev"),
    *("--no-update-notifier", "--no-package-lock", "--install-links", "--loglevel=error"),
    "--git=git-is-not-for-packages",  # git would use the user's keys
)
_LOCK, _LOCK_BYTES = ".package-lock.json", 16 * 1024 * 1024
_OF_REGISTRY = re.compile(r"(npm:(@[^/:]+/)?)?[^/:]*")  # a version, a range or a tag
_NPM = "import os, sys; os.execvp('npm', ['npm', *sys.argv[1:]])\n"
_QUIET = {"NO_COLOR": "1", "npm_config_progress": "false"}


def compile_in_background() -> None:
    """Does nothing: this guest has no slower code to begin with."""


def fetch_packages(
    request: FetchPackages, place: Folder, own: Path, task: Task, fetched: FetchedBytes
) -> FetchedPackages:
    """Puts `node_modules` into `place`, by way of the temporary folder `own`."""
    versions = install([checked(each) for each in request.wanted], own, task, fetched)
    os.rename(own / MODULES, MODULES, dst_dir_fd=place.fd)
    return FetchedPackages(versions)


def install(
    wanted: Sequence[str], folder: Path, task: Task, fetched: FetchedBytes
) -> dict[str, str]:
    """Puts packages and their dependencies into `node_modules` of an empty folder.

    Returns the version of each package in `wanted`, by name. Raises `PackageError`, in words, if
    one can't be fetched, or `task` was cancelled.
    """
    (folder / "package.json").write_text('{"private": true}')
    task.report(f"Fetching {', '.join(wanted)}")
    said, code = run_fetcher(
        [*tied_command(_NPM), *_INSTALL, "--", *wanted], folder, task, fetched=fetched, env=_QUIET
    )
    if "FileNotFoundError" in said:
        raise PackageError("npm is not installed beside the kernel. Install it to use %npm.")
    if code:
        raise PackageError(_why(said, wanted))
    packages = _packages(folder / MODULES)
    _check_sources(packages)
    _check(folder / MODULES)
    names = map(name_of, wanted)
    places = {name: f"{MODULES}/{name}" for name in names}
    return {name: packages[at].version for name, at in places.items() if at in packages}


class _Locked(Struct):
    """npm's record of a package that it has installed."""

    version: str = ""
    resolved: str = ""
    link: bool = False
    dependencies: dict[str, str] = {}
    optional: dict[str, str] = msgspec.field(default_factory=dict, name="optionalDependencies")
    peers: dict[str, str] = msgspec.field(default_factory=dict, name="peerDependencies")


class _LockFile(Struct):
    packages: dict[str, _Locked]


def _packages(folder: Path) -> Mapping[str, _Locked]:
    """Returns npm's own list of installed packages, by path."""
    try:
        with Folder.open(folder) as modules:
            data = modules.read(_LOCK, _LOCK_BYTES)
        return msgspec.json.decode(data, type=_LockFile).packages
    except TooLong:
        raise PackageError("npm's list of these packages is too long.") from None
    except (OSError, msgspec.MsgspecError):
        raise PackageError("npm does not tell where packages are from; it is too old.") from None


def _check_sources(packages: Mapping[str, _Locked]) -> None:
    """Raises `PackageError` unless all packages are the registry's, and none is a local file."""
    for place, locked in packages.items():
        wanted = [*locked.dependencies.items(), *locked.optional.items(), *locked.peers.items()]
        others = [name for name, each in wanted if not _OF_REGISTRY.fullmatch(each)]
        if locked.link or not (locked.resolved or "https:").startswith(("https:", "http:")):
            others.append(place.rpartition(f"{MODULES}/")[2])
        if others:
            raise PackageError(f"{plain(others[0][:100])} is not from the package registry.")


def _why(said: str, wanted: Sequence[str]) -> str:
    if "E404" in said or "ETARGET" in said:
        missing = [e for e in wanted if (e.rpartition("@")[0] or e) in said] or wanted
        return f"npm finds no such package: {', '.join(missing)}. It may be misspelt."
    if re.search(r"ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN|ECONNRESET|network", said):
        return "the package registry can't be reached from the kernel's machine."
    lines = [line.partition("npm error")[2] for line in said.splitlines() if "npm error" in line]
    return f"npm could not fetch {', '.join(wanted)}: {plain(' '.join(lines[:4]))}"


def _check(folder: Path) -> None:
    """Checks that packages are files that the guest can run; removes links.

    Raises `PackageError` if some are compiled, or there are too many files.
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
