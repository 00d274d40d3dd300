"""Host commands: what the host does for a cell, at once or when the cell is over.

Forking a session, fetching a package or pruning old sessions reaches beyond the guest. The host
does such a thing only if the text of the cell, which it sent itself, asks for it: at top level,
each command at most as often as it stands there, with the very words that stand there
(`GuestLanguage.parse_cell`). Guest code that asks on its own, through a function, a file or a
forged frame, is refused in words.

Commands that travel through the session's history are planned while the cell runs, and done when it
is over. They build on each other: a second `%undo` in one cell begins where the first one leads,
and a checkpoint that is named after it names that state.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wasm_kernel.engine.clock import NO_SIGNALS, Clock
from wasm_kernel.errors import FrameError, TravelError, WasmKernelError
from wasm_kernel.execution.spoken import wish_of
from wasm_kernel.guests.commands import (
    AfterCellAction,
    CommandHandler,
    CommandLine,
    CommandRefused,
    Json,
)
from wasm_kernel.guests.protocol import Display, Errand, Travel
from wasm_kernel.linux.broker import INTERNAL_ERROR, Broker, log_failure
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.state.states import CheckpointTable, HistoryTree
from wasm_kernel.state.travel import Journey, checked_name, journey_of

if TYPE_CHECKING:
    from wasm_kernel.execution.turn import Turn
    from wasm_kernel.guests.base import GuestLanguage
    from wasm_kernel.state.timeline import Timeline

_TEXT_MOST = 250_000  # characters: the reader takes some 2 us each, while the guest waits
_TRAVELS_MOST = 1_000  # of one cell: each costs the host some work, and a name a write to disk
_TOO_MANY = f"A cell can ask this {_TRAVELS_MOST:,} times. Nothing was changed by this one."
_NAMED = "Checkpoint {name!r}: %restore {name} comes back to the variables as they are now."
_RESTORED = "Restored: the variables are {where}."
_TOLD = {"undo": "Undone", "redo": "Done again"}
_OF_A_CELL = frozenset({"undo", "redo", "restore", "checkpoint"})


class HostCommands:
    """The commands of a sandbox, and what its running cell has asked for.

    Any thread may add a command, best before the first cell. The guest's thread does the rest.

    Attributes:
        broker: Does what this process may not do.
        language: Reads the cell's text.
        travel: Where the cell wants to go in the session's history.
    """

    def __init__(self, timeline: Timeline, language: GuestLanguage, broker: Broker) -> None:
        self.broker = broker
        self.language = language
        self.travel = PendingTravel(timeline)
        self._handlers: dict[str, CommandHandler] = {}
        self._from_anywhere: frozenset[str] = frozenset()
        self._actions: list[AfterCellAction] = []

    def add(self, name: str, handler: CommandHandler, *, from_anywhere: bool = False) -> None:
        """Has `handler` run if a cell says `%name`; it takes the place of an earlier one.

        Args:
            name: The magic's name.
            handler: What the host does.
            from_anywhere: Whether guest code may ask for it on its own, too, and as often as it
                likes: it tells no more than the guest may know, and changes nothing.
        """
        others = self._from_anywhere - {name}
        self._from_anywhere = others | {name} if from_anywhere else others
        self._handlers = {**self._handlers, name: handler}

    @property
    def names(self) -> frozenset[str]:
        """The commands that there are."""
        return frozenset(self._handlers)

    def run(self, asked: CommandLine, context: TurnCommands) -> Json:
        """Runs a command, if the cell's text or the command's nature allows it.

        Raises:
            CommandRefused: it can't be run; the text is a sentence.
            Cancelled: the cell was interrupted meanwhile.
        """
        handler = self._handlers.get(asked.name)
        if handler is None:
            raise CommandRefused(f"%{asked.name[:80]} works in a kernel only: nobody does it here.")
        line = asked if asked.name in self._from_anywhere else context.take(asked)
        try:
            value = handler(line, context)
            json.dumps(value, allow_nan=False)
        except (CommandRefused, Cancelled):
            raise
        except WasmKernelError as problem:
            raise CommandRefused(str(problem)) from problem
        except Exception as problem:  # nothing may pass from here into the guest's own stack
            log_failure(f"%{line.name}", problem)
            raise CommandRefused(f"%{line.name}: {INTERNAL_ERROR}.") from problem
        return value

    def begin_cell(self, number: int) -> None:
        """Forgets what an earlier cell asked for.

        Args:
            number: The cell's number, which its checkpoints may be named after.
        """
        self.travel.begin(number)
        self._actions = []

    def after_cell(self, action: AfterCellAction) -> None:
        """As `CommandContext` has it."""
        self._actions.append(action)

    def run_actions(self, turn: Turn, clock: Clock) -> None:
        """Does what is to be done after the cell, when everything else was done.

        An interrupt, or the sandbox's end, is for the action that runs.
        """
        if not self._actions:
            return
        clock.arm(NO_SIGNALS, None, 0.0)
        try:
            for action in self._actions:
                action.run(_AfterCell(turn, self.broker, clock))
        finally:
            clock.disarm()

    def cell_lost(self, turn: Turn, clock: Clock) -> None:
        """Drops what the cell asked for: the guest was lost in it."""
        for action in self._actions:
            action.cell_lost(_AfterCell(turn, self.broker, clock))
        self.begin_cell(1)


class _AfterCell:
    """An `ActionContext`."""

    def __init__(self, turn: Turn, broker: Broker, clock: Clock) -> None:
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

    def __init__(self, turn: Turn, commands: HostCommands, clock: Clock, max_text: int) -> None:
        self.broker = commands.broker
        self._turn = turn
        self._commands = commands
        self._clock = clock
        self._left_to_say = max_text
        self._left: Counter[CommandLine] | None = None
        self._in_text: frozenset[CommandLine] = frozenset()

    def answer(self, frame: Travel | Errand) -> Mapping[str, Json]:
        """Returns the answer to a command of the guest: a value, or why there is none."""
        try:
            if isinstance(frame, Travel):
                return self._plan(frame)
            line = CommandLine(frame.name, frame.line, frame.cell)
            return {"value": self._commands.run(line, self)}
        except Cancelled:
            self._clock.interrupt_delivered()
            return {"interrupted": True}
        except (CommandRefused, TravelError) as refusal:
            return {"refused": str(refusal)}

    def _plan(self, travel: Travel) -> Mapping[str, Json]:
        if travel.how in _OF_A_CELL and not self._turn.is_cell:
            raise CommandRefused(f"%{travel.how} works in a cell: a callback can't ask for it.")
        return self._commands.travel.plan(travel)

    def take(self, asked: CommandLine) -> CommandLine:
        """Returns a command as it stands in the cell's text; it is used up by this.

        Raises:
            CommandRefused: it does not stand there, or has been run as often as it does.
        """
        if len(self._turn.code) > _TEXT_MOST:
            raise CommandRefused(
                f"%{asked.name} is not done in a cell of more than {_TEXT_MOST:,} characters. "
                "Nothing was changed. Put it into a cell of its own."
            )
        if self._left is None:  # most cells never ask
            cell = self._commands.language.parse_cell(self._turn.code)
            self._left = Counter(cell.commands(self._commands.names))
            self._in_text = frozenset(self._left)
        line = CommandLine(asked.name, asked.line.strip(), asked.cell and asked.cell.rstrip("\n"))
        if self._left[line]:
            self._left[line] -= 1
            return line
        if line in self._in_text:
            raise CommandRefused(
                f"%{line.name} was done already: it is done once for each time that it stands in "
                "the cell."
            )
        raise CommandRefused(
            f"%{line.name} reaches beyond the sandbox, so it is only done where it stands in the "
            f"cell itself, {self._commands.language.texts.where_commands_stand}"
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
    """Where the running cell wants to go in the session's history. The guest's thread owns it.

    Attributes:
        journey: Where memory is to stand afterwards; None to stay.
        here: Names for the state that the cell leaves.
        there: Names for the state that the journey leads to.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.begin(1)

    def begin(self, number: int) -> None:
        """Stays, until the cell of this number asks for something else."""
        self._number = number
        self._asked = 0
        self.journey: Journey | None = None
        self.here: list[str] = []
        self.there: list[str] = []

    def plan(self, travel: Travel) -> Mapping[str, Any]:
        """Returns the answer to a magic that travels, as `runtimes/PROTOCOL.md` has it.

        Raises:
            TravelError: it can't be done; what was planned before stays.
        """
        self._asked += 1
        if self._asked > _TRAVELS_MOST:
            raise TravelError(_TOO_MANY)
        if travel.how in ("checkpoints", "history_tree"):
            return self._listed(travel.how)
        if travel.how == "checkpoint":
            return {"said": self._plan_name(travel.line.strip() or f"In {self._number}")}
        return {"said": self._plan_journey(travel)}

    def _listed(self, how: str) -> Mapping[str, Any]:
        rows = self._timeline.rows()
        shown = CheckpointTable(rows) if how == "checkpoints" else HistoryTree(rows)
        return {
            "names": [row["name"] for row in rows if row["name"]],
            "shown": {"text/plain": shown.text(), "text/html": shown.html()},
        }

    def _plan_name(self, name: str) -> str:
        names = self.here if self.journey is None else self.there
        self._timeline.check_names({*self.here, *self.there, checked_name(name)})
        if name not in names:
            names.append(name)
        return _NAMED.format(name=name)

    def _plan_journey(self, travel: Travel) -> str:
        """Plans a journey from where the one before it leads; returns what to say of it."""
        wish, past = wish_of(travel), self._timeline.past
        if self.journey is not None:
            past = past.after(self.journey)
        journey = journey_of(past, travel.how, wish.cells, wish.name, files=wish.files)
        if journey.files is not None:
            self._timeline.files.check(journey.files)
        elif self.journey is not None:
            journey = replace(journey, files=self.journey.files)
        self._timeline.hold(journey)
        self.journey = journey
        if travel.how == "restore":
            where = f"as at {wish.name!r}" if wish.name else "as they were before this cell"
            return _RESTORED.format(where=where)
        cells = "; ".join(f"In[{c.cell}] {c.label}" for c in journey.cells)
        return f"{_TOLD[travel.how]}: {cells or 'nothing that changed a variable'}"

    def run_from_text(self, travels: list[Travel], turn: Turn) -> str:
        """Plans what a cell says that does nothing but travel, and says so as the guest would.

        Returns:
            Why one was refused, with which the cell ends; empty if none was.
        """
        for travel in travels:
            try:
                answer = self.plan(travel)
            except TravelError as problem:
                turn.on_text("stderr", f"UsageError: {problem}\n")
                return str(problem)
            if "said" in answer:
                turn.on_text("stdout", f"{answer['said']}\n")
            if "shown" in answer:
                size = sum(map(len, answer["shown"].values()))
                with contextlib.suppress(FrameError):  # over a limit of the cell's, which is told
                    turn.show(Display(answer["shown"]), size)
        return ""

    def name_here(self, turn: Turn) -> None:
        """Gives the state that the cell has left the names that the cell asked for."""
        self._name(self.here, turn)

    def name_there(self, turn: Turn) -> None:
        """Gives the state at the end of the journey its names."""
        self._name(self.there, turn)

    def _name(self, names: list[str], turn: Turn) -> None:
        if names:
            try:
                self._timeline.name(*names)
            except TravelError as problem:  # the state is larger than the one that was asked about
                turn.on_text("stderr", f"[wasm-kernel] {problem}\n")
