"""Making the base image of the Python guest, once for each artifact and agent.

Besides its bytes, the host must know where some things lie in a booted interpreter's memory. The
words of signals are found by watching which words `_thread.interrupt_main()` turns on: three C
calls in a row, with no bytecode between them, give a look at memory before it and one after.
SQLite's generators are found by a look before and a look after a number is drawn.

Immortal objects. CPython writes an object's reference count at every use, but not for an immortal
object (PEP 683). Pages that hold only such objects stay as they are in the image: shared between
kernels, neither copied nor saved with a commit. Source of the layout: `Include/refcount.h` of
CPython 3.14 and later, the branch for 32-bit systems.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator

import msgspec

from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.host_calls import GuestMemory, OutOfBounds
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import NAMES, OutputStreams, limit_of
from wasm_kernel.errors import GuestStopped, ImageError
from wasm_kernel.guests import protocol
from wasm_kernel.guests.python.files import BUNDLE_NAME, LIB_GUEST
from wasm_kernel.guests.python.guest import (
    ARGV,
    PRNG_CONSTANT,
    PRNG_LEFT,
    Addresses,
    HostChannel,
    PythonGuest,
)
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import image
from wasm_kernel.state.image import ImageRecord
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import NO_FILE_HISTORY
from wasm_kernel.wasi_files.preopens import Preopens
from wasm_kernel.wasi_files.quota import Quota

BOOT = (
    f"import sys\nsys.path.append('{LIB_GUEST}/{BUNDLE_NAME}')\n"
    f"import wasm_kernel_agent\nwasm_kernel_agent.turn()"
)
ENV = {
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
_PAGE = 4096

_SIGNALS_SETUP = (
    "import _host, _thread, collections, functools, operator, signal\n"
    "signal.signal(signal.SIGINT, lambda *_: None)\n"
    "_look = [functools.partial(_host.call, b'before'), _thread.interrupt_main, "
    "functools.partial(_host.call, b'after')]\n"
)
_SIGNALS_ROUND = "collections.deque(map(operator.call, _look), maxlen=0)\n"

_PRNG_DRAWN = 8  # bytes of one `random()`
_PRNG_SETUP = (
    "import _host, sqlite3\n"
    "_draw = sqlite3.connect(':memory:').execute\n"
    "_draw('select random()').fetchone()\n"
)
_PRNG_ROUND = "_host.call(b'before')\n_draw('select random()').fetchone()\n_host.call(b'after')\n"

_IMMORTAL = 5 << 28  # _Py_IMMORTAL_INITIAL_REFCNT
_PLAUSIBLE = 1 << 24


class ImageBuilder:
    """Builds a base image; runs guests, so on a guest thread.

    Args:
        compiled: The guest's code, of any flavour.
        preopens: Its library, and empty folders in place of a session's.
    """

    def __init__(self, compiled: Compiled, preopens: Preopens) -> None:
        self._compiled = compiled
        self._preopens = preopens

    def build(self, cache: Cache, name: str) -> ImageRecord:
        """Boots a guest, and writes its memory to the cache under a name.

        Returns:
            What else must be known of the image.

        Raises:
            ImageError: the guest does not boot, or can't be interrupted.
        """
        addresses = Addresses(self._find_signal_words(), self._find_sqlite_prngs())
        booting, streams = _Booting(), OutputStreams()
        streams.begin(booting.hear, {name: limit_of(name, 1 << 20) for name in NAMES.values()})
        with self._raw(booting, streams) as guest:
            try:
                ended = guest.run(BOOT.encode())
            except GuestStopped as stopped:
                raise ImageError(
                    f"the sandbox could not be prepared: {stopped.happened} {booting.said[-2000:]}"
                ) from stopped
            if not (ended and booting.booted):
                raise ImageError(f"the sandbox could not be prepared: {booting.said[-2000:]}")
            make_immortal(guest.instance.memory, booting.immortal)
            size, build = guest.instance.memory.size, secrets.token_hex(8)
            cache.write(name, lambda path: image.save(guest.instance, path))
            extra = msgspec.to_builtins(addresses, str_keys=True)
            return ImageRecord(size, build, guest.files.opened(), extra)

    def _find_signal_words(self) -> dict[int, int]:
        """Returns the words that two rounds agree on."""
        looks = self._looks(_SIGNALS_SETUP, _SIGNALS_ROUND, _SIGNALS_ROUND)
        first, second = (signal_candidates(*look) for look in looks)
        words = {at: bits for at, bits in first.items() if second.get(at) == bits}
        if not words:
            raise ImageError("this Python guest can't be interrupted: no signal words were found")
        return words

    def _find_sqlite_prngs(self) -> list[int]:
        """Returns where SQLite's generators lie, if this artifact has any of that layout."""
        ((before, after, _),) = self._looks(_PRNG_SETUP, _PRNG_ROUND)
        return find_sqlite_prngs(before, after)

    def _looks(self, setup: str, *rounds: str) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yields memory before and after something that each round does, and at rest behind it."""
        seen: dict[bytes, bytes] = {}

        def look(request: bytes) -> bytes:
            seen[request] = memory.read(0, memory.size)
            return b""

        with self._raw(look) as guest:
            memory = guest.instance.memory
            guest.run(setup.encode())
            for each in rounds:
                guest.run(each.encode())
                rest = memory.read(0, memory.size)
                yield seen.get(b"before", b""), seen.get(b"after", b""), rest

    @contextlib.contextmanager
    def _raw(
        self, answer: Callable[[bytes], bytes], streams: OutputStreams | None = None
    ) -> Iterator[PythonGuest]:
        """Runs a guest without an image, with memory as the artifact has it."""
        streams, clock, policy = streams or OutputStreams(), Clock(), ExecutionPolicy()
        app = next(preopen for preopen in self._preopens.fixed if preopen.tracked)
        files = WasiFiles(
            self._preopens,
            FileChanges(app),
            Quota(self._preopens.counted, policy.workspace_bytes, policy.workspace_files),
            NO_FILE_HISTORY,
            open_files=policy.open_files,
            should_stop=clock.should_stop,
            devices=streams.devices(),
        )
        options = InstanceOptions(_BOOT_MEMORY, argv=ARGV, env=ENV)
        hosts = (files, HostChannel(answer))
        with contextlib.closing(files):
            instance = Instance(self._compiled, hosts, options, clock, streams)
            with contextlib.closing(instance):
                yield PythonGuest(instance, files, Addresses({}))


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


def signal_candidates(before: bytes, after: bytes, rest: bytes) -> dict[int, int]:
    """Returns words that are 0 before, a single low bit after, and 0 again at rest, by address."""
    found: dict[int, int] = {}
    size = min(len(before), len(after), len(rest))
    for page in range(0, size, _PAGE):
        old, new = before[page : page + _PAGE], after[page : page + _PAGE]
        if old == new:
            continue
        now = rest[page : page + _PAGE]
        words = zip(*(memoryview(part).cast("I") for part in (old, new, now)), strict=True)
        for index, (was, became, rests) in enumerate(words):
            if was == 0 and became in (1, 2) and rests == 0:
                found[page + 4 * index] = became
    return found


def find_sqlite_prngs(before: bytes, after: bytes) -> list[int]:
    """Returns where a generator can lie: the state is as it was, and there are as many bytes less
    as were drawn.
    """
    found, at = [], before.find(PRNG_CONSTANT)
    while at >= 0 and at + PRNG_LEFT < min(len(before), len(after)):
        same = before[at : at + PRNG_LEFT] == after[at : at + PRNG_LEFT]
        if same and before[at + PRNG_LEFT] - after[at + PRNG_LEFT] == _PRNG_DRAWN:
            found.append(at)
        at = before.find(PRNG_CONSTANT, at + 1)
    return found


def make_immortal(memory: GuestMemory, addresses: Iterable[int]) -> int:
    """Marks the objects at these addresses as immortal; returns how many were marked.

    An address at which no reference count can be is passed over.
    """
    marked = 0
    for at in addresses:
        try:
            count = memory.read_word(at)
        except OutOfBounds:
            continue
        if 0 < count < _PLAUSIBLE and at % 8 == 0:
            memory.write_word(at, _IMMORTAL)
            marked += 1
    return marked
