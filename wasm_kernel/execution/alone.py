"""Cells that the host does without the guest: those that only travel.

No guest is needed for them, so they work whatever an earlier cell did to the interpreter. The guest
hears of them with its next cell, so that it has their texts in `In`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from wasm_kernel.engine.clock import DEAF, Clock
from wasm_kernel.errors import GuestClosed
from wasm_kernel.execution.turn import Turn
from wasm_kernel.execution.wishes import Wishes
from wasm_kernel.guests.protocol import Error, Travel

_CELLS_MOST, _CHARACTERS = 100, 1_000  # that the guest is told of, and of each


class Alone:
    """The cells that the host has done since the guest last ran one."""

    def __init__(self, wishes: Wishes, clock: Clock) -> None:
        self._wishes = wishes
        self._clock = clock
        self._done: deque[tuple[int, str]] = deque(maxlen=_CELLS_MOST)

    def tell(self, request: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        """The request of a cell of this number, with what the guest has missed."""
        return {**request, "execution_count": number, "alone": [*self._done]}

    def told(self) -> None:
        """The guest has run a cell."""
        self._done.clear()

    def do(
        self, turn: Turn, request: Mapping[str, Any], travels: list[Travel], number: int
    ) -> None:
        """Do what a cell of this number says, as far as the turn goes: the journey comes after it.

        Raises:
            GuestClosed: the sandbox is being closed.
        """
        self._clock.arm(DEAF, None, 0.0, expected=True)
        interrupted = self._clock.interrupted
        self._clock.disarm()
        if self._clock.closed:
            raise GuestClosed
        if interrupted:
            turn.show(Error("KeyboardInterrupt", "", ("KeyboardInterrupt",)), 0)
            turn.end(number, ename="KeyboardInterrupt")
            return
        refused = self._wishes.grant(travels, turn, number)
        numbered = bool(request.get("store_history"))
        turn.end(number - (not numbered), ename="UsageError" if refused else "", evalue=refused)
        if numbered:
            code = str(request.get("code", ""))
            self._done.append((number, code if len(code) <= _CHARACTERS else ""))
