"""A first start on a cold cache takes a minute or two: the cell that waits says how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

PATIENCE = 1.0  # seconds of silence; a warm start needs far less
THROTTLE = 5.0  # seconds between two lines


class Starting:
    """How far the sandbox's start is. Any thread may `tell`; the event loop narrates."""

    def __init__(self) -> None:
        self._latest = "starting the sandbox"

    def tell(self, sentence: str) -> None:
        """Take note of how far the start is."""
        self._latest = sentence

    async def narrate(
        self, started: Future[None], cell: asyncio.Future[Any], say: Callable[[str], None]
    ) -> None:
        """While `cell` waits for `started`, `say` every while how far it is."""
        begun, said, patience = time.monotonic(), "", PATIENCE
        while not (started.done() or cell.done()):
            await asyncio.wait((cell,), timeout=patience)
            if started.done() or cell.done():
                return
            line = self._latest
            seconds = time.monotonic() - begun
            say(f"{line}\n" if line != said else f"still at it, {seconds:.0f} s so far\n")
            said, patience = line, THROTTLE
