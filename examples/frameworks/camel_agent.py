"""A CAMEL agent that runs the code of its messages in a sandbox. Its model is a script."""

from typing import Any

from camel.agents import EmbodiedAgent
from camel.messages import BaseMessage
from camel.models import StubModel
from camel.types import ChatCompletion, ChatCompletionMessage, Choice, ModelType

from wasm_kernel.integrations.camel import SandboxInterpreter

STEPS = [
    "import pandas as pd\nframe = pd.DataFrame({'n': [1, 2, 3]})\nprint('rows:', len(frame))",
    "frame.n.sum()",
    "open('/etc/passwd')",
]


class Script(StubModel):
    """A model that says the next step each time."""

    said = 0

    def _run(self, *args: Any, **kwargs: Any) -> ChatCompletion:
        code = STEPS[self.said]
        self.said += 1
        message = ChatCompletionMessage(role="assistant", content=f"```python\n{code}\n```")
        choice = Choice(finish_reason="stop", index=0, message=message)
        return ChatCompletion(
            id="script", model="script", choices=[choice], created=0, object="chat.completion"
        )


interpreter = SandboxInterpreter()
system = BaseMessage.make_assistant_message("analyst", "You write Python.")
agent = EmbodiedAgent(system, model=Script(ModelType.STUB), code_interpreter=interpreter)
for _ in STEPS:
    print(agent.step(BaseMessage.make_user_message("user", "Go on.")).msg.content)
interpreter.close()
