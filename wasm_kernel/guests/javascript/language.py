"""JavaScript as a guest language: compiling its guest, building its base image, starting guests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, partial
from itertools import takewhile
from typing import ClassVar

import msgspec

from wasm_kernel.engine.compiler import Progress
from wasm_kernel.engine.flavours import Flavour
from wasm_kernel.errors import BundleError
from wasm_kernel.folders.folders import FETCHED, PACKAGES, SandboxFolders
from wasm_kernel.guests.base import (
    CommandHandler,
    CommandLine,
    Finding,
    GuestLanguage,
    GuestSetup,
    ParsedCell,
    examine_code,
)
from wasm_kernel.guests.broker_handlers import PrepareGuest
from wasm_kernel.guests.javascript import files as guest_files
from wasm_kernel.guests.javascript.files import JavaScriptFiles
from wasm_kernel.guests.javascript.guest import (
    HostImports,
    Interrupts,
    JavaScriptAddresses,
    JavaScriptGuest,
)
from wasm_kernel.guests.javascript.host_functions import AgentCalls
from wasm_kernel.guests.javascript.image import BOOT, build_image
from wasm_kernel.guests.javascript.modules import ModuleLoader
from wasm_kernel.guests.prepared import PreparedFiles
from wasm_kernel.linux.broker import EmptyReply
from wasm_kernel.linux.task import Reporting
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import image
from wasm_kernel.state.image import BaseImage
from wasm_kernel.state.pages import check_pages
from wasm_kernel.wasi_files.access import FileAccess
from wasm_kernel.wasi_files.preopens import Preopen, Preopens


class JavaScriptCell(ParsedCell, frozen=True):
    """The text of a cell of JavaScript or TypeScript."""

    comment: ClassVar[str] = "//"

    def commands(self, names: Collection[str]) -> list[CommandLine]:
        """Returns the commands among `names` at the cell's top, in their order."""
        top = takewhile(bool, map(self.command, self.lines()))
        return [command for command in top if command is not None and command.name in names]


class JavaScriptLanguage(GuestLanguage):
    """The JavaScript guests of one process."""

    name = "javascript"
    title = "JavaScript"
    library_paths = frozenset({guest_files.LIBRARY_GUEST})
    where_commands_stand = "at its top, before any JavaScript, on a line of its own."
    host_imports = HostImports.imports
    parse_cell = JavaScriptCell

    @cached_property
    def files(self) -> JavaScriptFiles:
        """The guest's files."""
        return guest_files.guest_files()

    @cached_property
    def prepared(self) -> PreparedFiles[JavaScriptAddresses]:
        """The language's code and its base image in the cache."""
        made_of = f"javascript {self.files.key} {image.FORMAT} {BOOT}"
        binaries = (self.files.interpreter, self.files.stripper)
        return PreparedFiles(self.compiler, binaries, made_of, JavaScriptAddresses)

    def examine(self) -> Iterator[Finding]:
        """Yields findings about the language's files and its cache; changes nothing."""
        try:
            files = self.files
        except BundleError as problem:
            yield Finding("broken", str(problem))
            return
        made = f"QuickJS-NG {guest_files.VERSION} (build {files.interpreter.sha256[:12]})"
        yield Finding("ok", f"the guest is JavaScript, by {made}")
        late = "the first session waits some seconds"
        yield from examine_code(self.prepared, "the JavaScript guest", late)

    def prepare(self, flavour: Flavour, progress: Progress) -> BaseImage:
        """Compiles the guest and builds its base image, if either is missing."""
        with self._guard:
            check_pages()
            if self._broker is not None and not self._is_prepared(flavour):
                request = PrepareGuest(flavour.name, shell=self.name == "shell")
                self._broker.call(request, EmptyReply, Reporting(progress))
            self.compiler.module(self.files.stripper, flavour, progress)
            compiled = self.compiler.module(self.files.interpreter, flavour, progress)
            name = self.prepared.image_name
            build = partial(build_image, compiled, self.files, self.cache, name)
            at_hand = self.prepared.image_at_hand()
            return at_hand or self.prepared.build_image(build, self.title, progress)

    def _is_prepared(self, flavour: Flavour) -> bool:
        try:
            is_compiled = self.prepared.is_compiled(flavour)
            return is_compiled and self.prepared.image_at_hand() is not None
        except PermissionError:
            return False  # a file there can't be trusted, and this process may not replace it

    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """Returns `/app`, `/tmp`, packages, mounts, and the notebook's folder."""
        scratch = Preopen(folders.scratch, "/tmp", writable=True, counted=True)  # noqa: S108 - a guest path
        packages = Preopen(folders.packages, guest_files.LIBRARY_GUEST)
        mounts = folders.preopened(policy.mounts)
        return Preopens((folders.app, scratch, packages, *mounts), home=policy.door.home)

    def start(self, setup: GuestSetup) -> JavaScriptGuest:
        """Returns a booted guest."""
        addresses = msgspec.convert(setup.image.record.extra, JavaScriptAddresses, str_keys=True)
        host = HostImports(self._interrupts(setup))
        compiled = partial(self.compiler.module, flavour=setup.flavour)
        instance = setup.instance(compiled(self.files.interpreter), host)
        stripper = partial(compiled, self.files.stripper)
        guest = JavaScriptGuest(instance, addresses, host, setup, stripper)
        files, should_stop = FileAccess(setup.files), setup.clock.should_stop
        host.loader = ModuleLoader(
            self.files.modules, lambda: files, guest.without_types, should_stop
        )
        host.calls = AgentCalls(guest.engine, setup, host.loader, instance.random)
        return guest

    def _interrupts(self, setup: GuestSetup) -> Interrupts:
        """Returns the interrupts of a guest."""
        return Interrupts()

    def commands(self, folders: SandboxFolders) -> Mapping[str, CommandHandler]:
        """Returns `%npm`."""
        from wasm_kernel.guests.javascript.npm import NpmCommand

        command = NpmCommand(folders.private.path / PACKAGES, folders.private.path / FETCHED)
        return {"npm": command}


LANGUAGE = JavaScriptLanguage
