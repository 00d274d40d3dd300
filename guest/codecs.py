"""The recipe of the codecs: modules of WebAssembly from npm's registry, pinned and checked.

They are taken as they are. `pyproject.toml` pins for each codec the package, its version, the
SHA-256 of its archive, the file in there, that file's SHA-256, and the names of the licences.

`python -m guest.codecs FOLDER` fetches them by hand.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from guest.pinned import GuestFilesError, make_by_hand, write_sums

NOTICE = "codecs-notice.txt"
LICENCES = "LICENSES"
_REGISTRY = "https://registry.npmjs.org"
_SECONDS = 60.0
_INSIDE = "package"  # the folder in each of npm's archives


@dataclass(frozen=True)
class Codec:
    """The pins of one codec.

    Attributes:
        package: The package's name at npm.
        version: Its version.
        archive: The SHA-256 of its archive.
        file: The module's path in the archive.
        sha256: The module's SHA-256.
        licences: The paths of the licences in the archive.
    """

    package: str
    version: str
    archive: str
    file: str
    sha256: str
    licences: Sequence[str]

    @property
    def address(self) -> str:
        """The archive's address."""
        base = PurePosixPath(self.package).name
        return f"{_REGISTRY}/{self.package}/-/{base}-{self.version}.tgz"


@dataclass(frozen=True)
class Pins:
    """The pins of all codecs, by the codecs' names."""

    codecs: Mapping[str, Codec]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Pins:
        """Reads the pins from the build hook's table in `pyproject.toml`."""
        return cls({name: Codec(**row) for name, row in config["codecs"].items()})


def make(pins: Pins, folder: Path, notice: str = NOTICE) -> list[str]:
    """Fetches the codecs into a folder, with their licences; returns the files' names.

    Raises:
        GuestFilesError: an archive can't be fetched, or a file differs from its pin.
    """
    (folder / LICENCES).mkdir(parents=True, exist_ok=True)
    for name, codec in pins.codecs.items():
        with tarfile.open(fileobj=io.BytesIO(_fetched(codec))) as archive:
            module = _member(archive, codec.file, codec)
            _check(module, codec.sha256, codec.file, codec)
            (folder / PurePosixPath(codec.file).name).write_bytes(module)
            for path in codec.licences:
                text = _member(archive, path, codec)
                (folder / LICENCES / f"{name}-{PurePosixPath(path).name}").write_bytes(text)
    (folder / LICENCES / "NOTICE").write_bytes(Path(__file__).with_name(notice).read_bytes())
    return write_sums(folder)


def _fetched(codec: Codec) -> bytes:
    try:
        with urllib.request.urlopen(codec.address, timeout=_SECONDS) as reply:  # noqa: S310 - https
            data = bytes(reply.read())
    except OSError as problem:
        raise GuestFilesError(
            f"{codec.package} {codec.version} can't be fetched from npm's registry: {problem}. "
            "Nothing was built."
        ) from None
    _check(data, codec.archive, "the archive", codec)
    return data


def _member(archive: tarfile.TarFile, path: str, codec: Codec) -> bytes:
    try:
        found = archive.extractfile(f"{_INSIDE}/{path}")
    except KeyError:
        found = None
    if found is None:
        raise GuestFilesError(f"{codec.package} has no file {path}. Nothing was built.")
    return found.read()


def _check(data: bytes, digest: str, what: str, codec: Codec) -> None:
    held = hashlib.sha256(data).hexdigest()
    if held != digest:
        raise GuestFilesError(
            f"{what} of {codec.package} {codec.version} is not the pinned one: its SHA-256 is "
            f"{held}, and {digest} is expected. Nothing was built."
        )


if __name__ == "__main__":
    make_by_hand(lambda config, folder: make(Pins.of(config), folder))
