"""A CrewAI agent whose tool runs Python in a sandbox. Its model is a script."""

import json
from typing import Any

from crewai import Agent, BaseLLM
from crewai.tools import tool

from wasm_kernel.integrations.python_tool import PythonTool

STEPS = [
    "import pandas as pd\nframe = pd.DataFrame({'n': [1, 2, 3]})\nprint('rows:', len(frame))",
    "frame.n.sum()",
    "open('/etc/passwd')",
]


seen: list[str] = []


class Script(BaseLLM):
    """A model that says the next step each time, and notes what it sees."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        """Says the next step."""
        seen.append(messages[-2]["content"].rpartition("Observation: ")[2])
        if len(seen) <= len(STEPS):
            code = json.dumps({"code": STEPS[len(seen) - 1]})
            return f"Thought: I run code.\nAction: run_python\nAction Input: {code}"
        return "Thought: I know it.\nFinal Answer: The sum is 6."


with PythonTool() as python:
    agent = Agent(
        role="analyst",
        goal="Answer.",
        backstory="You write Python.",
        llm=Script(model="script"),
        tools=[tool("run_python")(python.run_python)],
    )
    answer = agent.kickoff("What is the sum?").raw
print(*seen[1:], f"answer: {answer}", sep="\n")
