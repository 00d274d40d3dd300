"""A code interpreter for DSPy: `RLM(..., interpreter_factory=SandboxInterpreter)`, or
`dspy.configure(interpreter_factory=SandboxInterpreter)`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput

from wasm_kernel import HostFunction, Sandbox, WasmKernelError
from wasm_kernel.integrations.agent_sandbox import REQUIRED, AgentSandbox, signature_of
from wasm_kernel.integrations.results import value_of

_SUBMIT = "SUBMIT"
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError", "_IncompleteInputError")


class SandboxInterpreter:
    """A `CodeInterpreter`: runs code in a sandbox; tools run in this process.

    `sandbox` and `options` are those of `AgentSandbox`.

    Args:
        tools: The functions that code may call, by name. The dict may be changed later.
        output_fields: The fields of the final output, each with a `name`.
    """

    execution_instructions = (
        "Code runs in a sandboxed CPython with numpy, pandas, scipy, scikit-learn and matplotlib, "
        "without a network, processes or threads. Variables and imports persist. Tools and SUBMIT "
        "are global functions."
    )

    def __init__(
        self,
        tools: dict[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        *,
        sandbox: Sandbox | None = None,
        **options: Any,
    ) -> None:
        self.tools = dict(tools or {})
        self.output_fields = output_fields
        self._given = sandbox
        self._options = options
        self._agent: AgentSandbox | None = None
        self._offered: object = None
        self._lock = threading.Lock()
        self._is_shut = False

    def start(self) -> None:
        """Makes the sandbox, if there is none yet.

        Raises:
            CodeInterpreterError: it was shut down, or can't be started.
        """
        with self._lock:
            if self._is_shut:
                raise CodeInterpreterError("this interpreter was shut down; make another one")
            try:
                self._agent = self._agent or AgentSandbox(self._given, self._options)
            except WasmKernelError as problem:
                raise CodeInterpreterError(str(problem)) from problem

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Runs code.

        Args:
            code: The code.
            variables: Variables to set before, from plain data.

        Returns:
            A `FinalOutput` if the code has called `SUBMIT`; otherwise its standard output, or its
            last expression's value, as text if it is not a literal, or None.

        Raises:
            CodeExecutionError: the code has failed.
            SyntaxError: it is not Python.
            CodeInterpreterError: the sandbox can't be used.
        """
        self.start()
        assert self._agent is not None
        try:
            self._offer(self._agent)
            if variables:
                self._agent.set_variables(variables)
            result, answers = self._agent.run_for_answer(code)
        except (WasmKernelError, TypeError, ValueError, RuntimeError) as problem:
            raise CodeInterpreterError(str(problem)) from problem
        if answers:
            return FinalOutput(answers[0])
        if (error := result.error) is not None:
            if error.ename in _SYNTAX_ERRORS:
                raise SyntaxError(error.evalue)
            raise CodeExecutionError(f"{error.ename}: {error.evalue}")
        return result.stdout or value_of(result)

    def _offer(self, agent: AgentSandbox) -> None:
        now = (dict(self.tools), self.output_fields)
        if now == self._offered:
            return
        functions = {
            name: agent.tool(name, tool, inspect.signature(tool)) for name, tool in now[0].items()
        }
        agent.offer({**functions, _SUBMIT: self._submit(agent)})
        self._offered = now

    def _submit(self, agent: AgentSandbox) -> HostFunction:
        fields = self.output_fields or [{"name": "output"}]
        like = signature_of({each["name"]: REQUIRED for each in fields})
        return agent.answer_tool(_SUBMIT, dict, like, doc="Gives the final output; ends the code.")

    def shutdown(self) -> None:
        """Closes the sandbox. Safe to call twice."""
        with self._lock:
            self._is_shut = True
            if self._agent is not None:
                self._agent.close()

    def __enter__(self) -> SandboxInterpreter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
