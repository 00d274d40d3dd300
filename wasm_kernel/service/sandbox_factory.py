"""`SandboxFactory`: makes a sandbox, with its guest in a worker or in-process."""

from __future__ import annotations

from typing import Literal, get_args

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.base_sandbox import BaseSandbox
from wasm_kernel.execution.create import check, create_local_sandbox
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.interfaces import NewSession
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy, RuntimeType

Isolation = Literal["worker", "in-process"]
_UNWALLED = "none: the guest lives in its program's own process (isolation='in-process')"


class SandboxFactory:
    """Makes a sandbox. It checks the options that all functions for this share."""

    def __init__(
        self,
        runtime: RuntimeType | str,
        policy: ExecutionPolicy | None,
        logger: SandboxLogger | None,
        pip: bool,
        isolation: Isolation,
    ) -> None:
        self.logger = check(runtime, policy, logger)
        self.policy = policy or ExecutionPolicy()
        self._runtime = runtime
        self._pip = pip
        if isolation not in get_args(Isolation):
            names = " or ".join(map(repr, get_args(Isolation)))
            raise ValueError(f"isolation is {names}, not {isolation!r}")
        self._is_local = isolation == "in-process"
        if self._is_local:
            make_room(self.policy)
        else:
            from wasm_kernel.service.own_sandbox import OF_WORKER, own_workers

            make_room(None, OF_WORKER)
            own_workers().fork_server.start()  # the process loads while the folders are opened

    def sandbox_in(self, new: NewSession, resume: Resume) -> BaseSandbox:
        """Returns a sandbox in the folders of `new`, which are open."""
        logger = self.logger
        if new.session_id is not None:
            logger = logger.bind(session_id=new.session_id)
        if not self._is_local:
            from wasm_kernel.service.own_sandbox import OwnSandbox

            return OwnSandbox.made(
                new, self._runtime, self.policy, logger, resume=resume, pip=self._pip
            )
        sandbox = create_local_sandbox(
            new.folders,
            self._runtime,
            self.policy,
            logger,
            session_id=new.session_id,
            resume=resume,
            hooks=new.hooks,
            quiet=new.session_id is not None,
            pip=self._pip,
        )
        sandbox.facts.add(lambda: {"confinement": _UNWALLED})
        return sandbox
