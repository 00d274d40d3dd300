"""One sandbox of an agent for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wasm_kernel.integrations.agent_sandbox import AgentSandbox


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentSandbox]:
    """A sandbox of its own."""
    found = AgentSandbox(None, {})
    yield found
    found.close()
