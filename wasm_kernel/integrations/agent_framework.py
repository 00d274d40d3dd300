"""Code for agents of Microsoft's Agent Framework, as a context provider.

`Agent(..., context_providers=[SandboxCodeProvider(tools=[...])])`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from agent_framework import ContextProvider, FunctionTool, tool

from wasm_kernel import HostFunction, Sandbox
from wasm_kernel.integrations.agent_sandbox import REQUIRED, AgentSandbox, signature_of
from wasm_kernel.integrations.python_tool import text_for_models

_ASKS = "always_require"
_INSTRUCTIONS = (
    "Use execute_code to run Python in a sandbox without a network. Variables, imports and files "
    "last from call to call; numpy, pandas, scipy, scikit-learn and matplotlib are there. Print "
    "what you want to see."
)
_TOOLS = " Code can call these functions, which return plain data: {tools}"


class SandboxCodeProvider(ContextProvider):
    """Gives an agent the tool `execute_code`, whose code can call other tools. Close it.

    All runs of the agent share the sandbox: give each user an agent of their own.

    `sandbox` and `options` are those of `AgentSandbox`.

    Args:
        tools: Tools for the code alone; the model does not call them by itself. If one needs an
            approval, each call of `execute_code` needs it.
        characters: The most characters of an answer; the middle of a longer one is left out.
    """

    def __init__(
        self,
        tools: Sequence[FunctionTool | Callable[..., Any]] = (),
        *,
        sandbox: Sandbox | None = None,
        characters: int = 20_000,
        **options: Any,
    ) -> None:
        super().__init__("wasm_kernel")
        self._characters = characters
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()  # tools run in the context of the run whose code calls them
        found = [each if isinstance(each, FunctionTool) else tool(each) for each in tools]
        asks = any(each.approval_mode == _ASKS for each in found)
        self._tool = FunctionTool(
            name="execute_code",
            description="Runs Python code, and returns its output.",
            approval_mode=_ASKS if asks else "never_require",
            func=self.execute_code,
        )
        self._agent = AgentSandbox(sandbox, options)
        try:
            self._agent.offer({each.name: self._function(each) for each in found})
        except (TypeError, ValueError):  # a name that is not an identifier, or Python's own
            self._agent.close()
            raise
        shown = [f"{each.name}{_signature(each)} - {each.description}" for each in found]
        self._instructions = _INSTRUCTIONS + (
            _TOOLS.format(tools="; ".join(shown)) if shown else ""
        )

    def _function(self, tool: FunctionTool) -> HostFunction:
        def call(**arguments: Any) -> Any:
            assert self._loop is not None
            invoked = tool.invoke(arguments=arguments, skip_parsing=True)
            return asyncio.run_coroutine_threadsafe(invoked, self._loop).result()

        return self._agent.tool(tool.name, call, _signature(tool), doc=tool.description)

    async def execute_code(self, code: str) -> str:
        """Runs Python code, and returns its output.

        Args:
            code: The code to run.
        """
        async with self._turn:
            self._loop = asyncio.get_running_loop()
            return text_for_models(await self._agent.arun(code), self._characters)

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:
        """Adds the tool and its instructions to a run."""
        context.extend_instructions(self.source_id, self._instructions)
        context.extend_tools(self.source_id, [self._tool])

    def close(self) -> None:
        """Closes a sandbox of its own, and deletes its folder. Safe to call twice."""
        self._agent.close()


def _signature(tool: FunctionTool) -> inspect.Signature:
    """Returns the parameters that a model may give, each by its name."""
    schema = tool.parameters()
    required = schema.get("required", ())
    return signature_of(
        {
            name: REQUIRED if name in required else each.get("default")
            for name, each in schema.get("properties", {}).items()
        }
    )
