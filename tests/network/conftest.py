"""The servers of the tests of the network, and a sandbox whose cells may reach them."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.servers import Server, serving, tls
from wasm_kernel import ExecutionPolicy, create_sandbox
from wasm_kernel.network import upstream
from wasm_kernel.network_rules import NetworkRule
from wasm_kernel.service.sandbox import Sandbox

_CLIENTS = ("requests", "urllib3", "httpx", "httpcore", "h11", "certifi", "idna", "anyio")


@pytest.fixture(scope="session")
def https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of HTTPS, whose CA is the one of this process's environment."""
    folder = tmp_path_factory.mktemp("tls")
    with serving(tls(folder)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(folder / "ca.pem"))
        upstream._tls_context.cache_clear()
        yield server
        upstream._tls_context.cache_clear()


@pytest.fixture(scope="session")
def http() -> Iterator[Server]:
    """A server of HTTP."""
    with serving() as server:
        yield server


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of HTTP that a test may stop."""
    with serving() as made:
        yield made


@pytest.fixture(scope="session")
def rule(http: Server, https: Server) -> NetworkRule:
    """A rule that allows both servers."""
    return NetworkRule(
        "localhost",
        schemes=("http", "https"),
        ports=(http.port, https.port),
        addresses=("127.0.0.0/8", "::1"),
    )


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with HTTP clients in pure Python, as %pip would bring them in."""
    folder = tmp_path_factory.mktemp("clients")
    for name in _CLIENTS:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(found.origin).parent, folder / name, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def sandbox(
    rule: NetworkRule,
    clients: Path,
    http: Server,
    https: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sandbox]:
    """A sandbox with these clients, whose cells know both servers as H and S."""
    policy = ExecutionPolicy(network=[rule])
    workspace = tmp_path_factory.mktemp("workspace")
    shutil.copytree(clients, workspace, dirs_exist_ok=True)
    with create_sandbox(workspace=workspace, policy=policy) as made:
        assert made.execute(f"H, S = {http.url!r}, {https.url!r}").success
        yield made
