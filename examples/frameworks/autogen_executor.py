"""An AutoGen agent that runs the code blocks of messages in a sandbox. It needs no model."""

import asyncio

from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken

from wasm_kernel.integrations.autogen import SandboxExecutor

STEPS = [
    "import pandas as pd\nframe = pd.DataFrame({'n': [1, 2, 3]})\nprint('rows:', len(frame))",
    "frame.n.sum()",
    "open('/etc/passwd')",
]


async def main() -> None:
    """Sends the steps, one message each, and prints the answers."""
    async with SandboxExecutor() as executor:
        agent = CodeExecutorAgent("runner", code_executor=executor)
        for code in STEPS:
            asked = TextMessage(content=f"```python\n{code}\n```", source="user")
            answer = await agent.on_messages([asked], CancellationToken())
            print(answer.chat_message.to_text())


asyncio.run(main())
