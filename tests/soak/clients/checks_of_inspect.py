"""Inspect's checks of sandboxes, for those who provide one."""

from collections.abc import AsyncIterator

import pytest_asyncio
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from wasm_kernel.integrations.inspect_ai import WasmSandboxEnvironment as Wasm


@pytest_asyncio.fixture
async def sandbox_env() -> AsyncIterator[SandboxEnvironment]:
    """A sandbox of its own for each check."""
    await Wasm.task_init("checks", None)
    made = await Wasm.sample_init("checks", None, {})
    yield made["default"]
    await Wasm.sample_cleanup("checks", None, made, interrupted=False)
    await Wasm.task_cleanup("checks", None, cleanup=True)
