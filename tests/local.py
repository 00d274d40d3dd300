"""Sandboxes in the test's own process, which most tests use: they can be looked into.

They have the options of the public functions, and those that only this package uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wasm_kernel
from wasm_kernel.execution.create import create_local_sandbox, open_workspace
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.sandbox import LocalSandbox
from wasm_kernel.policy import ExecutionPolicy, RuntimeType

__all__ = ["LocalSandbox", "create_sandbox", "create_session_sandbox", "get_session_sandbox"]
OPTIONS = ("session_id", "hooks", "language", "broker", "quiet")


def create_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    workspace: Path | str = "workspace",
    policy: ExecutionPolicy | None = None,
    logger: Any = None,
    **options: Any,
) -> LocalSandbox:
    if not options.keys() & set(OPTIONS):
        return _local(
            wasm_kernel.create_sandbox(
                runtime, workspace, policy, logger, isolation="in-process", **options
            )
        )
    make_room(policy)
    limits = policy or ExecutionPolicy()
    folders = open_workspace(workspace, limits, options.pop("private_root", None))
    return create_local_sandbox(folders, runtime, policy, logger, **options)


def create_session_sandbox(*args: Any, **options: Any) -> tuple[str, LocalSandbox]:
    session_id, made = wasm_kernel.create_session_sandbox(*args, isolation="in-process", **options)
    return session_id, _local(made)


def get_session_sandbox(*args: Any, **options: Any) -> LocalSandbox:
    return _local(wasm_kernel.get_session_sandbox(*args, isolation="in-process", **options))


def _local(sandbox: wasm_kernel.BaseSandbox) -> LocalSandbox:
    assert isinstance(sandbox, LocalSandbox)
    return sandbox
