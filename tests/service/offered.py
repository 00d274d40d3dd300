"""Functions that tests offer to cells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from tests.faces import PATIENCE
from wasm_kernel.result import SandboxResult


@dataclass
class Order:
    number: int
    due: date
    label: bytes = b""


class UnknownOrder(LookupError):
    pass


def put_off(order: Order, days: int = 1, *, why: str = "rain") -> Order:
    """Puts an order off."""
    if order.number < 0:
        raise UnknownOrder(f"there is no order {order.number}")
    later = date.fromordinal(order.due.toordinal() + days)
    return Order(order.number, later, order.label + why.encode())


def echo(value: Any) -> Any:
    """Returns the value."""
    return value


class Streams:
    """Streams of numbers, which note their ends."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def numbers(self, n: int) -> Iterator[int]:
        """Counts."""
        try:
            yield from range(n)
        finally:
            self.closed.append("numbers")

    async def slow_numbers(self, n: int) -> AsyncIterator[int]:
        """Counts, as an asynchronous function."""
        try:
            for each in range(n):
                yield each
        finally:
            self.closed.append("slow_numbers")


class Meeting:
    """An `async` function that returns when all expected people have come."""

    def __init__(self) -> None:
        self._come = 0
        self.cancelled = threading.Event()

    async def meet(self, people: int) -> int:
        """Waits for the other people."""
        self._come += 1
        try:
            while self._come < people:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._come


class Door:
    """A plain function that waits until the test opens the door."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.knocked = threading.Event()

    def knock(self) -> str:
        """Waits."""
        self.knocked.set()
        assert self.opened.wait(PATIENCE)
        return "in"


Sandboxes = Callable[..., Any]


def fails(sandbox: Any, code: str) -> str:
    """Runs a cell that ends with an error; returns the error in words."""
    result: SandboxResult = sandbox.execute(code)
    assert result.error is not None, result.stdout
    return f"{result.error.ename}: {result.error.evalue}"
