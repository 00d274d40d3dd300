"""What a guest is told when it begins, or when memory was brought back to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def start_request(
    env: Mapping[str, str], memory_bytes: int, count: int, *, fresh: bool, reseed: bool
) -> dict[str, Any]:
    """The `start` request, as `runtimes/PROTOCOL.md` has it.

    Args:
        env: Environment variables that the guest is to have from now on.
        memory_bytes: The limit of its memory, for messages.
        count: The number of the next cell.
        fresh: Whether a session begins, with nothing in its memory.
        reseed: Whether the memory was another session's, which goes on elsewhere.
    """
    return {
        "op": "start",
        "env": dict(env),
        "execution_count": count,
        "fresh": fresh,
        "reseed": reseed,
        "memory_bytes": memory_bytes,
    }
