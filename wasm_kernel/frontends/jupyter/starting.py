"""A first start on a cold cache takes a minute or two: the cell that waits says how far it is."""

from __future__ import annotations

import asyncio
import threading
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
        """While `cell` waits for `started`, `say` every while how far it is, in one line.

        The line is ended when the start is over, on the thread that starts: what the cell itself
        prints comes after it.
        """
        line = _Line(say)
        started.add_done_callback(lambda _: line.end())
        begun, patience = time.monotonic(), PATIENCE
        while not (started.done() or cell.done()):
            await asyncio.wait((cell,), timeout=patience)
            if cell.done():
                break
            seconds = time.monotonic() - begun
            line.put(f"[wasm-kernel] {self._latest} ({seconds:.0f} s so far)")
            patience = THROTTLE
        line.end()


class _Line:
    """One line on the screen that is written anew; any thread may end it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._guard = threading.Lock()
        self._width = 0
        self._over = False

    def put(self, text: str) -> None:
        """Write `text` in the place of what stood there; nothing happens after the end."""
        with self._guard:
            if not self._over:
                self._say(f"\r{text:<{self._width}}")
                self._width = len(text)

    def end(self) -> None:
        """Nothing more comes."""
        with self._guard:
            if self._width and not self._over:
                self._say("\n")
            self._over = True
