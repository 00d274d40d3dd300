"""wasmtime's ways of ending a call, as this package's errors: by code, never by text."""

from __future__ import annotations

import wasmtime

from wasm_kernel.engine.clock import Reason
from wasm_kernel.engine.seams import Stop
from wasm_kernel.errors import (
    CellTimeout,
    GuestClosed,
    GuestCrashed,
    GuestExited,
    GuestStopped,
    Interrupted,
    NeverBegan,
    OutOfFuel,
    StackExhausted,
)


def classify(stop: Stop, reason: Reason | None, *, fuel: int | None) -> GuestStopped:
    """The error that a stopped call stands for.

    Args:
        stop: How wasmtime ended the call.
        reason: Why the clock ended it, or None where it did not.
        fuel: The fuel that the turn had, or None where code is unmetered.
    """
    if stop.status is not None:
        return GuestExited(stop.status)
    if stop.trap is wasmtime.TrapCode.OUT_OF_FUEL:
        return OutOfFuel(fuel or 0)
    if stop.trap is wasmtime.TrapCode.STACK_OVERFLOW:
        return StackExhausted()
    if stop.trap is None and reason is not None:
        return _by_clock(reason)
    return GuestCrashed(stop.trap.name.lower().replace("_", " ") if stop.trap else "host error")


def _by_clock(reason: Reason) -> GuestStopped:
    if reason.cause == "begin":
        return NeverBegan(reason.seconds)
    if reason.cause == "deadline":
        return CellTimeout(reason.seconds, own=reason.own)
    if reason.cause == "grace":
        return Interrupted(reason.seconds)
    return GuestClosed()
