"""An agent of smolagents whose code runs in an E2B sandbox, by its own executor."""

from collections.abc import Iterator

from smolagents import CodeAgent, Model, tool
from smolagents.models import ChatMessage

STEPS = (
    "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2]})\nprint(frame.a.sum(), n)",
    "1 / 0",
    "final_answer({'sum': int(frame.a.sum()), 'price': price('apple')})",
)


@tool
def price(name: str) -> int:
    """Returns a price.

    Args:
        name: The fruit's name.
    """
    return {"apple": 3}[name]


class Scripted(Model):
    """Writes the code of one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._left: Iterator[str] = iter(STEPS)

    def generate(self, messages: list[ChatMessage], **_: object) -> ChatMessage:
        return ChatMessage(role="assistant", content=f"<code>\n{next(self._left)}\n</code>")


agent = CodeAgent(tools=[price], model=Scripted(), executor_type="e2b", verbosity_level=-1)
with agent:
    print("answer:", agent.run("How many?", additional_args={"n": 5}))
    steps = [step for step in agent.memory.steps if getattr(step, "code_action", None)]
    print("3 5" in steps[0].observations, "ZeroDivisionError" in str(steps[1].error))
