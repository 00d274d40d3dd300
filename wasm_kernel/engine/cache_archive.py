"""Files of the cache in one archive, which carries them to another machine.

The archive holds native code, which will run with the rights of the user who imports it. So an
import needs the user's command and the archive's digest, and no other user may be able to change
the archive. It takes only files that this installation would have made itself under the same name:
a file's name stands for everything that it is made of.

It is a tar file, compressed with zstd.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from wasm_kernel.engine.cache import Cache, distrust
from wasm_kernel.errors import WasmKernelError, describe

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 3
_BLOCK = 65_536

Check = Callable[[Path], None]
"""Raises a `WasmKernelError` if an unpacked file does not fit this machine."""


class CacheArchiveError(WasmKernelError):
    """An archive of the cache can't be taken in; `str()` says why."""


def write_archive(paths: Iterable[Path], target: Path) -> str:
    """Writes files into an archive, which appears whole; returns its SHA-256.

    Raises `CacheArchiveError` if it can't be written.
    """
    try:
        return _written(paths, target)
    except OSError as problem:
        raise CacheArchiveError(
            f"{target} can't be written ({describe(problem)}). Name a file in a folder that you "
            "can write to, on a disk with room for it."
        ) from None


def _written(paths: Iterable[Path], target: Path) -> str:
    with NamedTemporaryFile(prefix=f".{target.name}.", dir=target.parent, delete=False) as aside:
        try:
            with (
                zstd.open(aside, "wb", level=_LEVEL) as packed,
                tarfile.open(fileobj=packed, mode="w|") as archive,
            ):
                for path in paths:
                    archive.add(path, path.name, filter=_plain)
            os.fsync(aside.fileno())
            aside.seek(0)
            digest = hashlib.file_digest(aside, "sha256").hexdigest()
            Path(aside.name).replace(target)
        except BaseException:
            Path(aside.name).unlink(missing_ok=True)
            raise
    return digest


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leaves out a file's owner and times."""
    plain = tarfile.TarInfo(member.name)
    plain.size = member.size
    return plain


def read_archive(
    source: Path, sha256: str, cache: Cache, known: Mapping[str, Check | None]
) -> tuple[str, ...]:
    """Puts those files of an archive into the cache that are missing there; returns their names.

    `known` maps the name of each file that this installation uses to its check, or to None if the
    cache has the file. Raises `CacheArchiveError`, with nothing taken, if `sha256` is not the
    archive's digest, other users could have changed it, or none of its files is of use here.
    """
    taken: list[str] = []
    is_of_use = False
    with _trusted(source, sha256) as file:
        try:
            with (
                zstd.open(file, "rb") as unpacked,
                tarfile.open(fileobj=unpacked, mode="r|") as archive,
            ):
                for member in archive:
                    content = archive.extractfile(member)
                    if content is None or member.name not in known:
                        continue
                    is_of_use, check = True, known[member.name]
                    if check is not None:
                        _import_file(cache, member.name, content, check)
                        taken.append(member.name)
        except (tarfile.TarError, zstd.ZstdError, EOFError):
            raise CacheArchiveError(
                f"{source.name} was not written by `wasm-kernel warm --export`."
            ) from None
    if not is_of_use:
        raise CacheArchiveError(
            f"{source.name} was exported by another version of wasm-kernel or wasmtime. Nothing "
            "was taken from it. Export it anew with the versions that are installed here."
        )
    return tuple(taken)


@contextmanager
def _trusted(source: Path, sha256: str) -> Iterator[IO[bytes]]:
    with os.fdopen(os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if why := distrust(os.fstat(file.fileno()), folder=False):
            raise CacheArchiveError(
                f"{source.name} {why}. The code in it would run with your rights: nothing was "
                "taken from it. Copy it to where only you can write, and compare its digest."
            )
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256.lower():
            raise CacheArchiveError(
                f"{source.name} is not the archive that was meant: its SHA-256 is {digest}. "
                "Nothing was taken from it."
            )
        file.seek(0)
        yield file


def _import_file(cache: Cache, name: str, content: IO[bytes], check: Check) -> None:
    def fill(path: Path) -> None:
        with path.open("wb") as file:
            while block := content.read(_BLOCK):
                if block.count(0) == len(block):
                    file.seek(len(block), os.SEEK_CUR)  # a hole: empty memory takes no space
                else:
                    file.write(block)
            file.truncate()
        check(path)

    cache.write(name, fill)
