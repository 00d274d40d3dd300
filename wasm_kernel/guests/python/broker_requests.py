"""The requests that the Python guest has for the broker; `broker_handlers.py` answers them."""

from __future__ import annotations

from msgspec import Struct

from wasm_kernel.engine.flavours import FlavourName


class PrepareGuest(Struct, frozen=True):
    """The cache is to be filled with what a guest needs: compiled code, and its base image.

    Attributes:
        flavour: The flavour of the code.
    """

    flavour: FlavourName


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
