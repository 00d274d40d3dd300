"""Sandboxes, and their forks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.faces import AnySandbox, put_back
from tests.private import kept_sandbox
from wasm_kernel import Sandbox
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy

Opening = Callable[..., Sandbox]
Forking = Callable[..., Sandbox]


@pytest.fixture
def sandbox(module_sandbox: AnySandbox) -> AnySandbox:
    """The file's only sandbox, with its first variables and files.

    Execution counts go on, so a test that needs a session's first cells opens its own sandbox.
    """
    return put_back(module_sandbox)


@pytest.fixture
def opened(tmp_path: Path, ending: ExitStack) -> Opening:
    """Opens sandboxes, which are closed after the test."""

    def one(name: str = "app", resume: Resume = Resume.NEVER, **policy: Any) -> Sandbox:
        limits = ExecutionPolicy(**policy)
        sandbox = kept_sandbox(workspace=tmp_path / name, resume=resume, policy=limits)
        return ending.enter_context(closing(sandbox))

    return one


@pytest.fixture
def parent(opened: Opening) -> Sandbox:
    return opened()


@pytest.fixture
def forked(ending: ExitStack) -> Forking:
    """Forks a sandbox, and closes the fork after the test."""
    return lambda sandbox, **options: ending.enter_context(closing(sandbox.fork(**options)[0]))
