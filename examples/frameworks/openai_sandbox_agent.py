"""A sandbox agent of OpenAI's SDK, whose shell and files are in a sandbox. Its model is a script."""

import asyncio
import json

from agents import RunConfig, Runner, ToolCallOutputItem
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call

from wasm_kernel.integrations.openai_agents import WasmSandboxClient

COMMANDS = [
    "cut -d, -f2 sales.csv | sort -n | tail -1",
    "python3 -c \"import pandas; print(pandas.read_csv('sales.csv', header=None)[1].sum())\"",
    "cat /etc/passwd",
]


async def main() -> None:
    """Runs the agent, and prints what its commands have printed."""
    calls = [
        [function_call("exec_command", json.dumps({"cmd": command}), call_id=str(number))]
        for number, command in enumerate(COMMANDS)
    ]
    agent = SandboxAgent(
        "analyst",
        model=ScriptedModel([*calls, [assistant_message("The sum is 7.")]]),
        default_manifest=Manifest(entries={"sales.csv": File(content=b"tea,3\nice,4\n")}),
        capabilities=[Shell()],
    )
    config = RunConfig(tracing_disabled=True, sandbox=SandboxRunConfig(client=WasmSandboxClient()))
    ended = await Runner.run(agent, "What is the sum?", run_config=config)
    for item in ended.new_items:
        if isinstance(item, ToolCallOutputItem):
            print(item.output.rpartition("Output:\n")[2].strip())
    print("answer:", ended.final_output)


asyncio.run(main())
