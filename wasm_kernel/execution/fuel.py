"""The fuel of a sandbox's cells: what the running one may burn, and what was burnt."""

from __future__ import annotations

from typing import Any

from wasm_kernel.engine.instance import Instance


class Fuel:
    """Keeps account, turn by turn. Only the guest's thread uses it.

    Attributes:
        consumed: What the last turn burnt; None where it was not counted.
    """

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        self._instance: Instance | None = None
        self._given: int | None = None
        self._cut = 0
        self._last: int | None = None
        self.consumed: int | None = None

    def adopt(self, budget: int | None) -> None:
        """The turns to come have another budget."""
        self._budget = budget

    def begin(self, instance: Instance, given: int | None) -> None:
        """A turn begins with so much, or without a limit."""
        self._instance, self._given, self._cut = instance, given, 0

    def lower(self, most: int) -> None:
        """The running turn may burn at most so much more."""
        if self._instance is not None:
            self._cut += self._instance.lower_fuel(most)

    def end(self) -> None:
        """The turn is over."""
        self.consumed = self._so_far()
        if self.consumed is not None:
            self._last = self.consumed
        self._instance = None

    def rest(self) -> None:
        """A cell was done without the guest."""
        self.consumed = 0 if self._budget is not None else None

    def _so_far(self) -> int | None:
        left = None if self._instance is None else self._instance.fuel_left
        return None if left is None or self._given is None else self._given - self._cut - left

    def facts(self) -> dict[str, Any]:
        """What a cell may know: what it burnt so far and has left, and what the last one burnt."""
        consumed = self._so_far()
        left = None if consumed is None or self._instance is None else self._instance.fuel_left
        return {
            "metered": self._budget is not None,
            "budget": self._budget,
            "consumed": consumed,
            "left": left,
            "last": self._last,
        }
