"""The request that the Python guest has for the broker; `broker_handlers.py` answers it."""

from __future__ import annotations

from msgspec import Struct


class FetchWheels(Struct, frozen=True):
    """Wheels are to be put into a folder of the sandbox's private one.

    `requirements` are such as `rich>=13`; `into` is the folder's name; with `pre`, pre-releases
    will do.
    """

    requirements: tuple[str, ...]
    into: str
    pre: bool = False
