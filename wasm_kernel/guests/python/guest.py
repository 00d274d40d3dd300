"""A Python guest: its channel to the host, the words in its memory that the host uses, and its base
image, which is made once for each artifact and agent.

Signals. CPython notes "signal N arrived" in a few words of its memory: one for any signal, one for
this signal, and a bit in the evaluation loop's own word. If the host turns them on, the loop runs
the signal's handler at its next check, as after a real signal. The words are found by watching
which ones `_thread.interrupt_main()` turns on: three C calls in a row, with no bytecode between
them, give a look at memory before it and one after. The signal's own word has the lowest address.
It decides: the two others only make the interpreter check. So another thread may interrupt a guest
that runs. If the interpreter writes to the loop's word at the same time, the bit is lost; the host
turns it on again as long as the signal's own word is on.
Source of the layout: `trip_signal` and `_PyErr_CheckSignalsTstate` in CPython's signalmodule.c.

SQLite's PRNG, the generator behind `random()` in SQL. Its state is part of a base image, so it
would give the same numbers in every session; and SQLite in a guest, which has no `/dev/urandom`,
would seed it with the time in seconds. No call of SQLite's reseeds it from Python, so the host
does. Source of the layout: `sqlite3Prng` in SQLite's random.c, since 3.42: 16 words of ChaCha20's
state (the constant, 8 of key, 1 that counts, 3 of nonce), 64 bytes of output, and the number of
bytes that are left. It is found by a look at memory before and one after a number is drawn.

The allocator's state, which tells the host the free parts of the memory (`dlmalloc.py`). It is
found by the one word that changes in a known way when a large piece is allocated.

Immortal objects. CPython writes an object's reference count at every use, but not for an immortal
object (PEP 683). Pages that hold only such objects stay the same as in the image: shared between
kernels, neither copied nor saved with a commit. Source of the layout: `Include/refcount.h` of
CPython 3.14 and later, the branch for 32-bit systems.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.clock import Clock, Signals
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.flavours import Flavour
from wasm_kernel.engine.host_calls import GuestMemory, Handler, Import, OutOfBounds
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import NAMES, OutputStreams, limit_of
from wasm_kernel.errors import GuestCrashed, GuestStopped, ImageError
from wasm_kernel.guests import protocol
from wasm_kernel.guests.dlmalloc import Dlmalloc, find_allocator
from wasm_kernel.guests.python.files import BUNDLE_NAME, LIB_GUEST
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import image
from wasm_kernel.state.image import ImageRecord
from wasm_kernel.state.pages import Heap
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import NO_FILE_HISTORY
from wasm_kernel.wasi_files.operations import FileOperations
from wasm_kernel.wasi_files.preopens import Preopens
from wasm_kernel.wasi_files.quota import Quota

if TYPE_CHECKING:
    from wasm_kernel.codecs.calls import CodecCalls
    from wasm_kernel.guests.javascript.shell import Shells
    from wasm_kernel.guests.python.host_numpy import HostNumpy

ARGV = ("python",)
PRNG_CONSTANT = b"expand 32-byte k"
PRNG_STATE, PRNG_LEFT = 64, 128
"""The size of a generator's state, and the offset of its number of unused output bytes."""

# The agent is `sys.displayhook` between turns (`wasm_kernel_agent/agent.py`). An expression that is
# a number needs no import and no builtin, and compiles in the least time.
_TURN = b"0"
_REQUEST_BYTES = 80 * 1024 * 1024
# Only the end of a guest's stack lies below this address. A call with an answer's address below it
# comes from numpy, and that address is the number of the request.
_LEAST_ADDRESS = 1024
_FOR_CODECS = b"\0"  # the first byte of a request for a codec, which no frame begins with
_FOR_SHELL = b"\1"  # the first byte of a request for the shell
_REFUSED = 1  # the guest's `_host.call` raises OSError for any answer but 0
_UNPREPARED = (
    "{said}\nthe sandbox could not be prepared: its interpreter did not start. `pip check` says "
    "whether the packages installed here, such as IPython, have the versions that it needs"
)


class PythonAddresses(Struct, frozen=True):
    """The addresses that the host uses in a guest with the image's memory.

    The `signal_words` make an interrupt pending, if their bits are turned on. The others are the
    states of SQLite's generators, and of the C library's allocator; 0 if that is another one.
    """

    signal_words: Mapping[int, int]
    sqlite_prngs: Sequence[int] = ()
    allocator: int = 0


class SignalWords(Signals):
    """The words of one guest that make an interrupt pending.

    The guest's thread uses it, or another thread while the guest runs.
    """

    def __init__(self, words: Mapping[int, int], memory: GuestMemory) -> None:
        self._words = dict(sorted(words.items()))  # as CPython turns them on: the loop's word last
        self._own = min(self._words, default=0)
        self._memory = memory

    def raise_(self) -> None:
        """Makes the interrupt pending."""
        for at, bits in self._words.items():
            self._memory.write_word(at, self._memory.read_word(at) | bits)

    def pending(self) -> bool:
        """Returns whether the interpreter has not taken the interrupt yet."""
        return bool(self._words) and self._is_on(self._own)

    def _is_on(self, at: int) -> bool:
        return bool(self._memory.read_word(at) & self._words[at])

    def complete(self) -> None:
        """Turns on the missing words of a pending interrupt, except for the signal's own word."""
        if self.pending():
            for at, bits in self._words.items():
                if at != self._own and not self._is_on(at):
                    self._memory.write_word(at, self._memory.read_word(at) | bits)

    def clear(self) -> None:
        """Takes the interrupt back."""
        for at, bits in self._words.items():
            self._memory.write_word(at, self._memory.read_word(at) & ~bits)


class HostChannel:
    """The guest's `host.call`: bytes in, bytes out, and no exception.

    Requests of the guest's numpy, and those for codecs and the shell, come the same way, as the
    module can't be given more imports. `open_codecs` returns the codecs of a guest, once it asks
    for one; `open_shells` returns the runner of its shell scripts. Without them the guest's request
    is refused.
    """

    imports: Mapping[Import, str] = {("host", "call"): "iiii"}

    def __init__(
        self,
        answer: Callable[[bytes], bytes],
        open_codecs: Callable[[Instance], CodecCalls] | None = None,
        open_shells: Callable[[Instance], Shells] | None = None,
    ) -> None:
        self._answer = answer
        self._open_codecs, self._open_shells = open_codecs, open_shells
        self._shells: Shells | None = None

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handler for a guest."""
        memory = guest.memory
        numpy: HostNumpy | None = None
        codecs: CodecCalls | None = None

        def call(at: int, length: int, answer_at: int, answer_length_at: int) -> int:
            nonlocal numpy, codecs
            if answer_at < _LEAST_ADDRESS:
                if numpy is None:
                    from wasm_kernel.guests.python.host_numpy import HostNumpy  # few cells need it

                    numpy = HostNumpy(guest)
                return numpy.answer(answer_at, at, length, answer_length_at)
            if length > _REQUEST_BYTES:
                return _REFUSED
            request = memory.read(at, length)
            if request[:1] == _FOR_CODECS:
                if self._open_codecs is None:  # a base image is built
                    return _REFUSED
                codecs = codecs or self._open_codecs(guest)
                place, size = codecs.answer(request[1:])
            elif request[:1] == _FOR_SHELL:
                if self._open_shells is None:
                    return _REFUSED
                self._shells = self._shells or self._open_shells(guest)
                place, size = _hand_over(guest, self._shells.answer(request[1:]))
            else:
                place, size = _hand_over(guest, self._answer(request))
            if place == 0:
                return _REFUSED
            memory.write_word(answer_at, place)
            memory.write_word(answer_length_at, size)
            return abi.SUCCESS

        return {("host", "call"): call}

    def end_turn(self) -> None:
        """Closes shells whose scripts were given up, as when the cell was interrupted."""
        if self._shells is not None:
            self._shells.close()


def _hand_over(guest: Instance, answer: bytes) -> tuple[int, int]:
    """Writes an answer into the guest's memory; returns its address, or 0, and its length."""
    try:
        place = guest.call("host_alloc", max(1, len(answer)))
    except GuestStopped:
        place = 0  # the outer call ends for the same reason
    if place:
        guest.memory.write(place, answer)
    return place, len(answer)


class PythonGuest:
    """An interpreter: a `Guest`. Only the guest's thread uses it; close it."""

    def __init__(
        self,
        instance: Instance,
        files: FileOperations,
        addresses: PythonAddresses,
        flavour: Flavour,
        channel: HostChannel | None = None,
    ) -> None:
        self.instance = instance
        self._channel = channel
        self.flavour = flavour
        self.files = files
        self.signals: Signals = SignalWords(addresses.signal_words, instance.memory)
        self.heap: Heap = Dlmalloc(addresses.allocator, instance.memory)
        self._sqlite_prngs = addresses.sqlite_prngs

    def run_turn(self, fuel: int | None) -> bool:
        """Runs one turn; as `Guest` has it."""
        return self.run(_TURN, fuel)

    def run(self, source: bytes, fuel: int | None = None) -> bool:
        """Runs Python source in the guest's `__main__`; returns whether it raised nothing.

        After `GuestStopped` the guest can't be used any more.
        """
        self.files.quota.begin_turn()
        with self.instance.turn(fuel):
            at = self.instance.call("host_alloc", len(source))
            if at == 0:
                raise GuestCrashed("out of memory")
            try:
                self.instance.memory.write(at, source)
            except OutOfBounds:
                raise GuestCrashed("a broken allocator") from None
            try:
                return self.instance.call("turn", at, len(source)) == 0
            finally:
                if self._channel is not None:
                    self._channel.end_turn()

    def reseed(self) -> None:
        """Reseeds SQL's `random()`, so that no other guest has the same numbers."""
        memory, random = self.instance.memory, self.instance.random
        for at in self._sqlite_prngs:
            state = PRNG_CONSTANT + random(32) + bytes(4) + random(12)
            memory.write(at, state.ljust(PRNG_STATE, b"\0"))
            memory.write(at + PRNG_LEFT, b"\0")

    def close(self) -> None:
        """Closes the guest's files and its instance. Safe to call twice."""
        self.files.close()
        self.instance.close()


# -- the base image

BOOT = (
    f"import sys\nsys.path.append('{LIB_GUEST}/{BUNDLE_NAME}')\n"
    f"import wasm_kernel_agent\nwasm_kernel_agent.turn()"
)
ENV = {
    "HOME": "/app",
    "PYTHONTZPATH": "",
    "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108 - a guest path
    "IPYTHONDIR": "/tmp/ipython",  # noqa: S108 - a guest path
    "PATH": "/usr/bin:/bin",
    "USER": "user",  # as `whoami` says
    "TMPDIR": "/tmp",  # noqa: S108 - a guest path
    "SCIKIT_LEARN_DATA": "/tmp/scikit_learn_data",  # noqa: S108 - a guest path
    "XDG_CACHE_HOME": "/tmp/cache",  # noqa: S108 - a guest path
    "TERM": "xterm-color",
    "TZ": "UTC",  # tzlocal warns if there is none
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


# On WASI CPython lets compiled code have 128 KiB of stack; the guest is linked with 16 MiB. So a
# function behind `lru_cache` called itself some 250 times, elsewhere 1,000 times. With more than
# `STACK`, wasm's own stack of 16 MiB, which no error of Python guards, would end first.
STACK = 384 * 1024
_STACK_TOP, _STACK_OF_WASI, _STACK_MARGIN = 16 * 1024 * 1024, 128 * 1024, 8 * 1024


class PythonImageBuilder:
    """Builds a base image with code of any flavour, on a guest thread since it runs guests.

    The preopens are the guest's library, and empty folders in place of a session's folders.
    """

    def __init__(self, compiled: Compiled, preopens: Preopens) -> None:
        self._compiled = compiled
        self._preopens = preopens

    def build(self, cache: Cache, name: str, *, preload: bool) -> ImageRecord:
        """Boots a guest, and writes its memory to the cache under a name.

        With `preload` it imports the packages that notebooks use, which takes most of the time.

        Raises `ImageError` if it does not boot, or can't be interrupted.
        """
        with self._raw(lambda request: b"") as guest:
            allocator = find_allocator(guest.instance, "host_alloc")
        ((before, after, _),) = self._looks(_PRNG_SETUP, _PRNG_ROUND)
        prngs = find_sqlite_prngs(before, after)
        addresses = PythonAddresses(self._find_signal_words(), prngs, allocator)
        booting, streams = _Booting(preload), OutputStreams()
        streams.begin(booting.on_text, {name: limit_of(name, 1 << 20) for name in NAMES.values()})
        with self._raw(booting, streams) as guest:
            try:
                ended = guest.run(BOOT.encode())
            except GuestStopped as stopped:
                said = f"{booting.said[-2000:]} {stopped.happened}"
                raise ImageError(_UNPREPARED.format(said=said)) from stopped
            if not (ended and booting.booted):
                raise ImageError(_UNPREPARED.format(said=booting.said[-2000:]))
            make_immortal(guest.instance.memory, booting.immortal)
            deepen_stack(guest.instance.memory)
            size, build = guest.instance.memory.size, os.urandom(8).hex()
            cache.write(name, lambda path: image.save(guest.instance, path))
            extra = msgspec.to_builtins(addresses, str_keys=True)
            return ImageRecord(size, build, guest.files.open_records(), extra)

    def _find_signal_words(self) -> dict[int, int]:
        """Returns the signal words that two rounds agree on."""
        looks = self._looks(_SIGNALS_SETUP, _SIGNALS_ROUND, _SIGNALS_ROUND)
        first, second = (signal_candidates(*look) for look in looks)
        words = {at: bits for at, bits in first.items() if second.get(at) == bits}
        if not words:
            raise ImageError("this Python guest can't be interrupted: no signal words were found")
        return words

    def _looks(self, setup: str, *rounds: str) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yields, for each round, memory before its action, after it, and at rest at the end."""
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
        """Runs a guest without an image, with the artifact's initial memory."""
        streams, clock, policy = streams or OutputStreams(), Clock(), ExecutionPolicy()
        app = next(preopen for preopen in self._preopens.fixed if preopen.tracked)
        files = FileOperations(
            self._preopens,
            FileChanges(app),
            Quota(self._preopens.counted, policy.workspace_bytes, policy.workspace_files),
            NO_FILE_HISTORY,
            open_files=policy.open_files,
            should_stop=clock.should_stop,
        )
        options = InstanceOptions(_BOOT_MEMORY, argv=ARGV, env=ENV)
        hosts = (WasiFiles(files, streams), HostChannel(answer))
        with contextlib.closing(files):
            instance = Instance(self._compiled, hosts, options, clock, streams)
            with contextlib.closing(instance):
                yield PythonGuest(instance, files, PythonAddresses({}), self._compiled.flavour)


class _Booting:
    """The host's side of the one turn in which the base image boots."""

    def __init__(self, preload: bool) -> None:
        self._preload = preload
        self._asked = False
        self.booted = False
        self.immortal: tuple[int, ...] = ()
        self.said = ""

    def on_text(self, name: str, text: str) -> None:
        self.said += text

    def __call__(self, data: bytes) -> bytes:
        frame = protocol.decode(data)
        if isinstance(frame, protocol.Next) and not self._asked:
            self._asked = True
            return protocol.encode({"op": "boot", "preload": self._preload})
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
    """Returns addresses of possible generators: their state lost only the bytes that were drawn."""
    found, at = [], before.find(PRNG_CONSTANT)
    while at >= 0 and at + PRNG_LEFT < min(len(before), len(after)):
        same = before[at : at + PRNG_LEFT] == after[at : at + PRNG_LEFT]
        if same and before[at + PRNG_LEFT] - after[at + PRNG_LEFT] == _PRNG_DRAWN:
            found.append(at)
        at = before.find(PRNG_CONSTANT, at + 1)
    return found


def make_immortal(memory: GuestMemory, addresses: Iterable[int]) -> None:
    """Marks the objects at these addresses as immortal, where a reference count can be."""
    words = memory.view(0, memory.size).cast("I")
    for at in addresses:
        if at % 8 == 0 and at // 4 < len(words) and 0 < words[at // 4] < _PLAUSIBLE:
            words[at // 4] = _IMMORTAL


def deepen_stack(memory: GuestMemory) -> None:
    """Moves the limits of the stack, below which the interpreter raises `RecursionError`."""
    whole, limits = memory.read(0, memory.size), _stack_limits(_STACK_OF_WASI)
    if whole.count(limits) != 1:
        raise ImageError("the limits of the stack were not found in the guest")
    memory.write(whole.find(limits), _stack_limits(STACK))


def _stack_limits(size: int) -> bytes:
    """The beginning of a thread's stack, and its soft and hard limits, in `PyThreadState`."""
    end = _STACK_TOP - size
    return struct.pack("<3I", _STACK_TOP, end + 2 * _STACK_MARGIN, end + _STACK_MARGIN)
