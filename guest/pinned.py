"""Files of upstream's wheels, pinned by version and SHA-256: found, checked, and written down."""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
_REMEDY = "Build with isolation, or install the build requirements of pyproject.toml first."
_DAMAGED = (
    "Nothing was built. If upstream made a new release, follow docs/releases.md; else the "
    "download was damaged or replaced."
)


class GuestFilesError(Exception):
    """The guest's files are missing, or differ from their pins."""


def pinned_version(config: Mapping[str, Any], name: str) -> str:
    """Returns the version of a package that the build hook's table in `pyproject.toml` names."""
    pinned: dict[str, str] = dict(each.split("==") for each in config["dependencies"])
    return pinned[name]


def upstream(name: str, pinned: str) -> Distribution:
    """Returns an installed package, which must be of the pinned version.

    Raises:
        GuestFilesError: it is another version, or not installed.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise GuestFilesError(
            f"{name} {pinned} is not installed where wasm-kernel is built. {_REMEDY}"
        ) from None
    if found.version != pinned:
        raise GuestFilesError(
            f"wasm-kernel is built from {name} {pinned}, and {found.version} is installed here. "
            f"{_REMEDY}"
        )
    return found


def digest_of(path: Path) -> str:
    """Returns a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, digest: str, package: str) -> None:
    """Checks that a file of a package has its pinned sum.

    Raises:
        GuestFilesError: it is missing or differs.
    """
    try:
        held = digest_of(path)
    except OSError as problem:
        raise GuestFilesError(
            f"{path.name} of {package} can't be read: {problem.strerror}"
        ) from None
    if held != digest:
        raise GuestFilesError(
            f"{path.name} of {package} is not the pinned file: its SHA-256 is {held}, and "
            f"{digest} is expected. {_DAMAGED}"
        )


def check_patched(module: bytes, digest: str, name: str) -> None:
    """Checks that a patched module has its pinned sum.

    Raises:
        GuestFilesError: it differs.
    """
    held = hashlib.sha256(module).hexdigest()
    if held != digest:
        raise GuestFilesError(
            f"the patched {name} has the SHA-256 {held}, and pyproject.toml expects {digest}. "
            "Nothing was built. If a patch was changed, note the new sum there."
        )


def write_sums(folder: Path) -> list[str]:
    """Writes the sums of all files in a folder beside them; returns all names."""
    (folder / SUMS).unlink(missing_ok=True)  # the list of an earlier build
    found = (path for path in folder.rglob("*") if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in found)
    (folder / SUMS).write_text("".join(f"{digest_of(folder / name)}  {name}\n" for name in names))
    return sorted([*names, SUMS])


def make_by_hand(make: Callable[[Mapping[str, Any], Path], object]) -> None:
    """Makes a guest's files in the folder that the command line names.

    Args:
        make: Makes them, with the build hook's table in `pyproject.toml`.
    """
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    try:
        make(hook, Path(sys.argv[1]))
    except GuestFilesError as problem:
        sys.exit(str(problem))
