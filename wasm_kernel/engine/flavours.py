"""The flavours of compiled code: which checks the compiler puts into a guest.

Fuel checks stand in every loop and at every function's beginning, and stop the guest when a budget
is used up. They cost a quarter of the time, or more. No check looks at the clock: a guest that does
not stop is ended with its worker (`clock.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

FlavourName = Literal["unchecked", "unchecked-baseline", "fuel"]
BASELINE_SETTING = "WASM_KERNEL_BASELINE"
"""The environment variable that allows (`1`) or forbids (`0`) the baseline compiler's code."""
_BASELINE_TRIED = {"x86_64"}


class Flavour(Struct, frozen=True):
    """One way to compile a guest.

    Attributes:
        fuel: Whether it counts fuel.
        seconds_a_mb: The processor time that compiling takes for each MB of the wasm file.
        is_baseline: Whether the baseline compiler (Winch) makes it: in a seventh of the time, and
            the code takes 1.5 times as long.
    """

    name: FlavourName
    fuel: bool
    seconds_a_mb: float
    is_baseline: bool = False


UNCHECKED = Flavour("unchecked", False, 0.7)
BASELINE = Flavour("unchecked-baseline", False, 0.13, is_baseline=True)
"""The code of first cells, which stands in for `UNCHECKED` until that is compiled."""
FUEL = Flavour("fuel", True, 0.9)
FLAVOURS: Mapping[str, Flavour] = {flavour.name: flavour for flavour in (UNCHECKED, BASELINE, FUEL)}


def may_run_baseline(*, walled: bool) -> bool:
    """Returns whether the baseline compiler's code may run.

    By default it may if the process is `walled`, on processors that it was tried on.
    """
    is_safe = walled and os.uname().machine in _BASELINE_TRIED
    return os.environ.get(BASELINE_SETTING, "1" if is_safe else "0") == "1"
