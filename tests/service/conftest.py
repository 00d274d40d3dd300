"""A service for a file of tests, and sessions in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faces import PATIENCE, fall_asleep, says
from tests.service.offered import Sandboxes
from tests.service.traitors import Home, Making
from wasm_kernel import create_sandbox, get_session_sandbox
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service import calls, session_worker, worker_line
from wasm_kernel.service.fork_server import ForkServer, Worker
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.service import Service

Starting = Callable[..., Service]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests of a file."""
    policy = ExecutionPolicy(query_seconds=PATIENCE)
    with Service(tmp_path_factory.mktemp("service") / "sessions", policy=policy) as started:
        yield started


@pytest.fixture
def starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: ExitStack) -> Starting:
    """Starts services for one test that do their upkeep often; they are closed after the test."""
    monkeypatch.setattr("wasm_kernel.service.service._ROUND_SECONDS", 0.05)
    return lambda **options: ending.enter_context(Service(tmp_path / "sessions", **options))


@pytest.fixture
def one_fork_server(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services of tests share the fork server, which takes long to load."""

    class Shared(ForkServer):
        spawn = service.fork_server.spawn

        def start(self) -> None:
            """Does nothing, since the shared process already runs."""

    monkeypatch.setattr("wasm_kernel.service.service.ForkServer", Shared)


@pytest.fixture
def remote(service: Service) -> Iterator[Sandbox]:
    """A session for one test in the file's service."""
    with service.create() as sandbox:
        yield sandbox


def worker_of(sandbox: Sandbox) -> Worker:
    """The worker that a session is awake in."""
    worker = sandbox.worker.worker
    assert worker is not None
    return worker


def keep(sandbox: Sandbox, code: str) -> None:
    """Runs a cell whose effects are on disk afterwards; the session is awake."""
    says(sandbox, code)
    fall_asleep(sandbox)
    sandbox.start().result(PATIENCE)


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch, ending: ExitStack) -> Making:
    """Makes services with short time-outs."""
    monkeypatch.setattr(calls, "_LATE_SECONDS", 0.1)
    monkeypatch.setattr(session_worker, "START_SECONDS", 0.0)
    monkeypatch.setattr(worker_line, "SLOW_SECONDS", PATIENCE)
    monkeypatch.setattr(worker_line, "_CLOSE_SECONDS", 0.6)
    return lambda script, most=None: ending.enter_context(closing(Home(script, most)))


@pytest.fixture
def offering(tmp_path: Path, ending: ExitStack) -> Sandboxes:
    """Makes sandboxes whose cells may call functions."""
    numbers = count()

    def make(*functions: Any, **options: Any) -> Any:
        if "session_id" in options:
            made = get_session_sandbox(functions=functions, workspace_root=tmp_path, **options)
        else:
            folder = tmp_path / f"app{next(numbers)}"
            made = create_sandbox(functions=functions, workspace=folder, **options)
        return ending.enter_context(closing(made))

    return make
