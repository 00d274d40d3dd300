"""An agent of Microsoft's Agent Framework whose code runs in a sandbox. Its model is a script."""

import asyncio
import json

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
)

from wasm_kernel.integrations.agent_framework import SandboxCodeProvider

STEPS = [
    "import pandas as pd\nframe = pd.DataFrame({'n': [stock('tea'), stock(fruit='pear'), 3]})\nframe",
    "frame.n.sum()",
    "stock('plum')",
]


async def stock(fruit: str) -> int:
    """Returns how many pieces of a fruit there are."""
    return {"tea": 1, "pear": 2}[fruit]


class Script(FunctionInvocationLayer, BaseChatClient):
    """A model that says the next step each time, and prints what the one before has returned."""

    said = 0

    async def _inner_get_response(self, *, messages, stream, options, **kwargs):
        print(*(each.result for each in messages[-1].contents if each.type == "function_result"))
        self.said += 1
        if self.said > len(STEPS):
            return ChatResponse(messages=[Message("assistant", ["The sum is 6."])])
        call = Content.from_function_call(
            str(self.said), "execute_code", arguments=json.dumps({"code": STEPS[self.said - 1]})
        )
        return ChatResponse(messages=[Message("assistant", [call])])


async def main() -> None:
    """Runs the agent."""
    provider = SandboxCodeProvider(tools=[stock])
    agent = Agent(Script(), context_providers=[provider])
    print("answer:", (await agent.run("What is the sum?")).text)
    provider.close()


asyncio.run(main())
