"""An executor for smolagents: `CodeAgent(..., executor=SandboxExecutor())`."""

from __future__ import annotations

import base64
import inspect
import io
from collections.abc import Callable, Mapping
from typing import Any

from smolagents.agent_types import AgentType
from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor

from wasm_kernel import HostFunction, Sandbox, SandboxResult
from wasm_kernel.integrations.agent_sandbox import REQUIRED, AgentSandbox, signature_of
from wasm_kernel.integrations.results import value_of

_ANSWER = "final_answer"
_IMAGE = "_repr_png_"
_SEND_IMAGES = f"""
def final_answer(*args, _call={_ANSWER}, **kwargs):
    send = lambda value: {{{_IMAGE!r}: value._repr_png_()}} if hasattr(value, {_IMAGE!r}) else value
    return _call(*map(send, args), **{{name: send(value) for name, value in kwargs.items()}})
"""


class SandboxExecutor(PythonExecutor):
    """Runs the code of a `CodeAgent` in a sandbox. The agent's tools run in this process.

    Variables last from step to step. Every package of the sandbox can be imported, whatever the
    agent's `additional_authorized_imports` say. The agent's `cleanup` closes it.

    `sandbox` and `options` are those of `AgentSandbox`.
    """

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        self._agent = AgentSandbox(sandbox, options)
        self.state: dict[str, Any] = {}

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Lets cells call these tools, and managed agents. `final_answer` ends its cell."""
        self._agent.offer({name: self._tool(name, tool) for name, tool in tools.items()})
        if _ANSWER in tools:
            self._agent.run_own(_SEND_IMAGES)

    def _tool(self, name: str, tool: Any) -> HostFunction:
        inputs: Mapping[str, Mapping[str, Any]] | None = getattr(tool, "inputs", None)
        if inputs is None:
            like = inspect.signature(tool)
        else:
            nullable = {name: each.get("nullable") for name, each in inputs.items()}
            like = signature_of({name: None if nullable[name] else REQUIRED for name in inputs})
        doc = getattr(tool, "description", "")
        if name == _ANSWER:
            return self._agent.answer_tool(name, _received_by(tool), like, doc=doc)

        def call(*args: Any, **kwargs: Any) -> Any:
            value = tool(*args, **kwargs)
            return value.to_raw() if isinstance(value, AgentType) else value

        return self._agent.tool(name, call, like, doc=doc)

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Sets variables of cells from plain data; raises `TypeError` for any other value."""
        if variables:
            self._agent.set_variables(variables)

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs a step of the agent.

        Raises:
            InterpreterError: the code has failed; the text is for the agent.
        """
        result, answers = self._agent.run_for_answer(code_action)
        logs = result.stdout + result.stderr
        self.state["_print_outputs"] = logs
        if answers:
            return CodeOutput(output=answers[0], logs=logs, is_final_answer=True)
        if result.error is not None:
            raise InterpreterError(f"{result.error.ename}: {result.error.evalue}")
        image = _image_of(result)
        value = value_of(result) if image is None else image
        return CodeOutput(output=value, logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """Closes a sandbox of its own. Safe to call twice."""
        self._agent.close()


def _received_by(tool: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {key: _received(value) for key, value in kwargs.items()}
        return tool(*map(_received, args), **named)

    return call


def _received(value: Any) -> Any:
    """Returns an argument of a final answer; turns a PNG that code has sent into an image again."""
    if isinstance(value, dict) and isinstance(data := value.get(_IMAGE), bytes):
        return _open_image(data)
    return value


def _image_of(result: SandboxResult) -> Any:
    """Returns the value of a cell's last expression as an image; None for other values."""
    found: Mapping[str, Any] = next((o.data for o in result.outputs if o.kind == "result"), {})
    try:
        return _open_image(base64.b64decode(found.get("image/png", "")))
    except ValueError:  # a cell can show anything
        return None


def _open_image(data: bytes) -> Any:
    """Returns a PNG as an image; None for other formats, since Pillow runs programs for some of
    them.
    """
    if not data:
        return None
    from PIL import Image

    try:
        return Image.open(io.BytesIO(data), formats=["PNG"])
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
