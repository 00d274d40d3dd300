"""What a guest is told when it begins, or when memory was brought back to it. Pure."""

from __future__ import annotations

from typing import Any

from wasm_kernel.policy import ExecutionPolicy


def start_request(
    policy: ExecutionPolicy, count: int, *, fresh: bool, reseed: bool
) -> dict[str, Any]:
    """The `start` request, as `runtimes/PROTOCOL.md` has it.

    Args:
        policy: The limits.
        count: The number of the next cell.
        fresh: Whether a session begins, with nothing in its memory.
        reseed: Whether the memory was another session's, which goes on elsewhere.
    """
    return {
        "op": "start",
        "env": dict(policy.env),
        "execution_count": count,
        "fresh": fresh,
        "reseed": reseed,
        "memory_bytes": policy.memory_bytes,
    }
