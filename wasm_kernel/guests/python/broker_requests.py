"""The request that the Python guest has for the broker; `broker_handlers.py` answers it."""

from __future__ import annotations

from msgspec import Struct


class FetchWheels(Struct, frozen=True):
    """Wheels are to be put into a folder of the sandbox's private one.

    Attributes:
        requirements: The packages, such as `rich>=13`.
        into: The folder's name.
        pre: Whether pre-releases will do.
    """

    requirements: tuple[str, ...]
    into: str
    pre: bool = False
