"""CPython in an instance: compiling it, building its base image, attaching it."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
import threading
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path

from wasm_kernel.engine import dice, interrupt
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.compiler import Compiled, Compiler, Progress, every_second
from wasm_kernel.engine.instance import SCRATCH_BYTES, Instance, Surroundings
from wasm_kernel.engine.output import NAMES, Streams, cap_of
from wasm_kernel.errors import GuestStopped, ImageError
from wasm_kernel.folders.folders import SITE, SandboxFolders
from wasm_kernel.folders.hiding import PlacesHidden
from wasm_kernel.guests import protocol
from wasm_kernel.guests.python import bundles
from wasm_kernel.guests.python.bundles import Layout
from wasm_kernel.guests.python.environment import Environment, environment, remembered
from wasm_kernel.guests.python.immortal import make_immortal
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import image
from wasm_kernel.wasi_files.changes import Changes
from wasm_kernel.wasi_files.descriptors import OpenFile
from wasm_kernel.wasi_files.preopens import Preopen, Preopens

# The agent's anchor (in `wasm_kernel_agent/agent.py`): a turn that needs no import and no builtin,
# so that it works whatever a cell did to either.
_TURN = "0j.__class__.__subclasses__()[0].turn()"
_BOOT = (
    f"import sys\nsys.path.append('{bundles.LIB_GUEST}/{bundles.BUNDLE_NAME}')\n"
    f"import wasm_kernel_agent\nwasm_kernel_agent.turn()"
)
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


Builder = Callable[[bool, Progress], None]
"""Fills the cache for a flavour, metered or not, where this process may not write it."""


class PythonDriver:
    """The Python guest of one process. Guest threads prepare it; any of them may then use it.

    Args:
        cache: Where what takes long is kept; this user's by default.
        builder: Makes what is missing there, in place of this process.
    """

    name = "python"
    turn_source = _TURN.encode()

    def __init__(self, cache: Cache | None = None, builder: Builder | None = None) -> None:
        self.cache = cache or Cache()
        self._builder = builder
        self.compiler = Compiler(self.cache)
        self._guard = threading.Lock()
        self._facts: image.Facts | None = None

    @cached_property
    def environment(self) -> Environment:
        """The guest's files, found but not yet laid out."""
        return environment(self.cache)

    @cached_property
    def layout(self) -> Layout:
        """The guest's files, laid out."""
        return bundles.lay_out(self.environment, self.cache)

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
        text = f"{self.environment.key} {made_with}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.image"

    @property
    def image_id(self) -> str:
        """Names the very image that is in the cache; known after `prepare`."""
        return f"{self.image_name}.{self._facts.build}" if self._facts else ""

    @property
    def image_files(self) -> tuple[OpenFile, ...]:
        """What the base image has open."""
        return self._facts.files if self._facts else ()

    def image_at_hand(self) -> tuple[Path, image.Facts] | None:
        """The base image in the cache, and what is known of it; None where it is not built."""
        facts = self._facts or self._load_image()
        return None if facts is None else (self.cache.path(self.image_name), facts)

    @property
    def facts_name(self) -> str:
        """The cache's name for the image's description."""
        return f"{self.image_name}.facts"

    def prepare(self, metered: bool, progress: Progress) -> None:
        """Compile the guest and build its base image, where either is missing."""
        with self._guard:
            if self._builder is not None and not self._complete(metered):
                self._builder(metered, progress)
            self._module(metered, progress)
            if self._facts is None:
                self._facts = self._load_image() or self._build_once(metered, progress)

    def _complete(self, metered: bool) -> bool:
        """Whether everything is in the cache, so that it only needs to be read."""
        try:
            known = remembered(self.cache)
            if known is None:
                return False
            self.environment = known  # once a process: looking for changes costs each start
            module = self.compiler.name(known.binary_digest, metered)
            files = (module, self.image_name, self.facts_name)
            folder = self.cache.folder_of(bundles.folder_name(known))
            return folder is not None and all(self.cache.trusted(name) for name in files)
        except PermissionError:
            return False  # something there is not to be trusted, and not ours to replace

    def _module(self, metered: bool, progress: Progress = lambda text: None) -> Compiled:
        found = self.environment
        return self.compiler.module(Path(found.binary), found.binary_digest, metered, progress)

    def _load_image(self) -> image.Facts | None:
        described = self.cache.trusted(self.facts_name)
        if described is None or self.cache.trusted(self.image_name) is None:
            return None
        try:
            return image.Facts.load(described.read_text())
        except ImageError:
            self.cache.discard(self.facts_name, "is damaged")
            return None

    def _build_once(self, metered: bool, progress: Progress) -> image.Facts:
        waiting = every_second(
            lambda seconds: progress(
                f"another process prepares Python and pandas: waiting for {seconds:.0f} s"
            )
        )

        with self.cache.lock(self.image_name, waiting):
            return self._load_image() or self._build(metered, progress)

    def _build(self, metered: bool, progress: Progress) -> image.Facts:
        progress("preparing Python, pandas and matplotlib, once (about 5 s)")
        self.cache.sweep()
        with tempfile.TemporaryDirectory() as place, Folder.open(place) as nowhere:
            nowhere.enter(SITE, make=True).close()
            words = self._calibrate(metered, nowhere)
            places = self._find_dice(metered, nowhere)
            handler = _Booting()
            instance = self._raw(metered, nowhere, handler)
            try:
                scratch = instance.allocate(SCRATCH_BYTES)
                instance.use_scratch(scratch)
                status = instance.turn(_BOOT.encode())
                if status or not handler.booted:
                    raise ImageError(f"the sandbox could not be prepared: {handler.said[-2000:]}")
                make_immortal(instance.reach, handler.immortal)
                files = instance.descriptors.save()
                build = secrets.token_hex(8)
                facts = image.Facts(instance.reach.size, words, scratch, files, places, build)
                self.cache.write(self.image_name, lambda path: image.save(instance, path))
            except GuestStopped as stopped:
                raise ImageError(
                    f"the sandbox could not be prepared: {stopped.happened} {handler.said[-2000:]}"
                ) from stopped
            finally:
                instance.close()
        self.cache.write(self.facts_name, lambda path: _write_text(path, facts.dump()))
        return facts

    def _calibrate(self, metered: bool, nowhere: Folder) -> dict[int, int]:
        """The interrupt words: those that two rounds agree on."""
        seen: dict[bytes, bytes] = {}

        def look(request: bytes) -> bytes:
            seen[request] = instance.reach.read(0, instance.reach.size)
            return b""

        instance = self._raw(metered, nowhere, look)
        try:
            instance.turn(interrupt.CALIBRATION_SETUP.encode())
            rounds = []
            for _ in range(2):
                instance.turn(interrupt.CALIBRATION_ROUND.encode())
                rest = instance.reach.read(0, instance.reach.size)
                rounds.append(interrupt.candidates(seen[b"before"], seen[b"after"], rest))
        finally:
            instance.close()
        words = {at: bits for at, bits in rounds[0].items() if rounds[1].get(at) == bits}
        if not words:
            raise ImageError("this Python guest can't be interrupted: no signal words were found")
        return words

    def _find_dice(self, metered: bool, nowhere: Folder) -> tuple[int, ...]:
        """Where SQLite's generator lies; nowhere where this artifact has none of that layout."""
        seen: dict[bytes, bytes] = {}

        def look(request: bytes) -> bytes:
            seen[request] = instance.reach.read(0, instance.reach.size)
            return b""

        instance = self._raw(metered, nowhere, look)
        try:
            instance.turn(dice.CALIBRATION.encode())
        finally:
            instance.close()
        return tuple(dice.places(seen.get(b"before", b""), seen.get(b"after", b"")))

    def _raw(self, metered: bool, folder: Folder, handler: Callable[[bytes], bytes]) -> Instance:
        """A guest without an image: memory as the artifact has it. Its folder is an empty one."""
        streams, policy = Streams(), ExecutionPolicy()
        app = Preopen(folder, "/app", writable=True, tracked=True, counted=True)
        if isinstance(handler, _Booting):
            streams.begin(handler.hear, {name: cap_of(name, 1 << 20) for name in NAMES.values()})
        around = Surroundings(
            handler=handler,
            clock=Clock(),
            streams=streams,
            changes=Changes(app),
            preopens=self._preopens(app, folder, folder),
            env=_ENV,
            memory_bytes=_BOOT_MEMORY,
            open_files=policy.open_files,
            workspace_bytes=policy.workspace_bytes,
            workspace_files=policy.workspace_files,
        )
        return Instance(self._module(metered), around)

    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """The guest's folders: its library, `/app`, `/tmp`, an empty `/`, packages, mounts."""
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
            Preopen(lib, bundles.LIB_GUEST),
            Preopen(data, bundles.DATA_GUEST),
            app,
            Preopen(scratch, "/tmp", writable=True, counted=True),  # noqa: S108 - a guest path
            Preopen(root, "/"),
            Preopen(packages, bundles.PACKAGES_GUEST),
        )
        return Preopens(fixed, mounts)

    def instance(self, around: Surroundings, *, metered: bool) -> Instance:
        """A booted guest: a new instance with the base image's memory."""
        facts = self._facts
        if facts is None:
            raise ImageError("the Python guest was not prepared")
        instance = Instance(self._module(metered), around)
        try:
            image.attach(instance, self.cache.path(self.image_name), facts)
        except BaseException:
            instance.close()
            raise
        return instance


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
def shared_driver() -> PythonDriver:
    """The driver that the sandboxes of this process share."""
    return PythonDriver()
