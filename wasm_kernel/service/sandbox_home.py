"""`SandboxHome`: the differences between the sandboxes of programs, of services and of kernels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from wasm_kernel.execution.interfaces import SessionHooks
from wasm_kernel.folders.private import OpenFolder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.session_calls import SessionNetwork
from wasm_kernel.service.session_worker import SessionWorker, WorkerHome

AnySandbox = TypeVar("AnySandbox")
"""`Sandbox`, whose file imports this one."""


class SandboxHome(WorkerHome, Generic[AnySandbox]):
    """The maker of a sandbox, which also makes its forks. Any thread may call it.

    `hooks` are those of the sandbox's session.
    """

    hooks = SessionHooks()

    @abstractmethod
    def fork(self, sandbox: AnySandbox, n: int, *, reseed: bool) -> Sequence[AnySandbox]:
        """Makes forks, as `Sandbox.fork` says."""

    def closed(self, sandbox: AnySandbox) -> None:
        """Notes that a sandbox was closed. Safe to call twice."""

    @abstractmethod
    def check_mounts(self, session: SessionWorker, policy: ExecutionPolicy) -> dict[str, Any]:
        """Checks the mounts of a sandbox's next policy; `PolicyError` if one can't be mounted.

        Returns the fields of `Open` by which its next worker finds the same folders.
        """

    def network(self, session: SessionWorker, policy: ExecutionPolicy) -> SessionNetwork | None:
        """Returns the network of a session; None if its policy has no rules, and records nothing.

        Raises `PolicyError` if the packages for it are not installed.
        """
        if not policy.uses_exchanges:
            return None
        from wasm_kernel.service.session_network import HostNetwork

        def cells() -> tuple[int, int]:
            return session.usage.figures.next_count, session.usage.first_count

        return HostNetwork(policy, lambda: session.logger, self.exchanges(session), cells)

    @abstractmethod
    def exchanges(self, session: SessionWorker) -> OpenFolder:
        """Returns the opener of the folder for the recorded requests of a session."""
