"""Where the living agent is found, whatever a cell did to `sys.modules`.

A cell may delete this package from `sys.modules` or replace `builtins.__import__`. The class below
stays reachable without any name or import: `complex` lists its subclasses, this one is made before
numpy's, and the agent holds on to it. So `0j.__class__.__subclasses__()[0].turn()` is a turn that
needs neither an import nor a builtin.
"""

from __future__ import annotations

from typing import Any, ClassVar

from wasm_kernel_agent.agent import Agent
from wasm_kernel_agent.door import host_door

_NAME = "WasmKernelAnchor"
_agents: list[Agent] = []  # so that an anchor without its agent finds it again


class WasmKernelAnchor(complex):
    """Holds the one agent of this interpreter."""

    agent: ClassVar[Agent | None] = None

    @staticmethod
    def turn() -> None:
        """One turn of the host: ask for the request, serve it, say what came of it."""
        anchor = WasmKernelAnchor
        if anchor.agent is None:
            anchor.agent = _agents[0] if _agents else Agent(host_door(), keep=anchor)
            _agents.append(anchor.agent)
        anchor.agent.turn()


def _living() -> type[WasmKernelAnchor]:
    """The anchor that was made first: a second import of this package finds the first one's."""
    kinds: list[Any] = complex.__subclasses__()
    living: type[WasmKernelAnchor] = next(kind for kind in kinds if kind.__name__ == _NAME)
    return living


turn = _living().turn
