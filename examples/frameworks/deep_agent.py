"""A deep agent of LangChain whose shell and files are those of a sandbox.

The model is scripted: it needs no key. `pip install deepagents`.
"""

from collections.abc import Iterator
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from wasm_kernel.integrations.deepagents import SandboxBackend

CALLS = [
    ("write_file", {"file_path": "/app/sales.csv", "content": "tea,3\nice,4\ntea,5\n"}),
    ("execute", {"command": "grep tea sales.csv | cut -d, -f2 | sort -r | head -1"}),
    ("execute", {"command": "python -c 'print(sum(map(int, \"3 4 5\".split())))' > sum; cat sum"}),
    ("edit_file", {"file_path": "/app/sales.csv", "old_string": "ice", "new_string": "coffee"}),
    ("grep", {"pattern": "coffee", "path": "/app"}),
    ("glob", {"pattern": "*.csv", "path": "/app"}),
    ("ls", {"path": "/app"}),
    ("read_file", {"file_path": "/app/sales.csv"}),
]


class ScriptedModel(GenericFakeChatModel):
    """A model that makes these calls, then answers."""

    def bind_tools(self, *_: Any, **__: Any) -> "ScriptedModel":
        """Returns itself."""
        return self


def messages() -> Iterator[AIMessage]:
    """Yields the model's messages."""
    for number, (name, args) in enumerate(CALLS):
        call = {"name": name, "args": args, "id": str(number), "type": "tool_call"}
        yield AIMessage("", tool_calls=[call])
    yield AIMessage("Tea sold best.")


with SandboxBackend() as backend:
    agent = create_deep_agent(model=ScriptedModel(messages=messages()), backend=backend)
    state = agent.invoke({"messages": [("user", "What sold best?")]})
for message in state["messages"]:
    if message.type == "tool":
        print(f"{message.name}: {message.text.strip()}")
print(state["messages"][-1].text)
