"""JavaScript as a guest language: compiling its guest, building its base image, starting guests."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiled, Compiler, Progress, every_second
from wasm_kernel.engine.flavours import FLAVOURS, Flavour
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.errors import BundleError, ImageError
from wasm_kernel.folders.folders import FETCHED, PACKAGES, SandboxFolders
from wasm_kernel.folders.hiding import PlacesHidden
from wasm_kernel.guests.base import (
    CommandHandler,
    Finding,
    GuestSetup,
    LanguageInfo,
    PrepareGuest,
)
from wasm_kernel.guests.javascript import files as guest_files
from wasm_kernel.guests.javascript.cells import JavaScriptCell
from wasm_kernel.guests.javascript.files import GuestFiles
from wasm_kernel.guests.javascript.guest import (
    Addresses,
    HostImports,
    Interrupts,
    JavaScriptGuest,
)
from wasm_kernel.guests.javascript.host_functions import AgentCalls
from wasm_kernel.guests.javascript.image import BOOT, ImageBuilder
from wasm_kernel.guests.javascript.modules import ModuleLoader
from wasm_kernel.guests.javascript.quickjs import QuickJs
from wasm_kernel.guests.javascript.stripper import StripperFactory
from wasm_kernel.linux.broker import Broker, Done
from wasm_kernel.linux.task import Reporting
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import image
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.state.pages import check_pages
from wasm_kernel.wasi_files.access import FileAccess
from wasm_kernel.wasi_files.preopens import Preopen, Preopens

if TYPE_CHECKING:  # kernels start sooner without it
    from wasm_kernel.engine.cache_archive import Check

_HELP_LINKS = (
    ("JavaScript Reference", "https://developer.mozilla.org/docs/Web/JavaScript/Reference"),
    ("TypeScript Handbook", "https://www.typescriptlang.org/docs/handbook/intro.html"),
)


class JavaScriptLanguage:
    """The JavaScript guests of one process: a `GuestLanguage`. Guest threads prepare it; any of
    them may then use it.

    Args:
        cache: Where what takes long is kept; this user's by default.
        broker: Makes what is missing there, if this process may not.
    """

    name = "javascript"
    library_paths = frozenset({guest_files.LIBRARY_GUEST})
    where_commands_stand = "at its top, before any JavaScript, on a line of its own."

    def __init__(self, cache: Cache | None = None, broker: Broker | None = None) -> None:
        self.cache = cache or Cache()
        self._broker = broker
        self.compiler = Compiler(self.cache)
        self._guard = threading.Lock()
        self._image: BaseImage | None = None
        self._addresses: Addresses | None = None

    @cached_property
    def files(self) -> GuestFiles:
        """The guest's files."""
        return guest_files.guest_files()

    @cached_property
    def image_name(self) -> str:
        """The cache's name for the base image of this interpreter and agent."""
        text = f"javascript {self.files.key} {image.FORMAT} {BOOT}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.image"

    @property
    def record_name(self) -> str:
        """The cache's name for the image's record."""
        return f"{self.image_name}.facts"

    @property
    def info(self) -> LanguageInfo:
        """Facts about it that are known without a running guest."""
        language = {
            "name": "javascript",
            "version": f"ES2025, QuickJS-NG {guest_files.VERSION}",
            "mimetype": "application/typescript",
            "codemirror_mode": "typescript",
            "pygments_lexer": "typescript",
            "nbconvert_exporter": "script",
            "file_extension": ".ts",
        }
        return LanguageInfo("JavaScript and TypeScript", language, _HELP_LINKS)

    def examine(self) -> Iterator[Finding]:
        """Yields findings about its files and its cache; changes nothing."""
        try:
            files = self.files
        except BundleError as problem:
            yield Finding("broken", str(problem))
            return
        build = f"build {files.interpreter.sha256[:12]}"
        yield Finding(
            "ok", f"the guest is JavaScript, by QuickJS-NG {guest_files.VERSION} ({build})"
        )
        late = "the first sandbox waits some seconds"
        for flavour in FLAVOURS.values():
            name = self.compiler.name(files.interpreter, flavour)
            found = self.cache.path(name).is_file()
            what = f"the JavaScript guest for {flavour.purpose} is"
            state = "compiled" if found else f"not compiled: {late}"
            yield Finding("ok" if found else "note", f"{what} {state}")

    def prepare(self, flavour: Flavour, progress: Progress) -> BaseImage:
        """Compiles the guest and builds its base image, if either is missing."""
        with self._guard:
            check_pages()
            if self._broker is not None and not self._is_prepared(flavour):
                self._broker.call(PrepareGuest(flavour.name), Done, Reporting(progress))
            self.compiler.module(self.files.stripper, flavour, progress)
            compiled = self.compiler.module(self.files.interpreter, flavour, progress)
            return self.image_at_hand() or self._build(ImageBuilder(compiled, self.files), progress)

    def _is_prepared(self, flavour: Flavour) -> bool:
        try:
            return self.is_compiled(flavour) and self.image_at_hand() is not None
        except PermissionError:
            return False  # something there is not to be trusted, and not ours to replace

    def _build(self, builder: ImageBuilder, progress: Progress) -> BaseImage:
        waiting = every_second(
            lambda seconds: progress(f"another process prepares JavaScript: {seconds:.0f} s")
        )
        with self.cache.lock(self.image_name, waiting):
            if self.image_at_hand() is None:
                self.cache.sweep()
                record = builder.build(self.cache, self.image_name)
                self.cache.write(self.record_name, lambda path: _write(path, record))
                self._take(record, self.cache.path(self.image_name))
        assert self._image is not None
        return self._image

    def image_at_hand(self) -> BaseImage | None:
        """Returns the base image in the cache, or the installed one; None if there is neither."""
        try:
            for find in (self.cache.trusted, self.cache.installed):
                if self._image is None:
                    described, memory = find(self.record_name), find(self.image_name)
                    if described is not None and memory is not None:
                        self._take(ImageRecord.load(described.read_text()), memory)
        except (ImageError, msgspec.ValidationError, ValueError):
            self.cache.discard(self.record_name, "is damaged")
        return self._image

    def _take(self, record: ImageRecord, memory: Path) -> None:
        self._addresses = msgspec.convert(record.extra, Addresses)
        self._image = BaseImage(memory, self.image_name, record)

    def is_compiled(self, flavour: Flavour) -> bool:
        """Returns whether there is code of a flavour, in the cache or installed."""
        binaries = (self.files.interpreter, self.files.stripper)
        return all(self.compiler.load(each, flavour) for each in binaries)

    def code_for(self, flavour: Flavour) -> Flavour:
        """Returns the flavour itself: it is compiled in seconds."""
        return flavour

    def prepared(self, flavour: Flavour) -> list[Path]:
        """Returns the files that `prepare` made, or that were installed."""
        binaries = (self.files.interpreter, self.files.stripper)
        names = [self.compiler.name(binary, flavour) for binary in binaries]
        names += [self.image_name, self.record_name]
        found = (self.cache.trusted(name) or self.cache.installed(name) for name in names)
        return [path for path in found if path is not None]

    @contextlib.contextmanager
    def importing(self) -> Iterator[Mapping[str, Check | None]]:
        """Gives the names of the files that `prepare` makes; as `GuestLanguage` has it."""
        self.cache.prepare()
        known: dict[str, Check | None] = {}
        for flavour in FLAVOURS.values():
            for binary in (self.files.interpreter, self.files.stripper):
                check = partial(self.compiler.check, binary=binary, flavour=flavour)
                is_there = self.compiler.load(binary, flavour)
                known[self.compiler.name(binary, flavour)] = None if is_there else check
        with self.cache.lock(self.image_name, lambda seconds: None):
            is_there = self.image_at_hand() is not None  # it stays: sessions stand on it
            known[self.image_name] = None if is_there else lambda path: None
            known[self.record_name] = None if is_there else _check_record
            yield known

    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """Returns `/app`, `/tmp`, packages, mounts, and the notebook's folder."""
        held = folders.held(policy.mounts)
        mounts = tuple(
            Preopen(folder, mount.guest, writable=mount.writable, hidden=PlacesHidden(folder))
            for mount, folder in zip(policy.mounts, held, strict=True)
        )
        if folders.notebook is not None:
            mounts = (*mounts, folders.notebook)
        scratch = Preopen(folders.scratch, "/tmp", writable=True, counted=True)  # noqa: S108 - a guest path
        packages = Preopen(folders.packages, guest_files.LIBRARY_GUEST)
        return Preopens((folders.app, scratch, packages, *mounts))

    def start(self, setup: GuestSetup) -> JavaScriptGuest:
        """Returns a booted guest."""
        base, addresses = self._image, self._addresses
        if base is None or addresses is None:
            raise ImageError("the JavaScript guest was not prepared")
        options = InstanceOptions(
            setup.memory_bytes,
            clock_before=setup.clock_before,
            deterministic=setup.deterministic,
        )
        interrupts = Interrupts()
        host = HostImports(interrupts)
        compiled = self.compiler.module(self.files.interpreter, setup.flavour, _quietly)
        with contextlib.ExitStack() as held:
            held.callback(setup.files.close)
            instance = Instance(compiled, (setup.files, host), options, setup.clock, setup.streams)
            held.callback(instance.close)
            base.attach(instance)
            held.pop_all()
        strippers = StripperFactory(self._stripper(setup.flavour), setup.clock, setup.memory_bytes)
        guest = JavaScriptGuest(
            instance, addresses, host, setup, strippers=strippers, interrupts=interrupts
        )
        host.loader = ModuleLoader(self.files.modules, _access(setup), guest.without_types)
        host.calls = AgentCalls(
            QuickJs(instance, addresses.slot),
            setup.answer,
            devices=setup.streams.devices(),
            loader=host.loader,
            files=_access(setup),
            should_stop=setup.clock.should_stop,
            random=instance.random,
        )
        return guest

    def _stripper(self, flavour: Flavour) -> Callable[[], Compiled]:
        return lambda: self.compiler.module(self.files.stripper, flavour, _quietly)

    def parse_cell(self, code: str) -> JavaScriptCell:
        """Reads a cell's text."""
        return JavaScriptCell(code)

    def commands(self, folders: SandboxFolders) -> Mapping[str, CommandHandler]:
        """Returns `%npm`."""
        from wasm_kernel.guests.javascript.npm import NpmCommand

        command = NpmCommand(folders.private_path / PACKAGES, folders.private_path / FETCHED)
        return {"npm": command}


def _access(setup: GuestSetup) -> Callable[[], FileAccess]:
    """Returns a guest's files, of which nothing is made until a cell first asks for them."""
    return cache(lambda: FileAccess(setup.files))


def _check_record(path: Path) -> None:
    ImageRecord.load(path.read_text())


def _write(path: Path, record: ImageRecord) -> None:
    path.write_text(record.dump())


def _quietly(text: str) -> None:
    pass


@cache
def shared_language(broker: Broker | None = None) -> JavaScriptLanguage:
    """Returns the one that the sandboxes of this process with this broker share."""
    return JavaScriptLanguage(broker=broker)
