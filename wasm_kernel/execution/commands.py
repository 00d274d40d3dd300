"""Host commands: actions of the host for a cell, at once or when the cell is over.

Forking a session, fetching a package or pruning old sessions reaches beyond the guest. The host
runs such a command only if the text of the cell, which the host sent itself, contains it at top
level: at most as often as it stands there, and with exactly the words that stand there
(`GuestLanguage.parse_cell`). A command that guest code sends in another way, through a function, a
file or a forged frame, is refused with a message.

Commands that travel through the session's history may come from anywhere in a cell: they are
planned while it runs, and done when it is over. They build on each other: a second `%undo` in one
cell begins at the target of the first one, and a checkpoint named after it names that state.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.engine.clock import NO_SIGNALS, Clock
from wasm_kernel.errors import FrameError, HistoryError, TravelError, WasmKernelError
from wasm_kernel.execution.functions import NOT_FINISHED, Offered, TurnFunctions, sends
from wasm_kernel.guests.base import (
    ActionContext,
    AfterCellAction,
    CommandHandler,
    CommandLine,
    CommandRefused,
    GuestLanguage,
    Json,
    ParsedCell,
)
from wasm_kernel.guests.protocol import Answer, Display, FunctionFrame, FunctionReply, Output
from wasm_kernel.linux.broker import INTERNAL_ERROR, Broker, Reply, log_failure
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.state.index import place_of
from wasm_kernel.state.session_state import SessionState
from wasm_kernel.state.tree import TravelPlan, checked_name
from wasm_kernel.wasi_files.changes import FileChanges

_TEXT_MOST = 250_000  # characters: the parser takes some 2 us each, while the guest waits

LISTS = frozenset({"checkpoints", "timeline"})
TRAVELS = LISTS | {"undo", "redo", "restore", "checkpoint"}
"""The commands that need no guest: the host alone runs a cell of only such commands.

So they work even if an earlier cell broke the interpreter. An undo does not count such a cell.
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
_REQUESTS_MOST = 64  # of one turn; an owner ends a worker that makes 256 in a call, with cancels
_TOO_MANY_REQUESTS = (
    f"work beyond the sandbox was asked for {_REQUESTS_MOST} times already. Ask in another cell."
)
_ASKED_MOST = 1_000  # travels in one cell: each costs the host work, and a name a write to disk
_TOO_MANY = f"A cell can ask this {_ASKED_MOST:,} times. Nothing was changed by this one."
_STAY_SENT = ". Requests that were sent to the network stay sent"
_DONE = {"undo": "Undone", "redo": "Done again"}


class ChangedFiles(Protocol):
    """A listener for cells that begin and files that turns changed. Used on the guest's thread."""

    def cell_begins(self, context: ActionContext) -> None:
        """Acts before a cell runs; an interrupt during this call keeps the cell from running."""

    def files_changed(self, paths: Collection[str], context: ActionContext) -> None:
        """Acts on the paths of files that a turn made, changed or deleted; often there are none.

        Also called if the guest was lost in the turn.
        """


class RunningTurn(Protocol):
    """The turn that sends commands; `text` is the cell's text, None if the turn is not a cell."""

    text: ParsedCell | None

    def on_text(self, name: str, text: str) -> None:
        """Prints on `stdout` or `stderr`."""

    def show(self, output: Output, size: int) -> None:
        """Shows a rich output of `size` bytes; raises `FrameError` if it is over a limit."""


class _CountedBroker:
    """The broker of a sandbox, which takes a limited number of requests from each turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self.left = broker, _REQUESTS_MOST

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        self.left -= 1
        if self.left < 0:
            raise CommandRefused(_TOO_MANY_REQUESTS)
        return self._broker.call(request, reply, task)


class HostCommands:
    """The commands of a sandbox, and the requests of its running cell.

    Any thread may add a command, best before the first cell. All else runs on the guest's thread.
    The broker does work beyond this process's confinement; the listener gets the files that turns
    changed. `functions` are those that the sandbox's `owner` offers to cells.
    """

    def __init__(self, state: SessionState, language: GuestLanguage, broker: Broker) -> None:
        self.owner, self.broker = broker, _CountedBroker(broker)
        self.language = language
        self.travel = PendingTravel(state)
        self.listener: ChangedFiles | None = None
        self.functions: Offered = ()
        self._handlers: dict[str, tuple[CommandHandler, bool]] = {}
        self._actions: list[AfterCellAction] = []

    def add(self, name: str, handler: CommandHandler, *, from_anywhere: bool = False) -> None:
        """Registers the handler that runs if a cell has `%name`; it replaces an earlier one.

        With `from_anywhere`, guest code may send the command in any way, and as often as it likes.
        Such a handler must return only facts that the guest may know, and change nothing.
        """
        self._handlers = {**self._handlers, name: (handler, from_anywhere)}

    @property
    def names(self) -> frozenset[str]:
        """The names of all commands."""
        return frozenset(self._handlers)

    def handler(self, name: str) -> tuple[CommandHandler, bool]:
        """Returns a command's handler, and whether it may be asked for `from_anywhere`.

        Raises `CommandRefused` if there is no such command.
        """
        if name in self._handlers:
            return self._handlers[name]
        if name in _OF_KERNELS:
            raise CommandRefused(
                f"%{name} works in notebooks and consoles. Here, the program that runs this "
                f"session {_OF_KERNELS[name]}."
            )
        names = (each for each in self.names | TRAVELS if not each.startswith("_"))  # ours
        known = ", ".join(f"%{each}" for each in sorted(names))
        raise CommandRefused(f"There is no command %{name[:80]} here. There are {known}.")

    def begin_cell(self, number: int) -> None:
        """Forgets an earlier cell's requests; `number` is the default name of checkpoints."""
        self.travel.begin(number)
        self.broker.left = _REQUESTS_MOST
        self._actions = []

    def after_cell(self, action: AfterCellAction) -> None:
        """Queues an action to run when the cell has finished."""
        self._actions.append(action)

    @property
    def wants_state(self) -> bool:
        """True if the cell asked for a travel, a checkpoint or an action on its final state."""
        return bool(self.travel.target or self.travel.here or self._actions)

    def run_actions(self, turn: RunningTurn, clock: Clock) -> None:
        """Runs the cell's actions, after everything else.

        An interrupt, or the sandbox's end, cancels the action that runs.
        """
        if self._actions:
            with _acting(turn, self.broker, clock, "running actions") as context:
                for action in self._actions:
                    with context.logging_failure(type(action).__name__):
                        action.run(context)

    def cell_begins(self, turn: RunningTurn, clock: Clock) -> bool:
        """Tells the listener that a cell is about to run; returns False if it was interrupted."""
        if self.listener is None:
            return True
        with _acting(turn, self.broker, clock, "looking at files before a cell") as context:
            self.listener.cell_begins(context)
        return not clock.interrupted

    def files_changed(self, changes: FileChanges, turn: RunningTurn, clock: Clock) -> None:
        """Tells the listener which files the turn changed. An interrupt cancels its work."""
        if self.listener is not None:
            with _acting(turn, self.broker, clock, "hearing of changed files") as context:
                self.listener.files_changed(changes.paths(), context)

    def cell_lost(self, turn: RunningTurn, clock: Clock) -> None:
        """Drops the cell's requests, as the guest was lost in it."""
        context = _CellContext(turn, self.broker, clock)
        for action in self._actions:
            with context.logging_failure("dropping the requests of a cell"):
                action.cell_lost(context)
        self.begin_cell(1)


class _CellContext:
    """An `ActionContext` for actions before a cell begins, or after its end."""

    def __init__(self, turn: RunningTurn, broker: Broker, clock: Clock) -> None:
        self._turn = turn
        self._clock = clock
        self.broker = broker

    @property
    def cancelled(self) -> bool:
        return self._clock.interrupted

    def report(self, text: str) -> None:
        """Does nothing: progress is not shown outside of a running cell."""

    def say(self, text: str, stream: str = "stdout") -> None:
        if text:
            self._turn.on_text(stream, text)

    @contextlib.contextmanager
    def logging_failure(self, what: str) -> Iterator[None]:
        """Logs an error of a block, and says so. The code after the block still runs."""
        try:
            yield
        except Exception as problem:
            log_failure(what, problem)
            self.say(f"[wasm-kernel] {INTERNAL_ERROR}.\n", "stderr")


@contextlib.contextmanager
def _acting(turn: RunningTurn, broker: Broker, clock: Clock, what: str) -> Iterator[_CellContext]:
    """Yields the context of actions in the block, which an interrupt cancels."""
    context = _CellContext(turn, broker, clock)
    clock.arm(NO_SIGNALS, None, 0.0)
    try:
        with context.logging_failure(what):
            yield context
    finally:
        clock.disarm()


class TurnCommands:
    """The host commands of one turn, and the `CommandContext` of each.

    Counts how often each command of the cell's text may still run.
    """

    def __init__(
        self, turn: RunningTurn, commands: HostCommands, clock: Clock, max_text: int
    ) -> None:
        self.broker: Broker = commands.broker
        self._turn = turn
        self._commands = commands
        self._clock = clock
        self._left_to_say = max_text
        self._left: Counter[CommandLine] | None = None
        self._functions = TurnFunctions(commands.functions)

    def answer(self, line: CommandLine) -> Answer:
        """Returns the answer to a command of the guest: a value, or the reason of a refusal."""

        def run() -> Mapping[str, Json]:
            value = self._run(line)
            json.dumps(value, allow_nan=False)
            return {"value": value}

        return self._answer(run, f"%{line.name}")

    def call(self, asked: FunctionFrame, size: int) -> Answer:
        """Answers a call of an owner's function; the call's frame has `size` bytes."""

        def run() -> Answer:
            if self._functions.rests(asked):
                return NOT_FINISHED
            self._functions.check(asked, size)
            if sends(asked) and self._commands.travel.has_network:
                self._commands.travel.reached_out()
            return self._commands.owner.call(asked, FunctionReply, self)

        return self._answer(run, "a function of the host")

    def _answer(self, run: Callable[[], Answer], what: str) -> Answer:
        try:
            return run()
        except Cancelled:
            self._clock.interrupt_delivered()
            return {"interrupted": True}
        except WasmKernelError as refusal:
            return {"refused": str(refusal)}
        except Exception as problem:  # no exception may pass through the guest's stack
            log_failure(what, problem)
            return {"refused": f"{what}: {INTERNAL_ERROR}."}

    def _run(self, line: CommandLine) -> Json:
        if line.name in TRAVELS:
            if line.name not in LISTS and self._turn.text is None:
                raise CommandRefused(f"%{line.name} works in a cell: a callback can't ask for it.")
            return self._commands.travel.plan(line)
        handler, is_free = self._commands.handler(line.name)
        return handler(line if is_free else self._use(line), self)

    def _use(self, asked: CommandLine) -> CommandLine:
        """Returns a command as it stands in the cell's text, and counts its use.

        Raises `CommandRefused` if it does not stand there, or was run as often as it stands there.
        """
        text = self._turn.text
        if text is not None and len(text.source) > _TEXT_MOST:
            raise CommandRefused(
                f"%{asked.name} is not done in a cell of more than {_TEXT_MOST:,} characters. "
                "Nothing was changed. Put it into a cell of its own."
            )
        if self._left is None:  # most cells send no command, and are not parsed here
            self._left = Counter(text.commands(self._commands.names) if text is not None else ())
        line = CommandLine(asked.name, asked.line.strip(), asked.cell and asked.cell.rstrip("\n"))
        if self._left[line]:
            self._left[line] -= 1
            return replace(line, files=asked.files)
        if line in self._left:  # a Counter keeps entries that are down to 0
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
        """True if the command should stop."""
        return self._clock.should_stop()

    def report(self, text: str) -> None:
        """Prints a line about the command's progress."""
        self.say(f"{text}\n")

    def say(self, text: str, stream: str = "stdout") -> None:
        """Prints text, up to the policy's limit for stdout."""
        self._left_to_say -= len(text)
        if self._left_to_say >= 0:
            self._turn.on_text(stream, text)

    def after_cell(self, action: AfterCellAction) -> None:
        """Queues an action as `CommandContext` says."""
        self._commands.after_cell(action)


class PendingTravel:
    """The travel that the running cell has asked for. The guest's thread owns it.

    The target is the travel to make after the cell, or None. `here` are names for the state that
    the cell leaves, `there` are names for the target's state. It `has_network` if requests of cells
    leave this machine.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self.has_network = False
        self.reached: set[int] = set()  # the numbers of cells that sent requests to the network
        self._first = 0  # the first cell that this process has run
        self.begin(1)
        self._first = 0

    def begin(self, number: int) -> None:
        """Forgets earlier requests; the cell with this number begins."""
        self._number = number
        self._first = self._first or number
        self.reached.discard(number)
        self._asked = 0
        self.target: TravelPlan | None = None
        self.here: list[str] = []
        self.there: list[str] = []

    def plan(self, line: CommandLine) -> Mapping[str, Any]:
        """Returns the answer to a travel magic, in the form of `runtimes/PROTOCOL.md`.

        Raises `TravelError` if the travel is impossible; earlier plans stay.
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

        tree = self._state.tree
        rows = tree.rows()
        shown = CheckpointTable(rows) if how == "checkpoints" else HistoryTree(rows, tree.ran)
        return {
            "names": [row["name"] for row in rows if row["name"]],
            "shown": {"text/plain": shown.text(), "text/html": shown.html()},
        }

    def _plan_name(self, name: str) -> str:
        names = self.here if self.target is None else self.there
        self._state.check_names({*self.here, *self.there, checked_name(name)})
        if name not in names:
            names.append(name)
        return f"Checkpoint {name!r}: %restore {name} comes back to the variables as they are now."

    def _plan_travel(self, line: CommandLine) -> str:
        """Plans a travel from the target of the plan before it; returns a sentence about it."""
        count, name, files = words_of(line)
        travel = self._state.plan(line.name, count, name, files=files, after=self.target)
        self.target = travel
        if line.name == "restore":
            where = f"as at {name!r}" if name else "as they were before this cell"
            return f"Restored: the variables are {where}."
        cells = "; ".join(f"{place_of(c.cell, c.label)} {c.label}" for c in travel.cells)
        said = f"{_DONE[line.name]}: {cells or 'nothing that changed a variable'}"
        return said + self._sent_by({each.cell for each in travel.cells}, line.name)

    def reached_out(self) -> None:
        """Notes that the running cell sends a request to the network."""
        self.reached.add(self._number)

    def _sent_by(self, cells: set[int], how: str) -> str:
        """Returns a sentence if undone cells sent requests, or may have in an earlier process."""
        is_known = bool(cells & self.reached)
        may_have = self.has_network and any(each < self._first for each in cells)
        return _STAY_SENT if how == "undo" and (is_known or may_have) else ""

    def run_from_text(self, lines: list[CommandLine], cell: RunningTurn) -> str:
        """Plans the commands of a cell that only travels, and prints what the guest would print.

        Stops at the first refused command, and returns its reason; empty if all were planned.
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
        """Gives the current state of memory the names that the cell asked for."""
        if names:
            try:
                self._state.name(*names)
            # the state is larger than the one that `check_names` saw, or not on disk
            except (TravelError, HistoryError) as problem:
                turn.on_text("stderr", f"[wasm-kernel] {problem}\n")


def words_of(line: CommandLine) -> tuple[int, str, bool]:
    """Parses the words behind `%undo`, `%redo` or `%restore`, or raises `TravelError`.

    Returns a number of cells, a name, and True if `--files` is among the words.
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
