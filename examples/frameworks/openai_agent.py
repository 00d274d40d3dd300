"""An agent of OpenAI's SDK whose tool runs Python in a sandbox. Its model is a script."""

import asyncio
import json

from agents import Agent, RunConfig, Runner, ToolCallOutputItem, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from wasm_kernel.integrations.python_tool import PythonTool

STEPS = [
    "import pandas as pd\nframe = pd.DataFrame({'n': [1, 2, 3]})\nprint('rows:', len(frame))",
    "frame.n.sum()",
    "open('/etc/passwd')",
]


async def main() -> None:
    """Runs the agent, and prints the answers of its tool."""
    calls = [
        [function_call("arun_python", json.dumps({"code": code}), call_id=str(number))]
        for number, code in enumerate(STEPS)
    ]
    model = ScriptedModel([*calls, [assistant_message("The sum is 6.")]])
    with PythonTool() as python:
        agent = Agent("analyst", model=model, tools=[function_tool(python.arun_python)])
        ended = await Runner.run(
            agent, "What is the sum?", run_config=RunConfig(tracing_disabled=True)
        )
    for item in ended.new_items:
        if isinstance(item, ToolCallOutputItem):
            print(item.output)
    print("answer:", ended.final_output)


asyncio.run(main())
