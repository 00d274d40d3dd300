"""Host commands: what the host does for a cell, at once or when the cell is over.

Forking a session, fetching a package or pruning old sessions reaches beyond the guest. The host
does such a thing only if the text of the cell, which it sent itself, asks for it: at top level,
each command at most as often as it stands there, with the very words that stand there
(`GuestLanguage.parse_cell`). Guest code that asks on its own, through a function, a file or a
forged frame, is refused in words.

Commands that travel through the session's history may come from anywhere in a cell: they are
planned while it runs, and done when it is over. They build on each other: a second `%undo` in one
cell begins where the first one leads, and a checkpoint that is named after it names that state.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from wasm_kernel.engine.clock import NO_SIGNALS, Clock
from wasm_kernel.errors import FrameError, HistoryError, TravelError, WasmKernelError
from wasm_kernel.guests.base import (
    ActionContext,
    AfterCellAction,
    CommandHandler,
    CommandLine,
    CommandRefused,
    GuestLanguage,
    Json,
)
from wasm_kernel.guests.protocol import Display, Output
from wasm_kernel.linux.broker import INTERNAL_ERROR, Broker, log_failure
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.state.index import place_of
from wasm_kernel.state.session_state import SessionState
from wasm_kernel.state.tree import Travel, checked_name
from wasm_kernel.wasi_files.changes import FileChanges

_TEXT_MOST = 250_000  # characters: the reader takes some 2 us each, while the guest waits

LISTS = frozenset({"checkpoints", "history_tree"})
TRAVELS = LISTS | {"undo", "redo", "restore", "checkpoint"}
"""The commands that need no guest: a cell of nothing else is done by the host alone.

So they work whatever an earlier cell did to the interpreter. An undo does not count such a cell.
"""

_OF_KERNELS = {
    "fork": "makes its forks",
    "prune_sessions": "removes old sessions",
    "session_path": "knows where its files lie",
    "session_publish": "takes files out of it",
}
_FILES = r"(?:^|\s)--files(?!\S)"
_CELLS_MOST = 2**31
_DIGITS = 9
_ASKED_MOST = 1_000  # in one cell: each costs the host some work, and a name a write to disk
_TOO_MANY = f"A cell can ask this {_ASKED_MOST:,} times. Nothing was changed by this one."
_NAMED = "Checkpoint {name!r}: %restore {name} comes back to the variables as they are now."
_RESTORED = "Restored: the variables are {where}."
_DONE = {"undo": "Undone", "redo": "Done again"}


class ChangedFiles(Protocol):
    """Hears of cells that begin, and which files turns changed. Used on the guest's thread."""

    def cell_begins(self, context: ActionContext) -> None:
        """Acts before a cell runs; it does not run if it is interrupted meanwhile."""

    def files_changed(self, paths: Collection[str], context: ActionContext) -> None:
        """Acts on paths of files that a turn made, changed or deleted, also if the guest was lost
        in it.

        Often there are none.
        """


class RunningTurn(Protocol):
    """The turn that asks for commands: whether it is a cell, and its source."""

    is_cell: bool
    code: str

    def on_text(self, name: str, text: str) -> None:
        """Prints on `stdout` or `stderr`."""

    def show(self, output: Output, size: int) -> None:
        """Shows a rich output of so many bytes; raises `FrameError` if it is over a limit."""


class HostCommands:
    """The commands of a sandbox, and what its running cell has asked for.

    Any thread may add a command, best before the first cell. The guest's thread does the rest. The
    broker does what this process may not; the listener hears which files turns changed.
    """

    def __init__(self, state: SessionState, language: GuestLanguage, broker: Broker) -> None:
        self.broker = broker
        self.language = language
        self.travel = PendingTravel(state)
        self.listener: ChangedFiles | None = None
        self._handlers: dict[str, CommandHandler] = {}
        self._from_anywhere: frozenset[str] = frozenset()
        self._actions: list[AfterCellAction] = []

    def add(self, name: str, handler: CommandHandler, *, from_anywhere: bool = False) -> None:
        """Has `handler` run if a cell says `%name`; it takes the place of an earlier one.

        `from_anywhere`: guest code may ask for it on its own, too, and as often as it likes: it
        tells no more than the guest may know, and changes nothing.
        """
        others = self._from_anywhere - {name}
        self._from_anywhere = others | {name} if from_anywhere else others
        self._handlers = {**self._handlers, name: handler}

    @property
    def names(self) -> frozenset[str]:
        """The commands that there are."""
        return frozenset(self._handlers)

    def offered(self, handlers: Mapping[str, CommandHandler]) -> list[str]:
        """Returns the names of those of `handlers` that were added."""
        return [name for name in handlers if self._handlers.get(name) is handlers[name]]

    def handler(self, name: str) -> CommandHandler:
        """Returns what the host does for a command, or raises `CommandRefused`."""
        if name in self._handlers:
            return self._handlers[name]
        if name in _OF_KERNELS:
            raise CommandRefused(
                f"%{name} works in notebooks and consoles. Here, the program that runs this "
                f"session {_OF_KERNELS[name]}."
            )
        names = (each for each in self.names | TRAVELS if not each.startswith("_"))  # the agent's
        known = ", ".join(f"%{each}" for each in sorted(names))
        raise CommandRefused(f"There is no command %{name[:80]} here. There are {known}.")

    def may_come_from_anywhere(self, name: str) -> bool:
        """Returns whether guest code may ask for a command on its own."""
        return name in self._from_anywhere

    def begin_cell(self, number: int) -> None:
        """Forgets what an earlier cell asked for; checkpoints may be named by the number."""
        self.travel.begin(number)
        self._actions = []

    def after_cell(self, action: AfterCellAction) -> None:
        """Has an action run when the cell has finished."""
        self._actions.append(action)

    @property
    def wants_state(self) -> bool:
        """True if something is to be done to the state that the cell leaves."""
        return bool(self.travel.target or self.travel.here or self._actions)

    def run_actions(self, turn: RunningTurn, clock: Clock) -> None:
        """Does what is to be done after the cell, when everything else was done.

        An interrupt, or the sandbox's end, is for the action that runs.
        """
        if not self._actions:
            return
        context = _Beside(turn, self.broker, clock)
        clock.arm(NO_SIGNALS, None, 0.0)
        try:
            for action in self._actions:
                try:
                    action.run(context)
                except Exception as problem:  # the cell has ended well, and its effects are kept
                    log_failure(type(action).__name__, problem)
                    context.say(f"[wasm-kernel] {INTERNAL_ERROR}.\n", "stderr")
        finally:
            clock.disarm()

    def cell_begins(self, turn: RunningTurn, clock: Clock) -> bool:
        """Tells the listener that a cell is about to run; returns whether it still is to."""
        if self.listener is None:
            return True
        clock.arm(NO_SIGNALS, None, 0.0)
        try:
            self.listener.cell_begins(_Beside(turn, self.broker, clock))
        except Exception as problem:  # the cell runs without
            log_failure("looking at files before a cell", problem)
        finally:
            is_wanted = not clock.interrupted
            clock.disarm()
        return is_wanted

    def files_changed(self, changes: FileChanges, turn: RunningTurn, clock: Clock) -> None:
        """Tells the listener what the turn changed. An interrupt is for what it does."""
        if self.listener is None:
            return
        context = _Beside(turn, self.broker, clock)
        clock.arm(NO_SIGNALS, None, 0.0)
        try:
            self.listener.files_changed(changes.paths(), context)
        except Exception as problem:  # the turn has ended, and its effects are kept
            log_failure("hearing of changed files", problem)
            context.say(f"[wasm-kernel] {INTERNAL_ERROR}.\n", "stderr")
        finally:
            clock.disarm()

    def cell_lost(self, turn: RunningTurn, clock: Clock) -> None:
        """Drops what the cell asked for: the guest was lost in it."""
        for action in self._actions:
            try:
                action.cell_lost(_Beside(turn, self.broker, clock))
            except Exception as problem:  # the guest must be started anew, whatever fails here
                log_failure("dropping what a cell asked for", problem)
        self.begin_cell(1)


class _Beside:
    """An `ActionContext`: what is done for a cell before it begins, or when its end has come."""

    def __init__(self, turn: RunningTurn, broker: Broker, clock: Clock) -> None:
        self._turn = turn
        self._clock = clock
        self.broker = broker

    @property
    def cancelled(self) -> bool:
        return self._clock.interrupted

    def report(self, text: str) -> None:
        """Nobody waits for it."""

    def say(self, text: str, stream: str = "stdout") -> None:
        if text:
            self._turn.on_text(stream, text)


class TurnCommands:
    """The host commands of one turn; a `CommandContext` for each.

    It knows which commands the cell's text allows, and how many of each are left.
    """

    def __init__(
        self, turn: RunningTurn, commands: HostCommands, clock: Clock, max_text: int
    ) -> None:
        self.broker = commands.broker
        self._turn = turn
        self._commands = commands
        self._clock = clock
        self._left_to_say = max_text
        self._left: Counter[CommandLine] | None = None

    def answer(self, line: CommandLine) -> Mapping[str, Json]:
        """Returns the answer to a command of the guest: a value, or why there is none."""
        try:
            value = self._run(line)
            json.dumps(value, allow_nan=False)
        except Cancelled:
            self._clock.interrupt_delivered()
            return {"interrupted": True}
        except WasmKernelError as refusal:
            return {"refused": str(refusal)}
        except Exception as problem:  # nothing may pass from here into the guest's own stack
            log_failure(f"%{line.name}", problem)
            return {"refused": f"%{line.name}: {INTERNAL_ERROR}."}
        return {"value": value}

    def _run(self, line: CommandLine) -> Json:
        if line.name in TRAVELS:
            if line.name not in LISTS and not self._turn.is_cell:
                raise CommandRefused(f"%{line.name} works in a cell: a callback can't ask for it.")
            return self._commands.travel.plan(line)
        handler = self._commands.handler(line.name)
        is_free = self._commands.may_come_from_anywhere(line.name)
        return handler(line if is_free else self._take(line), self)

    def _take(self, asked: CommandLine) -> CommandLine:
        """Returns a command as it stands in the cell's text; it is used up by this.

        Raises `CommandRefused` if it does not stand there, or has been run as often as it does.
        """
        if len(self._turn.code) > _TEXT_MOST:
            raise CommandRefused(
                f"%{asked.name} is not done in a cell of more than {_TEXT_MOST:,} characters. "
                "Nothing was changed. Put it into a cell of its own."
            )
        if self._left is None:  # most cells never ask
            cell = self._commands.language.parse_cell(self._turn.code)
            self._left = Counter(cell.commands(self._commands.names))
        line = CommandLine(asked.name, asked.line.strip(), asked.cell and asked.cell.rstrip("\n"))
        if self._left[line]:
            self._left[line] -= 1
            return replace(line, files=asked.files)
        if line in self._left:  # a Counter keeps what it has counted down to 0
            raise CommandRefused(
                f"%{line.name} was done already: it is done once for each time that it stands in "
                "the cell."
            )
        raise CommandRefused(
            f"%{line.name} reaches beyond the sandbox, so it is only done where it stands in the "
            f"cell itself, {self._commands.language.where_commands_stand}"
        )

    @property
    def cancelled(self) -> bool:
        """As `CommandContext` has it."""
        return self._clock.should_stop()

    def report(self, text: str) -> None:
        """As `CommandContext` has it."""
        self.say(f"{text}\n")

    def say(self, text: str, stream: str = "stdout") -> None:
        """As `CommandContext` has it."""
        self._left_to_say -= len(text)
        if self._left_to_say >= 0:
            self._turn.on_text(stream, text)

    def wait(self, seconds: float) -> bool:
        """As `CommandContext` has it."""
        return self._clock.wait_in_host(seconds)

    def after_cell(self, action: AfterCellAction) -> None:
        """As `CommandContext` has it."""
        self._commands.after_cell(action)


class PendingTravel:
    """The travel that the running cell has asked for. The guest's thread owns it.

    The target is where memory is to be afterwards, None to stay. `here` are names for the state
    that the cell leaves, `there` for the one that memory goes to.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self.begin(1)

    def begin(self, number: int) -> None:
        """Stays, until the cell of this number asks for something else."""
        self._number = number
        self._asked = 0
        self.target: Travel | None = None
        self.here: list[str] = []
        self.there: list[str] = []

    def plan(self, line: CommandLine) -> Mapping[str, Any]:
        """Returns the answer to a magic that travels, as `runtimes/PROTOCOL.md` has it.

        Raises `TravelError` if it can't be done; what was planned before stays.
        """
        self._asked += 1
        if self._asked > _ASKED_MOST:
            raise TravelError(_TOO_MANY)
        if line.name in LISTS:
            return self._listed(line.name)
        if line.name == "checkpoint":
            return {"said": self._plan_name(line.line.strip() or f"In {self._number}")}
        return {"said": self._plan_travel(line)}

    def _listed(self, how: str) -> Mapping[str, Any]:
        from wasm_kernel.state.tables import CheckpointTable, HistoryTree

        rows = self._state.tree.rows()
        shown = CheckpointTable(rows) if how == "checkpoints" else HistoryTree(rows)
        return {
            "names": [row["name"] for row in rows if row["name"]],
            "shown": {"text/plain": shown.text(), "text/html": shown.html()},
        }

    def _plan_name(self, name: str) -> str:
        names = self.here if self.target is None else self.there
        self._state.check_names({*self.here, *self.there, checked_name(name)})
        if name not in names:
            names.append(name)
        return _NAMED.format(name=name)

    def _plan_travel(self, line: CommandLine) -> str:
        """Plans to go on from where the plan before it leads; returns what to say of it."""
        count, name, files = words_of(line)
        travel = self._state.plan(line.name, count, name, files=files, after=self.target)
        self.target = travel
        if line.name == "restore":
            where = f"as at {name!r}" if name else "as they were before this cell"
            return _RESTORED.format(where=where)
        cells = "; ".join(f"{place_of(c.cell, c.label)} {c.label}" for c in travel.cells)
        return f"{_DONE[line.name]}: {cells or 'nothing that changed a variable'}"

    def run_from_text(self, lines: list[CommandLine], cell: RunningTurn) -> str:
        """Plans what a cell says that does nothing but travel, and says so as the guest would.

        Returns why one was refused, with which the cell ends; empty if none was.
        """
        for line in lines:
            try:
                answer = self.plan(line)
            except TravelError as problem:
                cell.on_text("stderr", f"UsageError: {problem}\n")
                return str(problem)
            if "said" in answer:
                cell.on_text("stdout", f"{answer['said']}\n")
            if "shown" in answer:
                size = sum(map(len, answer["shown"].values()))
                with contextlib.suppress(FrameError):  # over a limit, as a notice says
                    cell.show(Display(answer["shown"]), size)
        return ""

    def give_names(self, names: list[str], turn: RunningTurn) -> None:
        """Gives the state that memory is in now the names that the cell asked for."""
        if names:
            try:
                self._state.name(*names)
            # the state is larger than the one that was asked about, or not on disk
            except (TravelError, HistoryError) as problem:
                turn.on_text("stderr", f"[wasm-kernel] {problem}\n")


def words_of(line: CommandLine) -> tuple[int, str, bool]:
    """Returns what the words behind `%undo`, `%redo` or `%restore` say, or raises `TravelError`.

    That is a number of cells, a name, and whether files go along.
    """
    words, count = re.subn(_FILES, "", line.line)
    words, files = words.strip(), count > 0
    if line.name == "undo":
        if words and not words.isdecimal():
            raise TravelError("%undo takes the number of cells to undo, such as: %undo 2")
        return int(words or 1) if len(words) <= _DIGITS else _CELLS_MOST, "", files
    if line.name == "redo" and words:
        raise TravelError("%redo takes nothing but --files")
    if line.name == "restore" and not (words or files):
        raise TravelError("%restore takes a checkpoint's name or a cell's number")
    return 1, words, files
