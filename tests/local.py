"""Sandboxes in the test's own process, for tests that look or reach inside them.

Other tests use the public functions, whose guests live in workers. These are made like those with
`isolation="in-process"`; `create_sandbox` also has the options that only this package uses.
"""

from __future__ import annotations

from pathlib import Path

import wasm_kernel
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.create import check, create_local_sandbox, open_workspace
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.interfaces import SessionHooks
from wasm_kernel.execution.sandbox import LocalSandbox
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage
from wasm_kernel.linux.broker import Broker
from wasm_kernel.policy import ExecutionPolicy, RuntimeType

__all__ = ["LocalSandbox", "create_sandbox", "create_session_sandbox", "get_session_sandbox"]


def create_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    workspace: Path | str = "workspace",
    policy: ExecutionPolicy | None = None,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    session_id: str | None = None,
    resume: Resume | str = Resume.NEVER,
    hooks: SessionHooks | None = None,
    language: GuestLanguage | None = None,
    broker: Broker | None = None,
    quiet: bool = False,
    pip: bool = False,
) -> LocalSandbox:
    check(runtime, policy, logger)
    make_room(policy)
    return create_local_sandbox(
        open_workspace(workspace, policy or ExecutionPolicy(), private_root),
        runtime,
        policy,
        logger,
        session_id=session_id,
        resume=resume,
        hooks=hooks,
        language=language,
        broker=broker,
        quiet=quiet,
        pip=pip,
    )


def create_session_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace_root: Path | str = "workspace",
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    pip: bool = False,
) -> tuple[str, LocalSandbox]:
    made: tuple[str, object] = wasm_kernel.create_session_sandbox(
        runtime,
        policy,
        workspace_root,
        logger,
        private_root=private_root,
        pip=pip,
        isolation="in-process",
    )
    session_id, sandbox = made
    assert isinstance(sandbox, LocalSandbox)
    return session_id, sandbox


def get_session_sandbox(
    session_id: str,
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace_root: Path | str = "workspace",
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    pip: bool = False,
) -> LocalSandbox:
    made: object = wasm_kernel.get_session_sandbox(
        session_id,
        runtime,
        policy,
        workspace_root,
        logger,
        private_root=private_root,
        pip=pip,
        isolation="in-process",
    )
    assert isinstance(made, LocalSandbox)
    return made
