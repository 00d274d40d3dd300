"""An executor for AutoGen: `CodeExecutorAgent("coder", code_executor=SandboxExecutor())`."""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel

from wasm_kernel import Checkpoint, Sandbox
from wasm_kernel.integrations.agent_sandbox import AgentSandbox
from wasm_kernel.integrations.guest_commands import checkpoint_named
from wasm_kernel.integrations.results import error_text, shown_text

_LANGUAGES = ("python", "py", "")
_START = "as the executor started"


class SandboxExecutor(CodeExecutor):
    """Runs the code blocks of an agent in a sandbox, where variables last from block to block.

    Use it as an `async with` block, or call `start` and `stop`, as AutoGen's agents do.

    `sandbox` and `options` are those of `AgentSandbox`.
    """

    component_config_schema = BaseModel
    component_provider_override = "wasm_kernel.integrations.autogen.SandboxExecutor"

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        self._given, self._options = sandbox, options
        self._agent: AgentSandbox | None = None
        self._start: Checkpoint | None = None  # cells can move its name
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Opens the sandbox."""
        async with self._starting:
            if self._agent is None:
                self._agent = await asyncio.to_thread(AgentSandbox, self._given, self._options)
                sandbox = self._agent.sandbox
                await asyncio.to_thread(sandbox.checkpoint, _START)
                self._start = await asyncio.to_thread(checkpoint_named, sandbox, _START)

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Runs blocks of Python, one after another, up to the first that fails.

        Returns the text that they print, with the value of each last expression. A cancelled token
        interrupts the running block; its variables stay, and `asyncio.CancelledError` is raised.
        """
        await self.start()
        assert self._agent is not None
        texts: list[str] = []
        for block in code_blocks:
            if block.language.lower() not in _LANGUAGES:
                texts.append(f"Only blocks of python run here, not of {block.language}.")
                return CodeResult(exit_code=1, output="\n".join(texts))
            running = asyncio.ensure_future(self._agent.sandbox.aexecute(block.code))
            cancellation_token.link_future(running)
            result = await running
            texts += [text for text in (shown_text(result), error_text(result)) if text]
            if not result.success:
                return CodeResult(exit_code=result.exit_code or 1, output="\n".join(texts))
        return CodeResult(exit_code=0, output="\n".join(texts))

    async def restart(self) -> None:
        """Brings the variables back to the start; files stay."""
        if self._agent is not None and self._start is not None:
            await asyncio.to_thread(self._agent.sandbox.restore, self._start)

    async def stop(self) -> None:
        """Closes a sandbox of its own. Safe to call twice."""
        if self._agent is not None:
            agent, self._agent = self._agent, None
            await asyncio.to_thread(agent.close)
