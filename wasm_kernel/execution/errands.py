"""Errands: what the host does for a magic that stands in a cell's own text.

Forking a session, fetching a package or pruning old sessions reaches beyond the guest. The host
does such a thing only where the text of the cell, which it sent itself, asks for it: at top level,
each order at most as often as it stands there, with the very words that stand there
(`ParsedCell.commands`). Guest code that asks on its own, through `get_ipython()`, a function, a
file or a forged frame, is refused in words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.guests.python.cells import commands_in

Json = Any

_TEXT_MOST = 250_000  # characters: the reader takes some 2 us each, while the guest waits


class ErrandRefused(WasmKernelError):
    """The errand is not done; `str()` says why to the cell's author, as a sentence."""


class ErrandInterrupted(WasmKernelError):
    """The cell that waited for the errand waits no longer; whatever was begun has been undone."""


class Caller(Protocol):
    """The cell that waits for an errand. Used on the sandbox's own thread, while it waits."""

    def say(self, text: str, stream: str = "stdout") -> None:
        """Print for the cell, on `stdout` or `stderr`; beyond the cell's caps it is dropped."""

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the cell waits no longer; the answer is that of `gone`."""

    @property
    def gone(self) -> bool:
        """Whether the cell was interrupted, ran out of time, or is being closed.

        An errand that takes longer than a moment asks every 0.1 s, puts things back as they were,
        and raises `ErrandInterrupted`.
        """


class Errand(Protocol):
    """What the host can be sent for. Called on the sandbox's own thread, in the midst of a cell."""

    def __call__(self, order: CommandLine, caller: Caller, /) -> Json:
        """Do it; the answer is what the magic gives, as JSON. It must not call the sandbox.

        The cell's fuel does not burn meanwhile; its deadline goes on.

        Raises:
            ErrandRefused: it is not done.
            ErrandInterrupted: `caller` is gone.
        """


def switched_off(sentence: str) -> Errand:
    """An errand that is not offered; `sentence` says what to set, and why it is off."""

    def refuse(*_: object) -> Json:
        raise ErrandRefused(sentence)

    return refuse


class Errands:
    """The errands that a sandbox offers, by the name of their magic.

    Any thread may offer one, best before the first cell. The guest's thread has them done.
    """

    def __init__(self) -> None:
        self._offered: dict[str, Errand] = {}
        self._harmless: frozenset[str] = frozenset()

    def offer(self, name: str, errand: Errand, *, anywhere: bool = False) -> None:
        """Do `errand` where a cell says `%name`; it takes the place of an earlier one.

        Args:
            name: The magic's name.
            errand: What the host does.
            anywhere: Guest code may ask for it on its own, too, and as often as it likes: it tells
                no more than the guest may know, and changes nothing.
        """
        self._offered = {**self._offered, name: errand}
        self._harmless = self._harmless | {name} if anywhere else self._harmless - {name}

    @property
    def names(self) -> frozenset[str]:
        """The magics for which there is an errand."""
        return frozenset(self._offered)

    def done(self, asked: CommandLine, standing: Standing, caller: Caller) -> Json:
        """What comes of an order, where the cell's text or the errand's nature allows it.

        Raises:
            ErrandRefused: it can't be; the text is a sentence.
            ErrandInterrupted: the cell was interrupted meanwhile.
        """
        errand = self._offered.get(asked.name)
        if errand is None:
            raise ErrandRefused(f"%{asked.name[:80]} works in a kernel only: nobody does it here.")
        order = asked if asked.name in self._harmless else standing.take(asked)
        try:
            value = errand(order, caller)
            json.dumps(value, allow_nan=False)
        except (ErrandRefused, ErrandInterrupted):
            raise
        except WasmKernelError as problem:
            raise ErrandRefused(str(problem)) from problem
        except Exception as problem:  # nothing may pass from here into the guest's own stack
            raise ErrandRefused(
                f"%{order.name} failed in the host ({type(problem).__name__})."
            ) from problem
        return value


class Standing:
    """What a cell's text allows, and how much of it is left. Belongs to one turn."""

    def __init__(self, code: str, names: Callable[[], frozenset[str]]) -> None:
        self._code = code
        self._names = names
        self._left: Counter[CommandLine] | None = None
        self._stood: frozenset[CommandLine] = frozenset()

    def take(self, asked: CommandLine) -> CommandLine:
        """`asked`, as it stands in the text; it is used up by this.

        Raises:
            ErrandRefused: it does not stand there, or has been done as often as it does.
        """
        if len(self._code) > _TEXT_MOST:
            raise ErrandRefused(
                f"%{asked.name} is not done in a cell of more than {_TEXT_MOST:,} characters. "
                "Nothing was changed. Put it into a cell of its own."
            )
        if self._left is None:  # most cells never ask
            self._left = Counter(commands_in(self._code, self._names()))
            self._stood = frozenset(self._left)
        order = CommandLine(asked.name, asked.line.strip(), asked.cell and asked.cell.rstrip("\n"))
        if self._left[order]:
            self._left[order] -= 1
            return order
        if order in self._stood:
            raise ErrandRefused(
                f"%{order.name} was done already: it is done once for each time that it stands in "
                "the cell."
            )
        raise ErrandRefused(
            f"%{order.name} reaches beyond the sandbox, so it is only done where it stands in the "
            "cell itself, on a line of its own at top level, word by word: not in a function, a "
            "block, a loop or a file, not with variables in it, and not through get_ipython()."
        )


def as_answer(work: Callable[[], Json]) -> Mapping[str, Json]:
    """The answer to an errand's frame: its value, or why there is none."""
    try:
        return {"value": work()}
    except ErrandInterrupted:
        return {"interrupted": True}
    except ErrandRefused as refusal:
        return {"refused": str(refusal)}
