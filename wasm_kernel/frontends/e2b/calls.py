"""`Operation`: a kind of call of E2B's API; `ApiCall`: one such call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from starlette.datastructures import Headers

from wasm_kernel.frontends.e2b.sandbox import ClientSandbox
from wasm_kernel.frontends.e2b.sandboxes import Sandboxes
from wasm_kernel.frontends.http.callers import Caller, MemoryLease
from wasm_kernel.frontends.http.metrics import Metrics

T = TypeVar("T")


class Plane(Enum):
    """The part of the API that a call belongs to, which decides how it is authorized.

    Calls of `CONTROL` carry an API key; those of `CODE`, `FILES` and `RPC` are for a sandbox, and
    carry its access token. Any client may make calls of `OPEN`.
    """

    CONTROL = "sandboxes"
    CODE = "code"
    FILES = "files"
    RPC = "file service"
    OPEN = "open"


@dataclass(frozen=True)
class Operation:
    """A call of the API: `act` makes the answer; its second argument is the body.

    `body` is the type of the body, None if it has none; `answer` that of the answer.
    """

    method: str
    path: str
    plane: Plane
    act: Callable[..., Awaitable[Any]]
    summary: str
    body: Any = None
    answer: Any = None
    status: int = 200
    query: tuple[str, ...] = ()


@dataclass
class ApiCall:
    """One call, and who makes it: `caller` for sandboxes, or the client of a `sandbox`."""

    operation: Operation
    params: Mapping[str, Any]
    query: Mapping[str, str]
    headers: Headers
    sandboxes: Sandboxes
    caller: Caller = field(init=False)
    sandbox: ClientSandbox = field(init=False)
    lease: MemoryLease = field(init=False)
    metrics: Metrics = field(init=False)

    async def named(self) -> ClientSandbox:
        """Returns the sandbox that the path names; raises `Refusal`."""
        return await self.sandboxes.of(self.caller, self.params["sandboxID"])

    async def work(self, work: Callable[..., T], *args: Any) -> T:
        """Runs `work` on the sandbox's files, on a thread."""
        caller, main = self.sandbox.kept.caller, self.sandbox.main
        return await self.sandboxes.host.work(caller, work, main, *args)
