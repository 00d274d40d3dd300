"""Builds the wheels that hold the compiled guests and their base images: an install with them
compiles nothing.

Run it with the Python of an environment in which nothing but wasm-kernel's own wheel is installed
(`make wheels` does), since the base image holds the packages that are found there.

    python compiled_wheels.py FOLDER

`wasm-kernel-compiled-code` is for processors of one kind, such as x86-64-v3. A wheel's tag can't
say that, but wasmtime checks it when it loads the code. `wasm-kernel-compiled-image` has the base
images, and the packages in Python's; images are memory, so they fit every processor. The files are
used where they are installed, without a copy.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from wasm_kernel import __version__
from wasm_kernel.codecs.table import CODECS, FOLDER
from wasm_kernel.engine.cache import INSTALLED, Cache, built_folder
from wasm_kernel.engine.compiler import X86_64_V3, Compiler, GuestBinary
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.guests.base import prepare_on_own_thread
from wasm_kernel.guests.javascript import files as javascript_files
from wasm_kernel.guests.javascript.language import JavaScriptLanguage
from wasm_kernel.guests.python import files as guest_files
from wasm_kernel.guests.python.language import PythonLanguage

MOST_BYTES = 100_000_000
"""The size of a file that PyPI takes without being asked."""

PROCESSORS = {"x86_64": (X86_64_V3, "manylinux1_x86_64")}
"""The processor and the tag of wheels for a machine; wasmtime can only compile for its own kind."""

_LICENCE = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)

Files = list[tuple[str, Path]]
"""Names in a wheel, and where the files lie."""


class WheelError(Exception):
    """A wheel can't be built; `str()` says why."""


class Wheel(Struct, frozen=True):
    """A wheel whose files are installed beside wasm-kernel.

    Attributes:
        name: The distribution's name.
        tag: The wheel's compatibility tag.
        summary: One line about it.
        files: The files that kernels use.
        licences: The licences, by their names in the wheel's metadata.
    """

    name: str
    tag: str
    summary: str
    files: Files
    licences: Files

    def write(self, folder: Path) -> Path:
        """Writes it into a folder; returns its path.

        Raises:
            WheelError: it is larger than it may be.
        """
        project = self.name.replace("-", "_")
        path = folder / f"{project}-{__version__}-{self.tag}.whl"
        info = f"{project}-{__version__}.dist-info"
        record = []
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
            for name, data in self._members(info):
                wheel.writestr(_member(name), data, zipfile.ZIP_DEFLATED, 9)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
                record.append(f"{name},sha256={digest.rstrip('=')},{len(data)}\n")
            wheel.writestr(_member(f"{info}/RECORD"), "".join([*record, f"{info}/RECORD,,\n"]))
        if path.stat().st_size > MOST_BYTES:
            raise WheelError(
                f"{path.name} has {path.stat().st_size} bytes; PyPI takes {MOST_BYTES}"
            )
        return path

    def _members(self, info: str) -> Iterator[tuple[str, bytes]]:
        for name, source in self.files:
            yield f"{INSTALLED.name}/{name}", source.read_bytes()
        for name, source in self.licences:
            yield f"{info}/licenses/{name}", source.read_bytes()
        metadata = (
            f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {__version__}\n"
            f"Summary: {self.summary}\nRequires-Python: >=3.11\n"
            f"Requires-Dist: wasm-kernel=={__version__}\n"
        )
        about = (
            f"Wheel-Version: 1.0\nGenerator: wasm-kernel\nRoot-Is-Purelib: true\nTag: {self.tag}\n"
        )
        yield f"{info}/METADATA", metadata.encode()
        yield f"{info}/WHEEL", about.encode()


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = 0o644 << 16
    return member


def code_wheel(cache: Cache, binaries: Sequence[GuestBinary], licences: Files) -> Wheel:
    """Compiles the guests and codecs for the processors of this machine's kind, into a wheel.

    Sessions with a fuel budget need other code, which is compiled where it is needed.

    Raises:
        WheelError: there is no such wheel for this kind of processor.
    """
    if platform.machine() not in PROCESSORS:
        raise WheelError(f"there are no wheels with code for {platform.machine()} yet")
    processor, tag = PROCESSORS[platform.machine()]
    compiler = Compiler(cache, processor)
    for binary in binaries:
        compiler.module(binary, UNCHECKED, _say)
    names = [compiler.name(binary, UNCHECKED) for binary in binaries]
    summary = f"The guests of wasm-kernel, compiled for {processor.name}"
    files = [(name, cache.path(name)) for name in names]
    return Wheel("wasm-kernel-compiled-code", f"py3-none-{tag}", summary, files, licences)


def image_wheel(language: PythonLanguage, javascript: JavaScriptLanguage, licences: Files) -> Wheel:
    """Builds the base images, into a wheel with the packages that Python's was built of."""
    cache, added = language.cache, guest_files.added_packages()
    for each in (language, javascript):
        prepare_on_own_thread(each, UNCHECKED, _say)
    bundle = guest_files.folder_name(language.files)
    note = cache.path(guest_files.PACKAGES_NOTE)
    note.write_bytes(msgspec.json.encode(added))
    lib = cache.path(bundle) / "lib"
    prepared = (language.prepared, javascript.prepared)
    names = [name for each in prepared for name in (each.image_name, each.record_name)]
    files = [
        *((name, cache.path(name)) for name in names),
        (f"{bundle}/{guest_files.PACKAGES_NOTE}", note),
        *((f"{bundle}/lib/{path.relative_to(lib).as_posix()}", path) for path in _files_in(lib)),
    ]
    summary = "The base images of wasm-kernel: Python with pandas and matplotlib, JavaScript"
    licences = [*licences, *added_licences()]
    return Wheel("wasm-kernel-compiled-image", "py3-none-any", summary, files, licences)


def _files_in(lib: Path) -> Iterator[Path]:
    """Yields the files of the packages; the guest's own library is in wasm-kernel's wheel."""
    found = (path for path in sorted(lib.rglob("*")) if path.is_file())
    return (path for path in found if path.name != guest_files.STDLIB_NAME)


def _licences_of(package: Distribution) -> Iterator[tuple[str, Path]]:
    for file in package.files or ():
        if ".dist-info" in file.parts[0] and _LICENCE.match(file.name):
            yield f"{package.name}/{file.name}", Path(str(file.locate()))


def added_licences() -> Iterator[tuple[str, Path]]:
    """Yields the licences of this environment's packages that Python's image holds."""
    for name in guest_files.added_packages().keys() - guest_files.OWN_PACKAGES.keys():
        yield from _licences_of(distribution(name))


def guest_licences() -> Iterator[tuple[str, Path]]:
    """Yields the licences of everything in the guest, by their names in a wheel."""
    folder = built_folder(guest_files.FOLDER)
    for path in (folder / "LICENSE", *sorted((folder / "LICENSES").iterdir())):
        yield f"guest/{path.relative_to(folder).as_posix()}", path
    for name in ("LICENSE", "NOTICE"):
        yield f"javascript/{name}", built_folder(javascript_files.FOLDER) / name
    for path in sorted((built_folder(FOLDER) / "LICENSES").iterdir()):
        yield f"codecs/{path.name}", path


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(folder: Path) -> None:
    """Builds all wheels into a folder."""
    licences = [*guest_licences(), *_licences_of(distribution("wasm-kernel"))]
    with TemporaryDirectory() as place:
        cache = Cache(Path(place), installed_in=Path(place, "none"))
        language, javascript = PythonLanguage(cache), JavaScriptLanguage(cache)
        binaries = (
            language.files.wasm,
            javascript.files.interpreter,
            javascript.files.stripper,
            *(codec.binary for codec in CODECS.values()),
        )
        code_wheel(cache, binaries, licences).write(folder)
        image_wheel(language, javascript, licences).write(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
