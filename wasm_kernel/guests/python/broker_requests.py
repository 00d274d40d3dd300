"""The request that the Python guest has for the broker; `broker_handlers.py` answers it."""

from __future__ import annotations

from msgspec import Struct


class FetchWheels(Struct, frozen=True):
    """Wheels of packages such as `rich>=13` go to a folder of the private one, or pre-releases."""

    requirements: tuple[str, ...]
    into: str
    pre: bool = False
