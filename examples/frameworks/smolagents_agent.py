"""A smolagents agent whose code runs in a sandbox. It needs no model: the answers are scripted."""

from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

from wasm_kernel.integrations.smolagents import SandboxExecutor

STEPS = [
    "n = stock('apple')\nprint('apples:', n)\nn * 2",
    "import pandas as pd\nprint(pd.DataFrame({'n': [n, data['n']]}).n.sum())\nstock(fruit='plum')",
    "final_answer({'all': n + data['n']})",
]


@tool
def stock(fruit: str) -> int:
    """Returns how many pieces of a fruit there are.

    Args:
        fruit: The fruit.
    """
    return {"apple": 3}[fruit]


class ScriptedModel(Model):
    """A model that gives its answers in order, and prints each message that it gets."""

    def generate(self, messages, **options):
        """Returns the next answer."""
        print(str(messages[-1].content[0]["text"]).strip().partition("\nNow let's")[0])
        code = STEPS.pop(0)
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{code}\n</code>")


with CodeAgent(
    tools=[stock], model=ScriptedModel(), executor=SandboxExecutor(), verbosity_level=0
) as agent:
    print("answer:", agent.run("How many?", additional_args={"data": {"n": 4}}))
