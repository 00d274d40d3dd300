"""`SandboxFactory`: makes a sandbox, with its guest in a worker or in-process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.create import check, create_local_sandbox
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.interfaces import NewSession
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.program_home import OF_WORKER, ProgramHome, opened_in, own_workers
from wasm_kernel.service.sandbox import Sandbox

if TYPE_CHECKING:
    from wasm_kernel.service.host_function import Function, HostFunction

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
        *,
        functions: Iterable[Function | HostFunction],
    ) -> None:
        self.logger = check(runtime, policy, logger)
        self.policy = policy or ExecutionPolicy()
        self._runtime = runtime
        self._pip = pip
        self.functions = Functions(functions)
        if isolation not in get_args(Isolation):
            names = " or ".join(map(repr, get_args(Isolation)))
            raise ValueError(f"isolation is {names}, not {isolation!r}")
        self._is_local = isolation == "in-process"
        if self._is_local:
            make_room(self.policy)
        else:
            make_room(None, OF_WORKER)
            own_workers().fork_server.start()  # the process loads while the folders are opened

    def sandbox_in(self, new: NewSession, resume: Resume) -> Sandbox:
        """Returns a sandbox in the folders of `new`, which are open."""
        logger = self.logger
        if new.session_id:
            logger = logger.bind(session_id=new.session_id)
        if not self._is_local:
            opened = opened_in(
                new,
                self._runtime,
                self.policy,
                resume=resume,
                pip=self._pip,
                quiet=bool(new.session_id),
            )
            made = ProgramHome(new).sandbox(opened, self.policy, logger)
            made.take_functions(self.functions)
            return made
        sandbox: Any = create_local_sandbox(
            new.folders,
            self._runtime,
            self.policy,
            logger,
            session_id=new.session_id or None,
            resume=resume,
            hooks=new.hooks,
            quiet=bool(new.session_id),
            pip=self._pip,
        )
        sandbox.facts.add(lambda: {"confinement": _UNWALLED})
        local: Sandbox = sandbox
        return local
