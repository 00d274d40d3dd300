"""Sandboxes, and their forks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

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
def opened(warm: None, tmp_path: Path) -> Iterator[Opening]:
    """Opens sandboxes, which are closed after the test."""
    made: list[Sandbox] = []

    def one(name: str = "app", resume: Resume = Resume.NEVER, **policy: object) -> Sandbox:
        limits = ExecutionPolicy(**policy)  # type: ignore[arg-type]
        made.append(kept_sandbox(workspace=tmp_path / name, resume=resume, policy=limits))
        return made[-1]

    yield one
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def parent(opened: Opening) -> Sandbox:
    return opened()


@pytest.fixture
def forked() -> Iterator[Forking]:
    """Forks a sandbox, and closes the forks after the test."""
    made: list[Sandbox] = []

    def one(sandbox: Sandbox, **options: bool) -> Sandbox:
        made.extend(sandbox.fork(**options))
        return made[-1]

    yield one
    for sandbox in made:
        sandbox.close()
