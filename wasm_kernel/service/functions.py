"""`Functions`: the functions of a program that cells may call; most programs offer none.

The code that checks and runs them is loaded by programs that offer some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from wasm_kernel.execution.functions import Offered
from wasm_kernel.execution.interfaces import check_type
from wasm_kernel.service.session_calls import NO_CALLS
from wasm_kernel.service.session_worker import SessionWorker

if TYPE_CHECKING:
    from wasm_kernel.service.host_function import BoundFunction, Function, HostFunction


class Functions:
    """The functions that a program offers; `offered` describes them for cells, `lines` for models.

    Raises `TypeError` or `ValueError` as `HostFunction`, or if two functions have one name.
    """

    def __init__(self, functions: Iterable[Function | HostFunction] = ()) -> None:
        self._bound: dict[str, BoundFunction] = {}
        check_type("functions", functions, Iterable)
        if found := [*functions]:
            from wasm_kernel.service.host_function import bound_by_name

            self._bound = bound_by_name(found)
        self.offered: Offered = tuple(each.offered for each in self._bound.values())
        self.lines: Sequence[str] = [each.described for each in self._bound.values()]

    def serve(self, session: SessionWorker) -> None:
        """Serves the calls of a session's cells from the next cell on, and those of its network."""
        bound, offered = self._bound, self.offered
        if (network := session.network) is not None:
            bound, offered = {**bound, **network.bound}, (*offered, *network.offered)
        if session.function_calls is NO_CALLS and bound:
            from wasm_kernel.service.function_calls import FunctionCalls

            session.function_calls = FunctionCalls(
                {},  # none for the cell that runs
                lambda: session.running_cell,
                lambda: session.logger,
            )
        session.function_calls.offer(bound, network, session.change(functions=offered))
