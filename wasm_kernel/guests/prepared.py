"""`PreparedFiles`: a language's cached files, which take long to make, once per machine."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from wasm_kernel.engine.compiler import Compiler, GuestBinary, Progress, every_second
from wasm_kernel.engine.flavours import FUEL, UNCHECKED, Flavour
from wasm_kernel.errors import CompileError, ImageError
from wasm_kernel.state.image import BaseImage, ImageRecord

if TYPE_CHECKING:  # kernels start sooner without it
    from wasm_kernel.engine.cache_archive import Check

_Addresses = TypeVar("_Addresses")


class PreparedFiles(Generic[_Addresses]):
    """The compiled code and the base image of a language's guest. Its language locks it.

    `binaries` are those that each guest needs, the guest's own first; `codecs` returns those that a
    cell may need later. `made_of` names the image's sources, without the compiled code: a new
    wasmtime keeps the image, and so the histories that stand on it. `addresses` is the type of the
    addresses that the language notes in the image's record.
    """

    def __init__(
        self,
        compiler: Compiler,
        binaries: Sequence[GuestBinary],
        made_of: str,
        addresses: type[_Addresses],
        codecs: Callable[[], Iterable[GuestBinary]] = tuple,
    ) -> None:
        self.image_name = f"{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.image"
        self.record_name = f"{self.image_name}.facts"
        self._compiler, self._cache = compiler, compiler.cache
        self.binaries, self._type, self.codecs = binaries, addresses, codecs
        self._image: BaseImage | None = None

    def is_compiled(self, flavour: Flavour) -> bool:
        """Loads the compiled code; returns False if some is missing.

        Raises `PermissionError` for a file that can't be trusted, nor replaced by this process.
        """
        return all(self._compiler.load(binary, flavour) for binary in self.binaries)

    def compile_codecs(self, flavour: Flavour, progress: Progress) -> None:
        """Compiles the binaries that cells may need later. Raises `CompileError`."""
        for binary in self.codecs():
            self._compiler.module(binary, flavour, progress)

    def place(self, binary: GuestBinary, flavour: Flavour) -> str:
        """Returns "compiled" if the code is in the cache, or "installed"; else `CompileError`."""
        name = self._compiler.name(binary, flavour)
        if self._cache.path(name).is_file():
            return "compiled"
        installed = self._cache.installed(name)
        if installed is None:
            raise CompileError("not compiled")
        try:
            self._compiler.check(installed, binary, flavour)
        except CompileError as problem:
            raise CompileError(f"installed, but not used ({problem})") from None
        return "installed"

    def image_at_hand(self) -> BaseImage | None:
        """Returns the base image in the cache, or the installed one; None if there is neither."""
        try:
            for find in (self._cache.trusted, self._cache.installed):
                if self._image is None:
                    described, memory = find(self.record_name), find(self.image_name)
                    if described is not None and memory is not None:
                        self._use(ImageRecord.load(described.read_text()), memory)
        except (ImageError, msgspec.ValidationError, ValueError):
            self._cache.discard(self.record_name, "is damaged")
        return self._image

    def _use(self, record: ImageRecord, memory: Path) -> None:
        msgspec.convert(record.extra, self._type, str_keys=True)  # raises if it is damaged
        self._image = BaseImage(memory, self.image_name, record)

    def build_image(
        self, build: Callable[[], ImageRecord], what: str, progress: Progress
    ) -> BaseImage:
        """Returns the base image; builds it, unless another process has done so in the meantime.

        `build` writes the image to the cache, and returns its record; `what` names it for people.
        """
        waiting = every_second(
            lambda seconds: progress(
                f"another process prepares {what}: waiting for {seconds:.0f} s"
            )
        )
        with self._cache.lock(self.image_name, waiting):
            if self.image_at_hand() is None:
                self._cache.remove_unused()
                record = build()
                self._cache.write(self.record_name, lambda path: path.write_text(record.dump()))
                self._use(record, self._cache.path(self.image_name))
        assert self._image is not None
        return self._image

    def paths(self, flavour: Flavour) -> Iterator[Path]:
        """Yields the paths of those files that exist."""
        binaries = (*self.binaries, *self.codecs())
        names = [self._compiler.name(binary, flavour) for binary in binaries]
        for name in (*names, self.image_name, self.record_name):
            path = self._cache.trusted(name) or self._cache.installed(name)
            if path is not None:
                yield path

    @contextlib.contextmanager
    def being_imported(self) -> Iterator[Mapping[str, Check | None]]:
        """Yields the names of workers' files, each with the check of a file from another machine.

        The check is None for an existing file, which stays because sessions need it.
        """
        self._cache.prepare()
        known: dict[str, Check | None] = {}
        for flavour in (UNCHECKED, FUEL):
            for binary in (*self.binaries, *self.codecs()):
                check = partial(self._compiler.check, binary=binary, flavour=flavour)
                is_there = self._compiler.load(binary, flavour)
                known[self._compiler.name(binary, flavour)] = None if is_there else check
        with self._cache.lock(self.image_name, lambda seconds: None):
            is_there = self.image_at_hand() is not None
            known[self.image_name] = None if is_there else lambda path: None
            known[self.record_name] = None if is_there else _check_record
            yield known


def _check_record(path: Path) -> None:
    ImageRecord.load(path.read_text(errors="replace"))
