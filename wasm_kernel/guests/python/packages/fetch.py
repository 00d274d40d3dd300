"""The contract of whoever fetches wheels, in this process or outside of its walls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

Tell = Callable[[str], None]
Stopped = Callable[[], bool]


class Fetch(Protocol):
    """Fetches wheels."""

    def __call__(
        self, wishes: Sequence[str], folder: Path, *, pre: bool, tell: Tell, stopped: Stopped
    ) -> None:
        """Put a universal wheel for each wish, such as `rich>=13`, into the empty `folder`.

        Raises:
            PackageError: one is not there or can't be reached, or `stopped` said so; in words.
        """
