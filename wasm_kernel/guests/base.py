"""The contract of a guest language, and that of host commands.

The rooms below know no language, and those above know only this contract. A language is a folder
beside this file, with the modules `language`, `files` and `broker_handlers` in it. Host commands,
such as `%fork`, reach beyond the guest: `execution/commands.py` decides whether one is run, and
runs it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from msgspec import Struct

from wasm_kernel.errors import CompileError, WasmKernelError
from wasm_kernel.linux.broker import Broker
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import RuntimeType

if TYPE_CHECKING:  # front ends import this file, and must not import wasmtime with it
    from typing import Self

    from wasm_kernel.engine.cache import Cache
    from wasm_kernel.engine.clock import Clock, Signals
    from wasm_kernel.engine.compiler import Compiled, Progress
    from wasm_kernel.engine.flavours import Flavour
    from wasm_kernel.engine.host_calls import Import
    from wasm_kernel.engine.instance import HostFunctions, Instance
    from wasm_kernel.engine.streams import OutputStreams
    from wasm_kernel.folders.folders import SandboxFolders
    from wasm_kernel.guests.prepared import PreparedFiles
    from wasm_kernel.policy import ExecutionPolicy
    from wasm_kernel.state.image import BaseImage
    from wasm_kernel.state.pages import Heap
    from wasm_kernel.wasi_files.operations import FileOperations
    from wasm_kernel.wasi_files.preopens import Preopens

Json = Any

# -- host commands


class CommandLine(Struct, frozen=True, tag_field="op", tag="command"):
    """A command as it stands in a cell: its name, the words behind it, and the cell below `%%name`.

    It is also the frame by which a magic asks for it.

    Nothing in `line` was expanded: `$x` and `{x}` stand for themselves. `files` are the names and
    the texts of files that the words name, as the guest read them; the cell does not hold them.
    """

    name: str
    line: str = ""
    cell: str | None = None
    files: tuple[tuple[str, str], ...] = ()


class CommandRefused(WasmKernelError):
    """The command is not run; `str()` says why to the cell's author, as a sentence."""


class ActionContext(Task, Protocol):
    """A finished cell, as an action sees it. Used on the guest's thread."""

    broker: Broker

    def say(self, text: str, stream: str = "stdout") -> None:
        """Prints for the cell, on `stdout` or `stderr`."""


class CommandContext(ActionContext, Protocol):
    """The cell that waits for a command. Used on the guest's thread, while it waits.

    A command that takes longer than a moment asks every 0.1 s whether it is `cancelled`: the cell
    was interrupted, ran out of time, or is being closed. It then undoes its work, and raises
    `Cancelled`. Its reports are printed as lines; output beyond the cell's limits is dropped.
    """

    def after_cell(self, action: AfterCellAction) -> None:
        """Runs an action when the cell has finished."""


class AfterCellAction(Protocol):
    """An action to run after the cell has finished, such as a fork. It never raises."""

    def run(self, context: ActionContext) -> None:
        """Runs the action; the cell's effects are kept by now."""

    def cell_lost(self, context: ActionContext) -> None:
        """Undoes the preparation, as the guest was lost in the cell."""


CommandHandler = Callable[[CommandLine, CommandContext], Json]
"""Runs a command on the guest's thread, within a cell, and returns the guest's answer.

It must not call the sandbox. It burns none of the cell's fuel; the cell's deadline goes on. It may
raise a `WasmKernelError`, whose text says to the cell's author why it was not run, or `Cancelled`.
"""


def switched_off(sentence: str) -> CommandHandler:
    """Returns a handler that refuses a command; the sentence says why, and what to set."""

    def refuse(*_: object) -> Json:
        raise CommandRefused(sentence)

    return refuse


# -- languages


_COMMAND = re.compile(r"%(\w+)(?:[ \t]+(\S.*))?")
_LINE = re.compile(r"[^\r\n]+")
_TEXT_MOST = 100_000  # characters of a cell that is read while the guest waits


class ParsedCell(Struct, frozen=True):
    """A cell's text, as the host reads it: in linear time, and without raising.

    Attributes:
        source: The text.
        comment: The beginning of a comment in its language.
    """

    source: str
    comment: ClassVar[str]

    def lines(self) -> Iterator[str]:
        """Yields the lines with code, one by one, since the first decides on most cells."""
        for found in _LINE.finditer(self.source):
            line = found[0].strip()
            if line and not line.startswith(self.comment):
                yield line

    def command(self, line: str) -> CommandLine | None:
        """Returns the command that a line holds; None if there is none.

        Commands that the guest would have to expand or explain do not count.
        """
        match = _COMMAND.fullmatch(line)
        return CommandLine(match[1], match[2] or "") if match else None

    def only_commands(self, names: Collection[str]) -> list[CommandLine] | None:
        """Returns the commands of a cell that holds only some of these; else None. It is quick."""
        found = []
        for line in self.lines() if len(self.source) <= _TEXT_MOST else ():
            command = self.command(line)
            if command is None or command.name not in names:
                return None
            found.append(command)
        return found or None

    def commands(self, names: Collection[str]) -> list[CommandLine]:
        """Returns the commands among `names` that stand at top level, in their order.

        It takes some 2 us a character.
        """
        raise NotImplementedError


class GuestSetup(Struct, frozen=True):
    """The parts that a guest is started with.

    Attributes:
        files: Its file operations; the guest closes them.
        clock: The deadlines of its turns.
        streams: Its output streams.
        answer: Answers the agent's frames, on the guest's thread.
        image: The base image whose memory it begins with; one of its language's.
        memory_bytes: The most that its memory may grow to.
        clock_before: Its monotonic clock when its memory was saved, in nanoseconds.
        broker: Does the work that this process may not do, such as compiling a codec.
        deterministic: Whether its clock and its random numbers are those of every such guest.
        shares_files: Whether another guest uses the same file operations, and closes them.
    """

    files: FileOperations
    clock: Clock
    streams: OutputStreams
    answer: Callable[[bytes], bytes]
    broker: Broker
    image: BaseImage
    memory_bytes: int
    flavour: Flavour
    clock_before: int = 0
    deterministic: bool = False
    shares_files: bool = False

    def instance(
        self, compiled: Compiled, host: HostFunctions, argv: Sequence[str] = ()
    ) -> Instance:
        """Returns an instance with the memory of the image."""
        from wasm_kernel.engine.instance import Instance, InstanceOptions
        from wasm_kernel.wasi_files.calls import WasiFiles

        calls = WasiFiles(self.files, self.streams, sorts=self.deterministic)
        options = InstanceOptions(
            self.memory_bytes,
            argv,
            clock_before=self.clock_before,
            deterministic=self.deterministic,
        )
        with contextlib.ExitStack() as held:
            if not self.shares_files:
                held.callback(self.files.close)
            made = Instance(compiled, (calls, host), options, self.clock, self.streams)
            held.callback(made.close)
            self.image.attach(made)
            held.pop_all()
        return made


class Guest(Protocol):
    """A booted guest. Its owner closes it; only the guest's thread uses it.

    Its `signals` interrupt it; its `heap` knows which parts of its memory are free.
    """

    instance: Instance
    files: FileOperations
    flavour: Flavour
    signals: Signals
    heap: Heap

    def run_turn(self, fuel: int | None) -> bool:
        """Runs the agent for one request, within `fuel` if given; returns whether it ended well.

        After `GuestStopped` the guest can't be used any more.
        """

    def reseed(self) -> None:
        """Reseeds, between two turns, the random generators that no code in the guest can reach."""

    def close(self) -> None:
        """Closes the guest's files and its instance. Safe to call twice."""


class LanguageInfo(Struct, frozen=True):
    """Facts about a language that are known without a running guest.

    The title is such as `Python 3.15.0`; `language_info` is as Jupyter's `kernel_info_reply` has
    it. The links are titles and addresses of documentation.
    """

    title: str
    language_info: Mapping[str, Any]
    help_links: tuple[tuple[str, str], ...] = ()


class Finding(Struct, frozen=True):
    """The result of one check: `ok`, `note` (slower, or still to do) or `broken`."""

    mark: Literal["ok", "note", "broken"]
    text: str


_LATE_CODEC = "the first cell that needs it waits some seconds (`wasm-kernel warm`)"


def examine_code(prepared: PreparedFiles[Any], what: str, late: str) -> Iterator[Finding]:
    """Yields findings about a guest's compiled code, code with fuel, if any, and the codecs.

    `what` names the guest for people; `late` says what happens if it is not compiled.
    """
    from wasm_kernel.engine.flavours import FUEL, UNCHECKED

    wanted = [(prepared.binaries[0], what, late)]
    wanted += [(each, each.title, _LATE_CODEC) for each in prepared.codecs()]
    for binary, name, then in wanted:
        try:
            yield Finding("ok", f"{name} is {prepared.place(binary, UNCHECKED)}")
        except CompileError as problem:
            yield Finding("note", f"{name} is {problem}: {then}")
    with contextlib.suppress(CompileError):
        place = prepared.place(prepared.binaries[0], FUEL)
        yield Finding("ok", f"{what} for sessions with a fuel budget is {place}")


class GuestLanguage(ABC):
    """A language that guests run. One object serves every sandbox of a process.

    Guest threads prepare it; any of them may then use it. The cache is this user's by default. The
    broker makes files that are missing in it, if this process may not.

    Attributes:
        name: Its name, as `RuntimeType` has it.
        where_commands_stand: The rest of the sentence "it is only done where it stands in the cell
            itself,".
        library_paths: The guest's paths of folders that each of its installations has.
        host_imports: The imports of its guests that its own host functions answer.
        parse_cell: Reads a cell's text.
    """

    name: ClassVar[str]
    where_commands_stand: ClassVar[str]
    library_paths: ClassVar[frozenset[str]]
    host_imports: ClassVar[Mapping[Import, str]]
    parse_cell: ClassVar[type[ParsedCell]]

    def __init__(self, cache: Cache | None = None, broker: Broker | None = None) -> None:
        from wasm_kernel.engine.cache import Cache
        from wasm_kernel.engine.compiler import Compiler

        self.cache = cache or Cache()
        self._broker = broker
        self.compiler = Compiler(self.cache)
        self._guard = threading.Lock()

    @classmethod
    @cache
    def shared(cls, broker: Broker | None) -> Self:
        """Returns the language that this process's sandboxes with this broker share."""
        return cls(broker=broker)

    @property
    @abstractmethod
    def prepared(self) -> PreparedFiles[Any]:
        """The files in the cache that `prepare` makes."""

    @property
    def all_prepared(self) -> Sequence[PreparedFiles[Any]]:
        """The files with each of its base images, the best one's first."""
        return (self.prepared,)

    @abstractmethod
    def examine(self) -> Iterator[Finding]:
        """Yields findings about the language's files and its cache; changes nothing."""

    @abstractmethod
    def prepare(self, flavour: Flavour, progress: Progress) -> BaseImage:
        """Makes the files that take long to make, once per machine; quick if they are there.

        Call it on a guest thread, since it runs guests. Returns the image that a new session's
        saved memory is relative to. Raises `WasmKernelError`, which says what to do.
        """

    @property
    def image_names(self) -> list[str]:
        """The names of the base images that the language makes, the best one's first."""
        return [each.image_name for each in self.all_prepared]

    def images(self) -> Iterator[BaseImage]:
        """Yields the base images that are there, the one for new sessions first."""
        return filter(None, (each.image_at_hand() for each in self.all_prepared))

    def define_early(self, flavour: Flavour) -> None:
        """Prepares this process for forks, so that the first guest of each fork starts sooner.

        Call `prepare` before. No guest code runs.
        """
        from wasm_kernel.engine.instance import define_early
        from wasm_kernel.wasi_files.calls import WasiFiles

        compiled = self.compiler.module(self.prepared.binaries[0], flavour)
        define_early(compiled, (WasiFiles.imports, self.host_imports))

    def code_for(self, flavour: Flavour) -> Flavour:
        """Returns the flavour of the code that a guest is started with now.

        It is `flavour`, or one that compiles quicker and runs slower until `flavour` is compiled.
        """
        return flavour

    @abstractmethod
    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """Returns the folders that a guest sees."""

    @abstractmethod
    def start(self, setup: GuestSetup) -> Guest:
        """Returns a guest with a base image's memory, in milliseconds, after `prepare`.

        The image's open files are not open yet; the caller opens files when it loads the memory.
        """

    @abstractmethod
    def commands(self, folders: SandboxFolders) -> Mapping[str, CommandHandler]:
        """Returns the language's own host commands, such as those that install packages."""


def load(runtime: RuntimeType, broker: Broker | None = None) -> GuestLanguage:
    """Returns the language of a runtime; the whole process shares it.

    The broker makes files that are missing in the cache, if this process may not.
    """
    module = import_module(f"wasm_kernel.guests.{runtime.value}.language")
    language: GuestLanguage = module.LANGUAGE.shared(broker)
    return language


@cache
def info_of(runtime: RuntimeType) -> LanguageInfo:
    """Returns the facts about a language, without loading it."""
    found: LanguageInfo = import_module(f"wasm_kernel.guests.{runtime.value}.files").info()
    return found


def languages() -> Iterator[GuestLanguage]:
    """Yields every language."""
    return map(load, RuntimeType)


def prepare_on_own_thread(
    language: GuestLanguage, flavour: Flavour, progress: Progress
) -> BaseImage:
    """Prepares a language on a guest thread made for it, named `preparing`; waits for it."""
    from wasm_kernel.engine.thread import JobThread

    thread = JobThread("preparing")
    try:
        return thread.submit(lambda: language.prepare(flavour, progress)).result()
    finally:
        thread.close()


def runtimes_folder() -> Path:
    """Returns the folder of guest sources: inside the installed package, or the checkout's own."""
    package = Path(__file__).parents[1]
    packaged = package / "_runtimes"
    return packaged if packaged.is_dir() else package.parent / "runtimes"
