"""Shared by the scenarios: a default workspace root for each test, and sandboxes in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel import BaseSandbox, create_session_sandbox, get_session_sandbox
from wasm_kernel.linux import trees

ID = "abc-123"
Getting = Callable[..., BaseSandbox]
Creating = Callable[..., tuple[str, BaseSandbox]]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The default workspace root, `workspace/` in the current folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "workspace"
    trees.remove_tree(tmp_path / "workspace")


@pytest.fixture
def get(ending: ExitStack) -> Getting:
    """`get_session_sandbox`, whose sandboxes are closed after the test."""

    def one(session_id: str = ID, **options: Any) -> BaseSandbox:
        return ending.enter_context(closing(get_session_sandbox(session_id, **options)))

    return one


@pytest.fixture
def create(ending: ExitStack) -> Creating:
    """`create_session_sandbox`, whose sandboxes are closed after the test."""

    def one(**options: Any) -> tuple[str, BaseSandbox]:
        session_id, sandbox = create_session_sandbox(**options)
        return session_id, ending.enter_context(closing(sandbox))

    return one
