"""An agent of Google's ADK whose code runs in a sandbox. It needs no model: answers are scripted."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from wasm_kernel.integrations.google_adk import SandboxCodeExecutor

STEPS = [
    "```python\nimport pandas as pd\nframe = pd.DataFrame({'n': [1, 2, 3]})\n"
    "frame.to_csv('n.csv')\nprint(len(frame), 'rows')\n```",
    "```python\nopen('/etc/passwd')\n```",
    "```python\nframe.n.sum()\n```",
    "The sum is 6.",
]


class ScriptedModel(BaseLlm):
    """A model that gives its answers in order."""

    async def generate_content_async(self, llm_request, stream=False):
        """Gives the next answer."""
        yield LlmResponse(
            content=types.Content(role="model", parts=[types.Part(text=STEPS.pop(0))])
        )


async def main() -> None:
    """Asks the agent, and prints the results of its code and its answer."""
    executor = SandboxCodeExecutor()
    agent = LlmAgent(name="analyst", model=ScriptedModel(model="scripted"), code_executor=executor)
    runner = InMemoryRunner(agent=agent, app_name="example")
    session = await runner.session_service.create_session(app_name="example", user_id="ann")
    question = types.Content(role="user", parts=[types.Part(text="Sum?")])
    async for event in runner.run_async(user_id="ann", session_id=session.id, new_message=question):
        for part in event.content.parts if event.content else ():
            if part.code_execution_result:
                print(part.code_execution_result.outcome.name, part.code_execution_result.output)
            elif part.text:
                print("answer:", part.text)
    names = await runner.artifact_service.list_artifact_keys(
        app_name="example", user_id="ann", session_id=session.id
    )
    print("artifacts:", names)
    executor.close()


asyncio.run(main())
