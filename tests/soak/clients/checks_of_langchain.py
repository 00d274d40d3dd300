"""LangChain's standard tests of sandboxes, with Deep Agents' interface of one."""

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from wasm_kernel.integrations.deepagents import SandboxBackend


class TestSandbox(SandboxIntegrationTests):
    """LangChain's tests, all in one sandbox."""

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackend]:
        """A sandbox of its own."""
        with SandboxBackend() as backend:
            yield backend
