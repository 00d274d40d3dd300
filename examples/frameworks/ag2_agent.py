"""An agent of AG2 whose code and commands run in a sandbox. Its model is a script."""

import asyncio
import json

from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig, TrackingConfig
from ag2.tools import SandboxCodeTool, SandboxShellTool

from wasm_kernel.integrations.ag2 import WasmEnvironment

FRAME = "import pandas as pd\npd.DataFrame({'n': [1, 2, 3]}).to_csv('n.csv')\nprint('written')"
CALLS = [
    ("run_code", {"language": "python", "code": FRAME}),
    ("run_shell_command", {"command": "tail -n +2 n.csv | cut -d, -f2 | sort -r | head -1"}),
    ("run_code", {"language": "python", "code": "open('/etc/passwd')"}),
]


async def main() -> None:
    """Runs the agent, and prints what its tools have returned."""
    script = [ToolCallEvent(name, arguments=json.dumps(values)) for name, values in CALLS]
    config = TrackingConfig(TestConfig(*script, "The largest is 3."))
    async with WasmEnvironment() as environment:
        tools = [SandboxCodeTool(environment), SandboxShellTool(environment)]
        answer = await Agent("analyst", config=config, tools=tools).ask("What is the largest?")
    for call in config.mock.call_args_list[1:]:
        print(*(each.result.parts[0].content for each in call.args[0].results))
    print("answer:", answer.body)


asyncio.run(main())
