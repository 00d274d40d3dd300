"""The Python guest's request to the broker; `broker_handlers.py` answers it."""

from __future__ import annotations

from msgspec import Struct


class FetchWheels(Struct, frozen=True):
    """A request to put wheels into a folder of the sandbox's private one.

    `requirements` look like `rich>=13`; `into` is the folder's name; `pre` allows pre-releases.
    """

    requirements: tuple[str, ...]
    into: str
    pre: bool = False
