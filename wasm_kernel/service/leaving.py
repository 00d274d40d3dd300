"""`Leaving`: a session that is falling asleep."""

from __future__ import annotations

import time

from msgspec import Struct


class Leaving(Struct, frozen=True):
    """A session that is falling asleep, since a monotonic time, for at most `seconds`.

    Calls later than `last_call` wait for the next worker. With `discard_variables` the next worker
    begins without variables.
    """

    since: float
    seconds: float
    last_call: int
    discard_variables: bool

    @property
    def passed(self) -> float:
        """The seconds since the session began to fall asleep."""
        return time.monotonic() - self.since
