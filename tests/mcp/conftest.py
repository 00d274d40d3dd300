"""Servers for a file of tests, over each transport, and clients of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.mcp.clients import Agent, Agents, HttpServer, server_environment, serving


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Makes clients for the tests of a file."""
    with ExitStack() as ending:
        yield Agents(server_environment(tmp_path_factory.mktemp("mcp")), ending)


@pytest.fixture(scope="module")
def stdio(agents: Agents) -> Agent:
    """A client over stdio for the tests of a file."""
    return agents.stdio("--admin")


@pytest.fixture(scope="module")
def http(agents: Agents) -> Iterator[HttpServer]:
    """A server over HTTP for the tests of a file."""
    with serving(agents.environment) as server:
        yield server
