"""The guest agent: what runs inside the sandbox and answers the host's turns.

The host calls `turn()` once a turn (see `runtimes/PROTOCOL.md`). Everything else in this package
is reached through the one `Agent` that the anchor keeps alive.
"""

from __future__ import annotations

from wasm_kernel_agent.anchor import turn

__all__ = ["turn"]
