"""`HostNetwork`: the functions of the host by which a session's cells reach the network.

They are functions like a program's own, with the same limits, interrupts and awaited calls. The
guest's sockets call them; cells do not see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from wasm_kernel import events
from wasm_kernel.errors import PolicyError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.functions import NETWORK
from wasm_kernel.folders.private import OpenFolder
from wasm_kernel.network.exchanges import Exchanges
from wasm_kernel.policy import MIB, ExecutionPolicy, NetworkMode
from wasm_kernel.service.call_record import CallRecord
from wasm_kernel.service.host_function import BoundFunction, HostFunction
from wasm_kernel.service.running_call import shared_loop
from wasm_kernel.service.session_calls import SessionNetwork

if TYPE_CHECKING:
    from wasm_kernel.network.network import Network

_CALL_SECONDS = 90.0
_CALLS_A_CELL = 200_000
_CALLS_A_MINUTE = 60_000
_NO_KEYRING = (
    "has the secret {name} in a keyring, which needs one more package: "
    "pip install 'wasm-kernel[keyring]'"
)
_NO_EXTRA = "needs more packages: pip install 'wasm-kernel[network]'"


class HostNetwork(SessionNetwork):
    """The network of one session, and its functions as `bound` ones. Any thread may use it.

    Without rules, no requests can be made, and there are no functions. There is a `record` of calls
    if the policy's mode is not `live`.

    Args:
        policy: The session's limits, with the rules for the network.
        logger: Returns the logger of events.
        exchanges: Opens the folder of recorded exchanges.
        cells: Returns the numbers of the running cell, and of the first one since the session was
            opened.

    Raises:
        PolicyError: the packages that it needs are not installed.
    """

    _network: Network | None = None

    def __init__(
        self,
        policy: ExecutionPolicy,
        logger: Callable[[], SandboxLogger],
        exchanges: OpenFolder,
        cells: Callable[[], tuple[int, int]],
    ) -> None:
        self._records = Exchanges(policy, exchanges, cells)
        if policy.network_mode != NetworkMode.LIVE:
            self.record = CallRecord(self._records)
        if not policy.network:
            return
        try:
            from wasm_kernel.network.network import Network
        except ModuleNotFoundError as problem:
            if (problem.name or "").partition(".")[0] == "wasm_kernel":
                raise
            raise PolicyError("network", _NO_EXTRA) from problem

        named = [each for rule in policy.network for each in rule.secrets if each.keyring]
        if named and policy.reaches_out and find_spec("keyring") is None:
            raise PolicyError("network", _NO_KEYRING.format(name=named[0].name))

        def log(**facts: Any) -> None:
            logger().log_event(events.NETWORK_REQUEST, **facts)

        self._network = Network(policy, log, self._records)
        self.bound = {
            NETWORK + function.__name__: BoundFunction(
                HostFunction(
                    function,
                    name=NETWORK + function.__name__,
                    seconds=_CALL_SECONDS,
                    most_bytes=2 * MIB,
                    calls_a_cell=_CALLS_A_CELL,
                    calls_a_minute=_CALLS_A_MINUTE,
                    recorded=False,
                ),
                logged=False,
            )
            for function in self._network.functions
        }
        self.offered = tuple(each.offered for each in self.bound.values())

    @property
    def used(self) -> tuple[int, int]:
        """The number of requests so far, and their bytes."""
        return (0, 0) if self._network is None else self._network.used

    def close(self) -> None:
        """Begins to close all connections."""
        asyncio.run_coroutine_threadsafe(self._close_all(), shared_loop())

    async def _close_all(self) -> None:
        if self._network is not None:
            await self._network.close_all()
        self._records.close()
