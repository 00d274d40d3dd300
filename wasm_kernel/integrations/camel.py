"""An interpreter for CAMEL: `EmbodiedAgent(..., code_interpreter=SandboxInterpreter())`."""

from __future__ import annotations

import inspect
from typing import Any

from camel.interpreters import BaseInterpreter, InterpreterError

from wasm_kernel import HostFunction, Sandbox
from wasm_kernel.integrations.agent_sandbox import AgentSandbox, SandboxOwner
from wasm_kernel.integrations.results import error_text, shown_text

_TYPES = ["python", "py", "py3", "python3"]


class SandboxInterpreter(SandboxOwner, BaseInterpreter):
    """Runs code in a sandbox, where variables last from run to run. Close it.

    `sandbox` and `options` are those of `AgentSandbox`.
    """

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        self._agent = AgentSandbox(sandbox, options)
        self._functions: dict[str, HostFunction] = {}

    def run(self, code: str, code_type: str) -> str:
        """Runs code; returns its output, the value of its last expression, and its error.

        Raises `InterpreterError` if it is not Python.
        """
        if code_type.lower() not in _TYPES:
            raise InterpreterError(f"only python runs here, not {code_type}")
        result = self._agent.run(str(code))  # a `CodePrompt`
        return "\n".join(text for text in (shown_text(result), error_text(result)) if text)

    def supported_code_types(self) -> list[str]:
        """Returns the names of Python."""
        return [*_TYPES]

    def update_action_space(self, action_space: dict[str, Any]) -> None:
        """Makes functions callable from code, and other values its variables.

        Functions run in this process; they get and return plain data, as variables have to be.
        Raises `TypeError` for other values.
        """
        tools = {name: each for name, each in action_space.items() if callable(each)}
        for name, call in tools.items():
            self._functions[name] = self._agent.tool(name, call, inspect.signature(call))
        if tools:
            self._agent.offer(self._functions)
        values = {name: each for name, each in action_space.items() if name not in tools}
        if values:
            self._agent.set_variables(values)

    def execute_command(self, command: str) -> str:
        """Raises `InterpreterError`: no command of the machine runs here."""
        raise InterpreterError("commands do not run here; write Python")
