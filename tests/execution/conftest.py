"""Sandboxes, and their forks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.faces import AnySandbox, put_back
from tests.private import opening
from wasm_kernel import Sandbox

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
    return opening(ending, tmp_path)


@pytest.fixture
def parent(opened: Opening) -> Sandbox:
    return opened()


@pytest.fixture
def forked(ending: ExitStack) -> Forking:
    """Forks a sandbox, and closes the fork after the test."""
    return lambda sandbox, **options: ending.enter_context(closing(sandbox.fork(**options)[0]))
