"""The flavours of compiled code: which checks the compiler puts into a guest.

A check stands in every loop and at every function's beginning. Epoch checks let the host look at
the clock and stop the guest; fuel checks stop it when a budget is used up. Each of the two kinds
costs a quarter of the time, or more.

The host can't stop code without epochs against its will. So such code only runs in a process whose
owner may kill it, such as a worker. All guests of users live in workers; code with epochs is for
guests in the tests' own process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from wasm_kernel.engine.clock import StopReason

FlavourName = Literal["unchecked", "unchecked-baseline", "fuel", "epoch", "fuel-epoch"]
BASELINE_SETTING = "WASM_KERNEL_BASELINE"
"""The environment variable that allows (`1`) or forbids (`0`) the baseline compiler's code."""
_BASELINE_TRIED = {"x86_64"}


class Flavour(Struct, frozen=True):
    """One way to compile a guest.

    Attributes:
        epochs: Whether epochs can stop it.
        fuel: Whether it counts fuel.
        seconds_a_mb: The processor time that compiling takes for each MB of the wasm file.
        is_baseline: Whether the baseline compiler (Winch) makes it: in a seventh of the time, and
            the code takes 1.5 times as long.
    """

    name: FlavourName
    epochs: bool
    fuel: bool
    seconds_a_mb: float
    is_baseline: bool = False


UNCHECKED = Flavour("unchecked", False, False, 0.7)
BASELINE = Flavour("unchecked-baseline", False, False, 0.13, is_baseline=True)
"""The code of first cells, which stands in for `UNCHECKED` until that is compiled."""
FUEL = Flavour("fuel", False, True, 0.9)
EPOCH = Flavour("epoch", True, False, 0.82)
FUEL_EPOCH = Flavour("fuel-epoch", True, True, 0.96)
FLAVOURS: Mapping[str, Flavour] = {
    flavour.name: flavour for flavour in (UNCHECKED, BASELINE, FUEL, EPOCH, FUEL_EPOCH)
}


def may_run_baseline(*, walled: bool) -> bool:
    """Returns whether the baseline compiler's code may run.

    By default it may if the process is `walled`, on processors that it was tried on.
    """
    is_safe = walled and os.uname().machine in _BASELINE_TRIED
    return os.environ.get(BASELINE_SETTING, "1" if is_safe else "0") == "1"


class ProcessOwner(Protocol):
    """The owner of this process, which may kill it and outlives it."""

    def kill(self, reason: StopReason) -> None:
        """Has this process killed, because its guest does not stop.

        Called once, on the ticker's thread or the guest's. Until the kill, the guest may go on, and
        other threads may finish what they write, such as the last commit.
        """


class ThisProcess:
    """The flavours that this process may run, and its owner, who may kill it with its guests."""

    def __init__(self) -> None:
        self.owner: ProcessOwner | None = None
        self._is_ending = False

    def may_be_killed_by(self, owner: ProcessOwner) -> None:
        """Lets the guests that begin from now on run without epochs.

        Only for a process that was made for its guests: everything else in it ends with them.
        """
        self.owner = owner

    def flavour(self, *, metered: bool) -> Flavour:
        """Returns the quickest flavour that this process may run; `metered` ones count fuel."""
        if self.owner is None:
            return FUEL_EPOCH if metered else EPOCH
        return FUEL if metered else UNCHECKED

    def kill(self, reason: StopReason) -> None:
        """Asks the owner to kill this process, once."""
        if self.owner is not None and not self._is_ending:
            self._is_ending = True
            self.owner.kill(reason)

    def check(self, flavour: Flavour) -> None:
        """Raises `RuntimeError` if code of a flavour could not be stopped in this process."""
        if not flavour.epochs and self.owner is None:
            raise RuntimeError(
                f"a guest of the flavour {flavour.name} was started in a process that nobody may "
                "kill: it could not be stopped"
            )


THIS_PROCESS = ThisProcess()
