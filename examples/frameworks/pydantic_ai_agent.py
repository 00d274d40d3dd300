"""A Pydantic AI agent whose tool runs Python in a sandbox. Its model is a script."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from wasm_kernel.integrations.python_tool import PythonTool

STEPS = [
    "import pandas as pd\nframe = pd.DataFrame({'n': [1, 2, 3]})\nprint('rows:', len(frame))",
    "frame.n.sum()",
    "open('/etc/passwd')",
]


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Returns the next step, and prints what the one before has returned."""
    answers = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    for part in answers:
        print(part.content)
    done = len(messages) // 2
    if done < len(STEPS):
        return ModelResponse([ToolCallPart("run_python", {"code": STEPS[done]})])
    return ModelResponse([TextPart("The sum is 6.")])


with PythonTool() as python:
    agent = Agent(FunctionModel(answer), tools=[python.run_python])
    print("answer:", agent.run_sync("What is the sum?").output)
