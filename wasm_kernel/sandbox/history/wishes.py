"""What a cell wishes of the session's history: noted while it runs, granted when its turn is over.

Wishes build on each other: a second `%undo` in one cell begins where the first one leads, and a
checkpoint that is named after it names that state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from wasm_kernel.engine.clock import DEAF, Clock
from wasm_kernel.errors import GuestStopped, Interrupted, TravelError
from wasm_kernel.sandbox.frames import Travel
from wasm_kernel.sandbox.history.spoken import journeys, told
from wasm_kernel.sandbox.history.timeline import Timeline
from wasm_kernel.sandbox.history.travel import Journey, checked_name, journey_of
from wasm_kernel.sandbox.turn import Turn

_OUTSIDE = (
    "[wasm-kernel] IPython in the sandbox could not do this; it was done from outside of it.\n"
)


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
        heard: Whether the cell came to say any.
        promises: What is to be done with the state that the cell leaves, after all else.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.forget()

    def forget(self) -> None:
        """The cell is over."""
        self.journey: Journey | None = None
        self.here: list[str] = []
        self.there: list[str] = []
        self.heard = False
        self.promises: list[Promise] = []

    def keep_promises(self, turn: Turn, clock: Clock) -> None:
        """The cell has come to its end, and everything else was granted.

        An interrupt, or the sandbox's end, is for what is being done now.
        """
        if not self.promises:
            return
        clock.arm(DEAF, None, 0.0)
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

    def hear(self, wish: Travel) -> Mapping[str, Any]:
        """The answer to a wish, as `runtimes/PROTOCOL.md` has it.

        Raises:
            TravelError: it can't be granted; the others are as they were.
        """
        if wish.how == "checkpoints":
            return {"rows": self._timeline.rows()}
        self.heard = True
        if wish.how == "checkpoint":
            names = self.here if self.journey is None else self.there
            self._timeline.check_names({*self.here, *self.there, checked_name(wish.name)})
            if wish.name not in names:
                names.append(wish.name)
            return {"cells": []}
        past = self._timeline.past
        if self.journey is not None:
            past = past.after(self.journey)
        journey = journey_of(past, wish.how, wish.cells, wish.name, files=wish.files)
        if journey.files is not None:
            self._timeline.files.check(journey.files)
        elif self.journey is not None:
            journey = replace(journey, files=self.journey.files)
        self._timeline.hold(journey)
        self.journey = journey
        return {"cells": [f"In[{c.cell}] {c.label}" for c in journey.cells]}

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

    def go_by_the_text(self, turn: Turn, stopped: GuestStopped | None) -> bool:
        """Whether a cell that is nothing but a journey is made one, although the guest failed to
        ask.

        Args:
            turn: The cell's turn.
            stopped: How its guest was lost, or None where it came back.
        """
        if self.heard or not turn.handed or _succeeded_or_interrupted(turn, stopped):
            return False
        try:
            said = [told(wish, self.hear(wish)["cells"]) for wish in journeys(turn.code)]
        except TravelError:
            self.forget()
            return False
        if said:
            turn.hear("stderr", _OUTSIDE)
            turn.hear("stdout", "".join(said))
        return bool(said)


def _say(turn: Turn, text: str) -> None:
    if text:
        turn.hear("stderr", text)


def _succeeded_or_interrupted(turn: Turn, stopped: GuestStopped | None) -> bool:
    if stopped is not None:
        return isinstance(stopped, Interrupted)
    reply = turn.reply or {}
    return reply.get("status") == "ok" or reply.get("ename") == "KeyboardInterrupt"
