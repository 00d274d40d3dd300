"""CPython as a guest language: compiling it, building its base image, starting guests."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from wasm_kernel.engine import abi
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.compiler import Compiled, Compiler, Progress, every_second
from wasm_kernel.engine.host_calls import BoundGuest, Handler, Import, OutOfBounds
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import NAMES, OutputStreams, limit_of
from wasm_kernel.errors import BundleError, GuestCrashed, GuestStopped, ImageError
from wasm_kernel.folders.folders import FETCHED, PACKAGES, SITE, SandboxFolders
from wasm_kernel.folders.hiding import PlacesHidden
from wasm_kernel.guests import protocol
from wasm_kernel.guests.base import GuestSetup, LanguageInfo, LanguageTexts
from wasm_kernel.guests.commands import CommandContext, CommandHandler, CommandLine
from wasm_kernel.guests.python import files as guest_files
from wasm_kernel.guests.python import outer
from wasm_kernel.guests.python.cells import PythonCell
from wasm_kernel.guests.python.files import GuestFiles, GuestFolders
from wasm_kernel.guests.python.image import (
    PRNG_ROUND,
    SIGNALS_ROUND,
    SIGNALS_SETUP,
    Addresses,
    SignalWords,
    find_sqlite_prngs,
    make_immortal,
    reseed_sqlite,
    signal_candidates,
)
from wasm_kernel.guests.python.outer import PrepareGuest
from wasm_kernel.linux.broker import Broker, Done, Handlers
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import CallbackTask
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import image
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import NO_FILE_HISTORY
from wasm_kernel.wasi_files.preopens import Preopen, Preopens
from wasm_kernel.wasi_files.quota import Quota

# The agent's anchor (in `wasm_kernel_agent/agent.py`): a turn that needs no import and no builtin,
# so that it works whatever a cell did to either.
_TURN = b"0j.__class__.__subclasses__()[0].turn()"
_BOOT = (
    f"import sys\nsys.path.append('{guest_files.LIB_GUEST}/{guest_files.BUNDLE_NAME}')\n"
    f"import wasm_kernel_agent\nwasm_kernel_agent.turn()"
)
_ARGV = ("python",)
_ENV = {
    "HOME": "/app",
    "PYTHONTZPATH": "",
    "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108 - a guest path
    "IPYTHONDIR": "/tmp/ipython",  # noqa: S108 - a guest path
    "TMPDIR": "/tmp",  # noqa: S108 - a guest path
    "SCIKIT_LEARN_DATA": "/tmp/scikit_learn_data",  # noqa: S108 - a guest path
    "XDG_CACHE_HOME": "/tmp/cache",  # noqa: S108 - a guest path
    "TERM": "xterm-color",
}
_BOOT_MEMORY = 2048 * 1024 * 1024
_REQUEST_BYTES = 80 * 1024 * 1024
_REFUSED = 1  # the guest's `_host.call` raises OSError for any answer but 0


_HELP_LINKS = (
    ("Python Reference", "https://docs.python.org/3.15"),
    ("IPython Reference", "https://ipython.readthedocs.io/en/stable/"),
    ("NumPy Reference", "https://numpy.org/doc/stable/reference/"),
    ("pandas Reference", "https://pandas.pydata.org/docs/reference/"),
    ("Matplotlib Reference", "https://matplotlib.org/stable/api/"),
)


class HostChannel:
    """The guest's `host.call`: it hands over bytes and gets bytes back. It never raises across.

    Args:
        answer: Answers a request, on the guest's thread.
    """

    imports: Mapping[Import, str] = {("host", "call"): "iiii"}

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    def bind(self, guest: BoundGuest) -> Mapping[Import, Handler]:
        """Returns the handler for a guest."""
        memory = guest.memory

        def call(at: int, length: int, answer_at: int, answer_length_at: int) -> int:
            if length > _REQUEST_BYTES:
                return _REFUSED
            answer = self._answer(memory.read(at, length))
            try:
                place = guest.call("host_alloc", max(1, len(answer)))
            except GuestStopped:
                place = 0  # the outer call ends for the same reason
            if place == 0:
                return _REFUSED
            memory.write(place, answer)
            memory.write_word(answer_at, place)
            memory.write_word(answer_length_at, len(answer))
            return abi.SUCCESS

        return {("host", "call"): call}


class PythonGuest:
    """One interpreter: a `Guest`. Only the guest's thread uses it; close it."""

    def __init__(self, instance: Instance, files: WasiFiles, addresses: Addresses) -> None:
        self.instance = instance
        self.files = files
        self.signals = SignalWords(addresses.signal_words, instance.memory)
        self._sqlite_prngs = addresses.sqlite_prngs

    def run_turn(self, fuel: int | None) -> bool:
        """Lets the agent fetch one request and answer it; as `Guest` has it."""
        return self.run(_TURN, fuel)

    def run(self, source: bytes, fuel: int | None = None) -> bool:
        """Runs Python source in the guest's `__main__`; returns whether it raised nothing.

        Raises:
            GuestStopped: the guest did not come back; it is of no more use.
        """
        self.files.begin_turn()
        with self.instance.turn(fuel):
            at = self.instance.call("host_alloc", len(source))
            if at == 0:
                raise GuestCrashed("out of memory")
            try:
                self.instance.memory.write(at, source)
            except OutOfBounds:
                raise GuestCrashed("a broken allocator") from None
            return self.instance.call("turn", at, len(source)) == 0

    def reseed(self) -> None:
        """Gives SQL's `random()` other numbers than in any other guest from now on."""
        reseed_sqlite(self.instance.memory, self._sqlite_prngs)

    def close(self) -> None:
        """Closes its files and its instance. Safe to call twice."""
        self.files.close()
        self.instance.close()


class PythonLanguage:
    """The Python guests of one process: a `GuestLanguage`. Guest threads prepare it; any of them
    may then use it.

    Args:
        cache: Where what takes long is kept; this user's by default.
        broker: Makes what is missing there, if this process may not.
    """

    name = "python"
    texts = LanguageTexts(
        where_commands_stand=(
            "on a line of its own at top level, word by word: not in a function, a block, a loop "
            "or a file, not with variables in it, and not through get_ipython()."
        )
    )

    def __init__(self, cache: Cache | None = None, broker: Broker | None = None) -> None:
        self.cache = cache or Cache()
        self._broker = broker
        self.compiler = Compiler(self.cache)
        self._guard = threading.Lock()
        self._image: BaseImage | None = None
        self._addresses = Addresses({})

    @cached_property
    def files(self) -> GuestFiles:
        """The guest's files, found but not yet laid out."""
        return guest_files.guest_files(self.cache)

    @cached_property
    def layout(self) -> GuestFolders:
        """The guest's files, laid out."""
        return guest_files.lay_out(self.files, self.cache)

    @cached_property
    def _library(self) -> tuple[Folder, Folder, Folder]:
        """The folders of the guest's library, its data and its `/`; all sandboxes share them."""
        layout = self.layout
        return Folder.open(layout.lib), Folder.open(layout.data), Folder.open(layout.root)

    @cached_property
    def image_name(self) -> str:
        """The cache's name for the base image of this artifact and agent.

        It is memory and globals, no code: a new wasmtime takes it over, and with it the histories
        that stand on it.
        """
        made_with = (image.FORMAT, _BOOT, sorted(_ENV.items()))
        text = f"{self.files.key} {made_with}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.image"

    @property
    def info(self) -> LanguageInfo:
        """What is said of it without a running guest."""
        try:
            version = self.files.python_version
        except BundleError:
            version = "unknown"  # the first cell says what is missing
        language = {
            "name": "python",
            "version": version,
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        }
        return LanguageInfo(version, f"Python {version}", language, _HELP_LINKS)

    def image_at_hand(self) -> BaseImage | None:
        """Returns the base image in the cache; None if it is not built."""
        return self._image or self._load_image()

    @property
    def _record_name(self) -> str:
        """The cache's name for the image's record."""
        return f"{self.image_name}.facts"

    def prepare(self, metered: bool, progress: Progress) -> BaseImage:
        """Compiles the guest and builds its base image, if either is missing; as `GuestLanguage`
        has it.
        """
        with self._guard:
            if self._broker is not None and not self._is_complete(metered):
                task = CallbackTask(progress, lambda: False)
                self._broker.call(PrepareGuest(metered), Done, task)
            self._module(metered, progress)
            if self._image is None:
                self._image = self._load_image() or self._build_once(metered, progress)
            return self._image

    def _is_complete(self, metered: bool) -> bool:
        """Whether everything is in the cache, so that it only needs to be read."""
        try:
            known = guest_files.remembered(self.cache)
            if known is None:
                return False
            self.files = known  # once a process: looking for changes costs each start
            module = self.compiler.name(self.files.wasm, metered)
            files = (module, self.image_name, self._record_name)
            folder = self.cache.folder_of(guest_files.folder_name(known))
            return folder is not None and all(self.cache.trusted(name) for name in files)
        except PermissionError:
            return False  # something there is not to be trusted, and not ours to replace

    def _module(self, metered: bool, progress: Progress = lambda text: None) -> Compiled:
        return self.compiler.module(self.files.wasm, metered, progress)

    def _load_image(self) -> BaseImage | None:
        described = self.cache.trusted(self._record_name)
        if described is None or self.cache.trusted(self.image_name) is None:
            return None
        try:
            record = ImageRecord.load(described.read_text())
            self._addresses = Addresses.of_extra(record.extra)
        except (ImageError, KeyError, ValueError, TypeError, AttributeError):
            self.cache.discard(self._record_name, "is damaged")
            return None
        return self._known(record)

    def _known(self, record: ImageRecord) -> BaseImage:
        return BaseImage(self.cache.path(self.image_name), self.image_name, record)

    def _build_once(self, metered: bool, progress: Progress) -> BaseImage:
        waiting = every_second(
            lambda seconds: progress(
                f"another process prepares Python and pandas: waiting for {seconds:.0f} s"
            )
        )

        with self.cache.lock(self.image_name, waiting):
            return self._load_image() or self._build(metered, progress)

    def _build(self, metered: bool, progress: Progress) -> BaseImage:
        progress("preparing Python, pandas and matplotlib, once (about 5 s)")
        self.cache.sweep()
        with tempfile.TemporaryDirectory() as place, Folder.open(place) as empty:
            empty.enter(SITE, make=True).close()
            words = self._find_signal_words(metered, empty)
            prngs = self._find_sqlite_prngs(metered, empty)
            self._addresses = Addresses(words, prngs)
            record = self._boot(metered, empty)
        self.cache.write(self._record_name, lambda path: _write_text(path, record.dump()))
        return self._known(record)

    def _boot(self, metered: bool, empty: Folder) -> ImageRecord:
        """Boots a guest and writes its memory down."""
        booting, streams = _Booting(), OutputStreams()
        streams.begin(booting.hear, {name: limit_of(name, 1 << 20) for name in NAMES.values()})
        with self._raw(metered, empty, booting, streams) as guest:
            try:
                ended = guest.run(_BOOT.encode())
            except GuestStopped as stopped:
                raise ImageError(
                    f"the sandbox could not be prepared: {stopped.happened} {booting.said[-2000:]}"
                ) from stopped
            if not (ended and booting.booted):
                raise ImageError(f"the sandbox could not be prepared: {booting.said[-2000:]}")
            make_immortal(guest.instance.memory, booting.immortal)
            size, build = guest.instance.memory.size, secrets.token_hex(8)
            self.cache.write(self.image_name, lambda path: image.save(guest.instance, path))
            return ImageRecord(size, build, guest.files.opened(), self._addresses.as_extra())

    def _find_signal_words(self, metered: bool, empty: Folder) -> dict[int, int]:
        """Returns the words that two rounds agree on."""
        seen: dict[bytes, bytes] = {}

        def look(request: bytes) -> bytes:
            seen[request] = memory.read(0, memory.size)
            return b""

        with self._raw(metered, empty, look) as guest:
            memory = guest.instance.memory
            guest.run(SIGNALS_SETUP.encode())
            rounds = []
            for _ in range(2):
                guest.run(SIGNALS_ROUND.encode())
                rest = memory.read(0, memory.size)
                rounds.append(signal_candidates(seen[b"before"], seen[b"after"], rest))
        words = {at: bits for at, bits in rounds[0].items() if rounds[1].get(at) == bits}
        if not words:
            raise ImageError("this Python guest can't be interrupted: no signal words were found")
        return words

    def _find_sqlite_prngs(self, metered: bool, empty: Folder) -> list[int]:
        """Returns where SQLite's generators lie, if this artifact has any of that layout."""
        seen: dict[bytes, bytes] = {}

        def look(request: bytes) -> bytes:
            seen[request] = memory.read(0, memory.size)
            return b""

        with self._raw(metered, empty, look) as guest:
            memory = guest.instance.memory
            guest.run(PRNG_ROUND.encode())
        return find_sqlite_prngs(seen.get(b"before", b""), seen.get(b"after", b""))

    @contextlib.contextmanager
    def _raw(
        self,
        metered: bool,
        empty: Folder,
        answer: Callable[[bytes], bytes],
        streams: OutputStreams | None = None,
    ) -> Iterator[PythonGuest]:
        """A guest without an image: memory as the artifact has it. Its folders are an empty one."""
        streams, clock, policy = streams or OutputStreams(), Clock(), ExecutionPolicy()
        app = Preopen(empty, "/app", writable=True, tracked=True, counted=True)
        preopens = self._preopens(app, empty, empty)
        files = WasiFiles(
            preopens,
            FileChanges(app),
            Quota(preopens.counted, policy.workspace_bytes, policy.workspace_files),
            NO_FILE_HISTORY,
            open_files=policy.open_files,
            should_stop=clock.should_stop,
            devices=streams.devices(),
        )
        options = InstanceOptions(_BOOT_MEMORY, argv=_ARGV, env=_ENV)
        hosts = (files, HostChannel(answer))
        with contextlib.closing(files):
            instance = Instance(self._module(metered), hosts, options, clock, streams)
            with contextlib.closing(instance):
                yield PythonGuest(instance, files, Addresses({}))

    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """Returns its library, `/app`, `/tmp`, an empty `/`, packages, and mounts."""
        folders.packages.enter(SITE, make=True).close()
        held = folders.held(policy.mounts)
        mounts = tuple(
            Preopen(folder, mount.guest, writable=mount.writable, hidden=PlacesHidden(folder))
            for mount, folder in zip(policy.mounts, held, strict=True)
        )
        return self._preopens(folders.app, folders.scratch, folders.packages, mounts)

    def _preopens(
        self, app: Preopen, scratch: Folder, packages: Folder, mounts: tuple[Preopen, ...] = ()
    ) -> Preopens:
        lib, data, root = self._library
        fixed = (
            Preopen(lib, guest_files.LIB_GUEST),
            Preopen(data, guest_files.DATA_GUEST),
            app,
            Preopen(scratch, "/tmp", writable=True, counted=True),  # noqa: S108 - a guest path
            Preopen(root, "/"),
            Preopen(packages, guest_files.PACKAGES_GUEST),
        )
        return Preopens(fixed, mounts)

    def start(self, setup: GuestSetup) -> PythonGuest:
        """Returns a booted guest; as `GuestLanguage` has it."""
        base = self._image
        if base is None:
            raise ImageError("the Python guest was not prepared")
        options = InstanceOptions(setup.memory_bytes, _ARGV, clock_before=setup.clock_before)
        hosts = (setup.files, HostChannel(setup.answer))
        compiled = self._module(setup.metered)
        with contextlib.ExitStack() as held:
            held.callback(setup.files.close)
            instance = Instance(compiled, hosts, options, setup.clock, setup.streams)
            held.callback(instance.close)
            base.attach(instance)
            held.pop_all()
        return PythonGuest(instance, setup.files, self._addresses)

    def parse_cell(self, code: str) -> PythonCell:
        """Reads a cell's text."""
        return PythonCell(code)

    def commands(self, folders: SandboxFolders) -> Mapping[str, CommandHandler]:
        """Returns `%pip`, of which nothing is imported until a cell first asks for it."""
        made: list[CommandHandler] = []

        def pip(line: CommandLine, context: CommandContext) -> Any:
            if not made:
                from wasm_kernel.guests.python.packages.command import PipCommand
                from wasm_kernel.guests.python.packages.site import SitePackages

                site = SitePackages(folders.private_path / PACKAGES)
                made.append(PipCommand(site, folders.private_path / FETCHED, self.files))
            return made[0](line, context)

        return {"pip": pip}

    def outer_handlers(self, folders: SandboxFolders) -> Handlers:
        """Returns what a broker does for the guest of a sandbox."""
        return outer.handlers(
            lambda: contextlib.nullcontext((folders.private, folders.private_path))
        )


class _Booting:
    """The host's side of the one turn in which the base image boots."""

    def __init__(self) -> None:
        self._asked = False
        self.booted = False
        self.immortal: tuple[int, ...] = ()
        self.said = ""

    def hear(self, name: str, text: str) -> None:
        self.said += text

    def __call__(self, data: bytes) -> bytes:
        frame = protocol.decode(data)
        if isinstance(frame, protocol.Next) and not self._asked:
            self._asked = True
            return protocol.encode({"op": "boot"})
        if isinstance(frame, protocol.Immortal):
            self.immortal += frame.words
        if isinstance(frame, protocol.Done):
            self.booted = frame.reply.get("status") == "ok"
            self.said += "" if self.booted else str(dict(frame.reply))
        return b"{}"


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


@lru_cache(maxsize=1)
def shared_language() -> PythonLanguage:
    """Returns the one that the sandboxes of this process share."""
    return PythonLanguage()
