"""`create_sandbox`: a sandbox on a workspace folder."""

# The package loads the types of the annotations when a program asks for them, and `create_sandbox`
# imports the rest once the fork server's process is starting.
from __future__ import annotations

import os
from _collections_abc import Callable, Iterable

import wasm_kernel


def create_sandbox(
    runtime: wasm_kernel.RuntimeType | str = "python",
    workspace: os.PathLike[str] | str = "workspace",
    policy: wasm_kernel.ExecutionPolicy | None = None,
    logger: wasm_kernel.SandboxLogger | None = None,
    *,
    private_root: os.PathLike[str] | str | None = None,
    pip: bool = False,
    functions: Iterable[Callable[..., object] | wasm_kernel.HostFunction] = (),
) -> wasm_kernel.Sandbox:
    """Makes a sandbox on a workspace folder, and the folder if it is not there.

    Its guest lives in a process of its own, a worker, behind both walls. The files stay when the
    sandbox is closed; its variables, checkpoints and packages end with it. A session keeps them:
    see `get_session_sandbox`.

    Args:
        runtime: The guest's language, or its name.
        workspace: The host folder that the guest sees as `/app`; `~` is the user's home.
        policy: The limits; the defaults fit a notebook.
        logger: Gets events; silent by default.
        private_root: The folder that holds private state, such as variables; one of the user's by
            default. It lies outside of every workspace.
        pip: Whether cells may install pure-Python packages with `%pip`; `Sandbox.offer_pip` says
            how.
        functions: Functions of the program that cells may call, as `Sandbox.offer_functions` says.

    The guest starts with the first cell, or with `start`.

    Raises:
        ValueError: there is no guest for `runtime`, or `workspace` is an empty text.
        TypeError: `policy` is not a policy, or `logger` not a logger.
        PolicyError: a mount overlaps the workspace, another one, or a folder of the host's own; or
            `network_mode` records or replays, which needs a session.
        PlantedLinkError: `workspace` is a relative path that leads through a link.
        OverlapError: the workspace is, contains or lies in a folder that no cell may reach.
        PrivateFolderError: there is no place for private state.
        OutOfDescriptors: this process may not open more files, even with its soft limit raised to
            the hard one.
        WorkspaceError: the workspace can't be made or opened.
    """
    from wasm_kernel.service import fork_process

    fork_process.start_early()
    from wasm_kernel.policy import ExecutionPolicy
    from wasm_kernel.service.functions import Functions
    from wasm_kernel.service.program_home import create_in, get_ready
    from wasm_kernel.service.workspace import open_workspace

    bound, limits = get_ready(runtime, policy, logger, pip=pip), policy or ExecutionPolicy()
    checked = Functions(functions)
    private = None if private_root is None else os.fspath(private_root)
    opened = open_workspace(os.fspath(workspace), limits, private)
    return create_in(opened, runtime, limits, bound, pip=pip, functions=checked)
