"""Shared by the scenarios: the default workspace root in a folder of each test, and the
application's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from tests import documented
from wasm_kernel import BaseSandbox, SandboxLogger, create_session_sandbox, get_session_sandbox
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
def get(warm: None, ending: ExitStack) -> Getting:
    """`get_session_sandbox`, whose sandboxes are closed after the test."""

    def one(session_id: str = ID, **options: Any) -> BaseSandbox:
        return ending.enter_context(get_session_sandbox(session_id, **options))

    return one


@pytest.fixture
def create(warm: None, ending: ExitStack) -> Creating:
    """`create_session_sandbox`, whose sandboxes are closed after the test."""

    def one(**options: Any) -> tuple[str, BaseSandbox]:
        session_id, sandbox = create_session_sandbox(**options)
        return session_id, ending.enter_context(sandbox)

    return one


class Heard:
    """A logger, and the events that it heard."""

    def __init__(self) -> None:
        self._capturing = CapturingLogger()
        self.logger = SandboxLogger(self._capturing)

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Each event's name and fields, in order; `level` is one of the fields."""
        return [
            (call.args[0], {**call.kwargs, "level": call.method_name})
            for call in self._capturing.calls
        ]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The fields of all events of this name."""
        return [fields for event, fields in self.events if event == name]

    def one(self, name: str) -> dict[str, Any]:
        """The fields of the event of this name; it must have been heard just once."""
        (fields,) = self.of(name)
        return fields


@pytest.fixture
def heard() -> Iterator[Heard]:
    """A log for sandboxes: tests pass `heard.logger` and ask `heard.one(event)`."""
    logger = Heard()
    yield logger
    documented.check(logger.events)
