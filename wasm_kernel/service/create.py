"""`create_sandbox`: a sandbox on a workspace folder, with its guest in a worker or in-process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.base_sandbox import BaseSandbox
from wasm_kernel.execution.create import check, create_local_sandbox, open_workspace
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.interfaces import NewSession, NoSession
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy, RuntimeType

Isolation = Literal["worker", "in-process"]
_UNWALLED = "none: the guest lives in its program's own process (isolation='in-process')"


def create_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    workspace: Path | str = "workspace",
    policy: ExecutionPolicy | None = None,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    resume: Resume | str = Resume.NEVER,
    pip: bool = False,
    isolation: Isolation = "worker",
) -> BaseSandbox:
    """Makes a sandbox on a workspace folder, and the folder if it is not there.

    Its guest lives in a process of its own, a worker, behind both walls. With `in-process` it lives
    in this process, behind WebAssembly alone: for debugging, and for code that is trusted as much
    as the program.

    Args:
        runtime: The guest's language, or its name.
        workspace: The host folder that the guest sees as `/app`.
        policy: The limits; the defaults fit a notebook.
        logger: Gets events; silent by default.
        private_root: The folder that holds private state, such as variables; one of the user's by
            default. It lies outside of every workspace.
        resume: Whether to go on with the variables that an earlier process left there, also as
            text: `never`, `crash` or `always`.
        pip: Whether cells may install pure-Python packages with `%pip`, as `offer_pip` says.
        isolation: Where the guest lives: `worker` or `in-process`.

    No cell is waited for yet: the guest starts with the first one, or with `start`.

    Raises:
        ValueError: there is no guest for `runtime`, or no such isolation.
        TypeError: `policy` is not a policy, or `logger` not a logger.
        PolicyError: a mount overlaps the workspace, another one, or a folder of the host's own.
        PlantedLinkError: `workspace` is a relative path that leads through a link.
        OverlapError: the workspace is, contains or lies in a folder that no cell may reach.
        PrivateFolderError: there is no place for private state.
        OutOfDescriptors: this process may not open more files. Its soft limit is raised as far as
            the hard one allows, before that happens.
        OSError: the workspace can't be made.
    """
    making = Making(runtime, policy, logger, pip, isolation)
    resume = Resume.checked(resume)
    folders = open_workspace(workspace, making.policy, private_root)
    return making.sandbox_in(NewSession(folders, None, NoSession(folders)), resume)


class Making:
    """The making of a sandbox, with the options that all ways to make one have.

    Raises:
        ValueError, TypeError: as `create_sandbox`.
        OutOfDescriptors: there is no room for another one.
    """

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
            own_workers().fork_server.start()  # it loads while the folders are opened

    def sandbox_in(self, new: NewSession, resume: Resume) -> BaseSandbox:
        """Returns a sandbox in folders that were opened for it."""
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
