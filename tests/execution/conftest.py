"""Sandboxes, and their forks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faces import put_back
from wasm_kernel import BaseSandbox, create_sandbox
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy

Opening = Callable[..., BaseSandbox]


@pytest.fixture
def sandbox(module_sandbox: BaseSandbox) -> BaseSandbox:
    """The file's one sandbox with the variables and files that it began with.

    Execution counts go on upwards: what needs a session's first cells opens a sandbox of its own.
    """
    return put_back(module_sandbox)


@pytest.fixture
def opened(warm: None, tmp_path: Path) -> Iterator[Opening]:
    """Opens sandboxes; those and their forks are closed in the end."""
    made: list[BaseSandbox] = []

    def one(name: str = "app", resume: Resume = Resume.NEVER, **policy: object) -> BaseSandbox:
        limits = ExecutionPolicy(**policy)  # type: ignore[arg-type]
        made.append(create_sandbox(workspace=tmp_path / name, resume=resume, policy=limits))
        return made[-1]

    yield one
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def parent(opened: Opening) -> BaseSandbox:
    return opened()


@pytest.fixture
def forked() -> Iterator[Callable[..., BaseSandbox]]:
    """Forks a sandbox, and closes the forks in the end."""
    made: list[BaseSandbox] = []

    def one(sandbox: BaseSandbox, **options: bool) -> BaseSandbox:
        made.extend(sandbox.fork(**options))
        return made[-1]

    yield one
    for sandbox in made:
        sandbox.close()


Forking = Callable[..., BaseSandbox]
