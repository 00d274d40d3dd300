"""The guest agent: the code inside the sandbox that answers the host's turns.

The host calls `turn()` once a turn (see `runtimes/PROTOCOL.md`). Everything else in this package
is reached through the one `Agent` that its anchor keeps alive.
"""

from __future__ import annotations

from wasm_kernel_agent.agent import turn

__all__ = ["turn"]
