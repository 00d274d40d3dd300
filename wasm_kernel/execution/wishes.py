"""What a cell wishes of the session's history: noted while it runs, granted when its turn is over.

Wishes build on each other: a second `%undo` in one cell begins where the first one leads, and a
checkpoint that is named after it names that state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from wasm_kernel.engine.clock import NO_SIGNALS, Clock
from wasm_kernel.errors import FrameError, TravelError
from wasm_kernel.execution.spoken import wish_of
from wasm_kernel.execution.turn import Turn
from wasm_kernel.guests.protocol import Display, Travel
from wasm_kernel.state.states import CheckpointTable, HistoryTree
from wasm_kernel.state.timeline import Timeline
from wasm_kernel.state.travel import Journey, checked_name, journey_of

_WISHES_MOST = 1_000  # of one cell: each costs the host some work, and a name a write to disk
_TOO_MANY = f"A cell can ask this {_WISHES_MOST:,} times. Nothing was changed by this one."
_NAMED = "Checkpoint {name!r}: %restore {name} comes back to the variables as they are now."
_RESTORED = "Restored: the variables are {where}."
_TOLD = {"undo": "Undone", "redo": "Done again"}

Say = Callable[[str], None]
Stopped = Callable[[], bool]


class Promise(Protocol):
    """Something that the cell was promised for when it is over, such as a fork. Never raises."""

    def keep(self, say: Say, stopped: Stopped) -> None:
        """Do it; `say` tells the cell's author, in stderr, of what went wrong.

        Where it takes longer than a moment, it asks `stopped` whether to leave it.
        """

    def break_off(self, say: Say) -> None:
        """The guest was lost in the cell: put back what was prepared."""


class Wishes:
    """The wishes of the running cell. The guest's thread owns them.

    Attributes:
        journey: Where memory is to stand afterwards; None to stay.
        here: Names for the state that the cell leaves.
        there: Names for the state that the journey leads to.
        promises: What is to be done with the state that the cell leaves, after all else.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._number = 1
        self.forget()

    def begin(self, number: int) -> None:
        """A cell of this number begins, whose checkpoints may be named after it."""
        self._number = number
        self.forget()

    def forget(self) -> None:
        """The cell is over."""
        self.journey: Journey | None = None
        self.here: list[str] = []
        self.there: list[str] = []
        self._heard = 0
        self.promises: list[Promise] = []

    def keep_promises(self, turn: Turn, clock: Clock) -> None:
        """The cell has come to its end, and everything else was granted.

        An interrupt, or the sandbox's end, is for what is being done now.
        """
        if not self.promises:
            return
        clock.arm(NO_SIGNALS, None, 0.0)
        try:
            for promise in self.promises:
                promise.keep(lambda text: _say(turn, text), lambda: clock.interrupted)
        finally:
            clock.disarm()

    def break_off(self, turn: Turn) -> None:
        """The guest was lost, and the cell's wishes are with it."""
        for promise in self.promises:
            promise.break_off(lambda text: _say(turn, text))
        self.forget()

    def hear(self, travel: Travel) -> Mapping[str, Any]:
        """The answer to a magic that travels, as `runtimes/PROTOCOL.md` has it.

        Raises:
            TravelError: it can't be granted; the others are as they were.
        """
        self._heard += 1
        if self._heard > _WISHES_MOST:
            raise TravelError(_TOO_MANY)
        if travel.how in ("checkpoints", "history_tree"):
            return self._listed(travel.how)
        if travel.how == "checkpoint":
            return {"said": self._plan_name(travel.line.strip() or f"In {self._number}")}
        return {"said": self._set_out(travel)}

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

    def _set_out(self, travel: Travel) -> str:
        """Plan a journey, which begins where the one before it leads; what is said of it."""
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

    def grant(self, travels: list[Travel], turn: Turn) -> str:
        """Do what a cell says that does nothing but travel, and say so as the guest would.

        Returns:
            Why one was refused, with which the cell ends; empty where none was.
        """
        for travel in travels:
            try:
                answer = self.hear(travel)
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
        """The cell has left its state; it gets the names that the cell wished for it."""
        self._name(self.here, turn)

    def name_there(self, turn: Turn) -> None:
        """The journey is over; the state there gets its names."""
        self._name(self.there, turn)

    def _name(self, names: list[str], turn: Turn) -> None:
        if names:
            try:
                self._timeline.name(*names)
            except TravelError as problem:  # the state is larger than the one that was asked about
                _say(turn, f"[wasm-kernel] {problem}\n")


def _say(turn: Turn, text: str) -> None:
    if text:
        turn.on_text("stderr", text)
