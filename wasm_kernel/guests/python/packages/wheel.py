"""A wheel, taken apart without running any of it.

The file comes from an index, so it is hostile until checked: its names, sizes, kinds of files and
hashes. Only the files that a pure-Python package installs are taken: no scripts, no headers, no
data, and no compiled code. The format is that of
<https://packaging.python.org/en/latest/specifications/binary-distribution-format/>.
"""

from __future__ import annotations

import csv
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path

from installer.records import Hash
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages.requirements import (
    NEED_CHARACTERS,
    NEEDS_MOST,
    KnownPackage,
)

FILES_MOST = 20_000
BYTES_MOST = 256 * 1024 * 1024
_RATIO_MOST = 200  # no source text is compressed more; a zip bomb is, by far
_RATIO_FROM = 1024 * 1024
_PART_BYTES = 255
_PATH_BYTES = 1_000  # the system takes 4,096, for the folder's path and a link's in front as well
_DEPTH_MOST = 40
_HEADER_BYTES = 256 * 1024  # the slowest take half a second
_RECORD_BYTES = 4 * 1024 * 1024
_DIRECTORY_BYTES = 8 * 1024 * 1024
_COMPILED = (".so", ".pyd", ".dylib")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the output of others has no bound
_DIGESTS = ("sha256", "sha384", "sha512")
_UNSIGNED = ("RECORD", "RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class Wheel:
    """A wheel whose contents passed every check except that of hashes, which `files` does.

    Make one with `open_wheel`. `dist_info` is the name of its metadata's folder in the wheel.
    """

    path: Path
    known: KnownPackage
    dist_info: str
    infos: tuple[zipfile.ZipInfo, ...]

    @property
    def name(self) -> str:
        """The canonical name of the wheel's package."""
        return self.known.name

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields the files to install: paths below the folder for packages, and their content.

        Raises `PackageError` if a file differs from the wheel's record.
        """
        record = self._record()
        with zipfile.ZipFile(self.path) as archive:
            for info in self.infos:
                place = self._place(info.filename)
                data = _unpacked(archive, info, self.name)
                if not _matches(info.filename, data, record, self.dist_info):
                    shown = _shown(info.filename)
                    raise PackageError(f"{self.name}: {shown} is not what its record says.")
                if place is not None:
                    yield place, data

    def _place(self, name: str) -> str | None:
        """Returns the path to which a member is installed; None if it is not installed."""
        top, _, rest = name.partition("/")
        if not top.endswith(".data"):
            useless = (name.endswith(".pth") and not rest) or name.endswith(".pyc")
            return None if useless else name
        kind, _, inside = rest.partition("/")
        return inside if kind == "purelib" and inside else None

    def _record(self) -> Mapping[str, str]:
        """The hash of each file, as the wheel's record has it."""
        data = _read(self.path, f"{self.dist_info}/RECORD", _RECORD_BYTES)
        text = data.decode("utf-8", "replace")
        try:
            return {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) > 1}
        except csv.Error:
            raise PackageError(f"{self.name}: the wheel's record can't be read.") from None


def open_wheel(path: Path) -> Wheel:
    """Returns the wheel at `path`; `PackageError` says why it may not be installed."""
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        raise PackageError(f"{_shown(path.name)} is not a wheel.") from None
    if {(tag.abi, tag.platform) for tag in tags} != {("none", "any")}:
        raise PackageError(f"{name} {version} holds compiled code, which the sandbox can't run.")
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            infos = tuple(info for info in archive.infolist() if not info.is_dir())
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError):
        raise PackageError(f"the wheel of {name} {version} is damaged.") from None
    _check_sizes(name, infos)
    for info in infos:
        _check_member(name, info)
    dist_info = _dist_info(name, version, infos)
    return Wheel(path, _known(path, dist_info, name, version), dist_info, infos)


def _check_directory(path: Path) -> None:
    """Raises `ValueError` if the archive's own list of files is too long to be read."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65_557))  # the longest comment, and the end record
        tail = file.read()
    for end in re.finditer(rb"PK\x05\x06", tail):  # a reader may take any of them for the end
        at = end.start()
        if b"PK\6\7" in tail[max(0, at - 20) : at]:
            raise ValueError("an archive for huge files")
        if int.from_bytes(tail[at + 12 : at + 16], "little") > _DIRECTORY_BYTES:
            raise ValueError("too many files")


def _check_sizes(name: str, infos: tuple[zipfile.ZipInfo, ...]) -> None:
    if len(infos) > FILES_MOST:
        raise PackageError(f"{name} has more than {FILES_MOST:,} files.")
    unpacked, packed = (sum(getattr(i, k) for i in infos) for k in ("file_size", "compress_size"))
    if unpacked > BYTES_MOST or unpacked > _RATIO_FROM + _RATIO_MOST * packed:
        raise PackageError(f"{name} would take {unpacked / 2**20:,.0f} MiB, which is too much.")
    if len({info.filename for info in infos}) != len(infos):
        raise PackageError(f"{name} holds two files of one name.")


def _check_member(name: str, info: zipfile.ZipInfo) -> None:
    path = info.filename
    parts = path.split("/")
    odd = any(part in ("", ".", "..") or len(part.encode()) > _PART_BYTES for part in parts)
    odd = odd or len(parts) > _DEPTH_MOST or len(path.encode()) > _PATH_BYTES
    if odd or "\\" in path or ":" in parts[0] or not path.isprintable():
        raise PackageError(f"{name} holds a file with a name that can't be used: {_shown(path)}.")
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise PackageError(f"{name} holds {_shown(path)}, which is not an ordinary file.")
    if info.flag_bits & 0x1:
        raise PackageError(f"{name} holds encrypted files.")
    if info.compress_type not in _METHODS:
        raise PackageError(f"{name} is packed in a way that wheels are not.")
    if path.lower().endswith(_COMPILED) or "/platlib/" in path:
        raise PackageError(f"{name} holds compiled code ({_shown(path)}).")


def _dist_info(name: str, version: Version, infos: tuple[zipfile.ZipInfo, ...]) -> str:
    tops = {info.filename.partition("/")[0] for info in infos if "/" in info.filename}
    folders = [top for top in tops if top.endswith(".dist-info")]
    if len(folders) == 1:
        found, _, number = folders[0].removesuffix(".dist-info").partition("-")
        with suppress(InvalidVersion):
            if canonicalize_name(found) == name and Version(number) == version:
                return folders[0]
    raise PackageError(f"the wheel of {name} {version} has no folder of metadata of that name.")


def _known(path: Path, dist_info: str, name: str, version: Version) -> KnownPackage:
    """Returns the package in a wheel, with its needs, from the wheel's metadata."""
    headers = _headers(path, f"{dist_info}/WHEEL", name)
    pure = str(headers.get("Root-Is-Purelib", "")).strip().lower() == "true"
    if not pure or str(headers.get("Wheel-Version", "")).partition(".")[0].strip() != "1":
        raise PackageError(f"{name} {version} is not a pure-Python wheel.")
    headers = _headers(path, f"{dist_info}/METADATA", name)
    if canonicalize_name(str(headers.get("Name", ""))) != name:
        raise PackageError(f"the wheel of {name} says that it is another package.")
    needs = tuple(map(str, headers.get_all("Requires-Dist", [])))
    if len(needs) > NEEDS_MOST or any(len(need) > NEED_CHARACTERS for need in needs):
        raise PackageError(f"{name} has more requirements than can be read.")
    return KnownPackage(name, version, needs)


def _headers(path: Path, member: str, name: str) -> Message:
    """Returns the headers of a file of metadata, without the text below them."""
    data = _read(path, member, _HEADER_BYTES)
    head, blank, _ = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    if not blank and len(data) == _HEADER_BYTES:
        raise PackageError(f"{name} has more metadata than can be read.")
    return BytesHeaderParser().parsebytes(head)


def _read(path: Path, member: str, most: int) -> bytes:
    """Returns up to `most` bytes of a file of metadata; none if it is missing."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            return file.read(most)
    except (KeyError, OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return b""


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> bytes:
    """A member's content, which is never longer than its entry says."""
    try:
        with archive.open(info) as file:
            data = file.read(info.file_size + 1)
    except Exception:  # zlib's errors, checksums, unknown methods: all mean a damaged file
        raise PackageError(f"the wheel of {name} is damaged.") from None
    if len(data) != info.file_size:
        raise PackageError(f"the wheel of {name} is damaged.")
    return data


def _matches(path: str, data: bytes, record: Mapping[str, str], dist_info: str) -> bool:
    if path in {f"{dist_info}/{each}" for each in _UNSIGNED}:
        return True
    kind, _, digest = record.get(path, "").partition("=")
    return kind in _DIGESTS and Hash(kind, digest.rstrip("=")).validate(data)


def _shown(name: str) -> str:
    """A name from a wheel, fit to be printed."""
    return "".join(c if c.isprintable() else "?" for c in name[:120])
