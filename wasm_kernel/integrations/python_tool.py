"""`PythonTool`: a tool for agents of frameworks that take functions as tools."""

from __future__ import annotations

from typing import Any

from wasm_kernel import Sandbox, SandboxResult
from wasm_kernel.integrations.agent_sandbox import AgentSandbox, SandboxOwner
from wasm_kernel.integrations.results import error_text, shown_text

_LEFT_OUT = "\n[... {count:,} characters are left out; print less, or write to a file ...]\n"
_FIGURE = "[a figure was shown, which this tool can't pass on; savefig keeps it as a file]"
_NOTHING = "[the code ran, and printed nothing]"


class PythonTool(SandboxOwner):
    """A sandbox with functions that run Python, for a framework to show to its model.

    Pass `run_python`, or in a framework of coroutines `arun_python`. Any thread may call them;
    cells run one at a time. Use it as a `with` block, or close it.

    `sandbox` and `options` are those of `AgentSandbox`.

    Args:
        characters: The most characters of an answer; the middle of a longer one is left out.
    """

    def __init__(
        self, sandbox: Sandbox | None = None, *, characters: int = 20_000, **options: Any
    ) -> None:
        self._agent = AgentSandbox(sandbox, options)
        self._characters = characters

    def run_python(self, code: str) -> str:
        """Runs Python code in a sandbox; returns its output and the value of its last line.

        Variables, imports and files stay for the next call. numpy, pandas, scipy, scikit-learn and
        matplotlib are there. There is no network.

        Args:
            code: The code to run.
        """
        return text_for_models(self._agent.run(code), self._characters)

    async def arun_python(self, code: str) -> str:
        """Runs Python code in a sandbox; returns its output and the value of its last line.

        Variables, imports and files stay for the next call. numpy, pandas, scipy, scikit-learn and
        matplotlib are there. There is no network.

        Args:
            code: The code to run.
        """
        return text_for_models(await self._agent.arun(code), self._characters)


def text_for_models(result: SandboxResult, characters: int) -> str:
    """Returns the text of a cell's result for a model, without the middle if it is long."""
    figures = [_FIGURE for each in result.outputs if "image/png" in each.data]
    parts = [shown_text(result), *figures[:1], error_text(result)]
    text = "\n".join(part for part in parts if part) or _NOTHING
    if len(text) <= characters:
        return text
    end = characters // 4
    begin = characters - end
    return text[:begin] + _LEFT_OUT.format(count=len(text) - begin - end) + text[-end:]
