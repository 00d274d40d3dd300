"""The contract of a guest language.

The host floors below know no language, and those above know only this. A language is a folder
beside this file, with a module `language` in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct

from wasm_kernel.engine.clock import Clock, Signals
from wasm_kernel.engine.compiler import Progress
from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.streams import OutputStreams
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.guests.commands import CommandHandler, CommandLine
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.state.image import BaseImage
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.preopens import Preopens


class ParsedCell(Protocol):
    """A cell's text, as the host reads it: in linear time, and without raising."""

    def only_commands(self, names: Collection[str]) -> list[CommandLine] | None:
        """Returns the commands of a cell that holds nothing but some of these; else None.

        It is quick: the first line of most cells is enough. Commands that the guest would have to
        expand or explain are not for the host alone.
        """

    def commands(self, names: Collection[str]) -> list[CommandLine]:
        """Returns the commands among `names` that stand at top level, in their order.

        It takes some 2 us a character.
        """


class GuestSetup(Struct, frozen=True):
    """The things that a guest is started with.

    Attributes:
        files: Its file calls; it closes them.
        clock: The deadlines of its turns.
        streams: What it prints.
        answer: Answers the agent's frames, on the guest's thread.
        memory_bytes: The most that its memory may grow to.
        metered: Whether its fuel is counted.
        clock_before: What its monotonic clock showed when its memory was saved, in nanoseconds.
    """

    files: WasiFiles
    clock: Clock
    streams: OutputStreams
    answer: Callable[[bytes], bytes]
    memory_bytes: int
    metered: bool
    clock_before: int = 0


class Guest(Protocol):
    """A booted guest. Its owner closes it; only the guest's thread uses it."""

    @property
    def instance(self) -> Instance:
        """Its instance."""

    @property
    def files(self) -> WasiFiles:
        """Its open files."""

    @property
    def signals(self) -> Signals:
        """Its way to be interrupted."""

    def run_turn(self, fuel: int | None) -> bool:
        """Runs the agent, which fetches one request and answers it.

        Args:
            fuel: The fuel of this turn, or None for no limit.

        Returns:
            Whether the agent's own code ended well.

        Raises:
            GuestStopped: the guest did not come back; it is of no more use.
        """

    def reseed(self) -> None:
        """Seeds those random generators anew, between two turns, that no code in it can reach."""

    def close(self) -> None:
        """Closes its files and its instance. Safe to call twice."""


class LanguageInfo(Struct, frozen=True):
    """Facts about a language that are known without a running guest.

    Attributes:
        version: Its version, such as `3.15.0`; `unknown` if the guest's files are missing.
        title: Its name and version, such as `Python 3.15.0`.
        language_info: As Jupyter's `kernel_info_reply` has it.
        help_links: Titles and addresses of its documentation.
    """

    version: str
    title: str
    language_info: Mapping[str, Any]
    help_links: tuple[tuple[str, str], ...] = ()


class LanguageTexts(Struct, frozen=True):
    """The sentences of the host's that depend on the language.

    Attributes:
        where_commands_stand: Goes on after "it is only done where it stands in the cell itself,".
    """

    where_commands_stand: str


class GuestLanguage(Protocol):
    """A language that guests run. One object serves every sandbox of a process."""

    name: str
    texts: LanguageTexts

    @property
    def info(self) -> LanguageInfo:
        """Facts about it."""

    def prepare(self, metered: bool, progress: Progress) -> BaseImage:
        """Makes everything that takes long, once a machine; quick if it is there already.

        Call it on a guest thread: it runs guests.

        Returns:
            The image that memory is saved relative to.

        Raises:
            WasmKernelError: it can't be made; the text says what to do.
        """

    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """Returns the folders that a guest sees."""

    def start(self, setup: GuestSetup) -> Guest:
        """Returns a guest with the base image's memory, in milliseconds, after `prepare`.

        The image's open files are not open yet: whoever knows what memory comes next opens them.
        """

    def parse_cell(self, code: str) -> ParsedCell:
        """Reads a cell's text."""

    def commands(self, folders: SandboxFolders) -> Mapping[str, CommandHandler]:
        """Returns the language's own host commands, such as those that install packages."""

    def outer_handlers(self, folders: SandboxFolders) -> Handlers:
        """Returns what a broker does for the guest of a sandbox."""


def load(runtime: RuntimeType) -> GuestLanguage:
    """Returns the language of a runtime; all of this process share it."""
    module = import_module(f"wasm_kernel.guests.{runtime.value}.language")
    language: GuestLanguage = module.shared_language()
    return language
