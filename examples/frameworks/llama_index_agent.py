"""LlamaIndex's `CodeActAgent`, whose code runs in a sandbox. Its model is a script."""

import asyncio
from typing import Any

from llama_index.core.agent.workflow import CodeActAgent, ToolCallResult
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata

from wasm_kernel.integrations.python_tool import PythonTool

STEPS = [
    "<execute>import pandas as pd\nframe = pd.DataFrame({'n': [1, 2, 3]})\n"
    "print('rows:', len(frame))</execute>",
    "<execute>frame.n.sum()</execute>",
    "<execute>open('/etc/passwd')</execute>",
    "The sum is 6.",
]


class Script(CustomLLM):
    """A model that says the next step each time."""

    said: int = 0

    @property
    def metadata(self) -> LLMMetadata:
        """The description of the model."""
        return LLMMetadata(model_name="script")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Says the next step."""
        self.said += 1
        return CompletionResponse(text=STEPS[self.said - 1])

    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """Says the next step in one piece."""
        said = self.complete(prompt)
        yield CompletionResponse(text=said.text, delta=said.text)


async def main() -> None:
    """Runs the agent, and prints what its code has returned."""
    with PythonTool() as python:
        agent = CodeActAgent(code_execute_fn=python.arun_python, llm=Script())
        running = agent.run("What is the sum?")
        async for event in running.stream_events():
            if isinstance(event, ToolCallResult):
                print(event.tool_output.content)
        print("answer:", await running)


asyncio.run(main())
