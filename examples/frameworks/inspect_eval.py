"""An evaluation with Inspect in which each sample has a sandbox. Its model is a script."""

import sys
import tempfile

from inspect_ai import Task, eval  # noqa: A004
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.tool import bash, python
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from wasm_kernel.integrations.inspect_ai import WasmSandboxConfig

CALLS = [
    ("bash", {"command": "cut -d, -f2 sales.csv | sort -n | tail -1"}),
    (
        "python",
        {"code": "import pandas as pd\nprint(pd.read_csv('sales.csv', header=None)[1].sum())"},
    ),
    ("python", {"code": "open('/etc/passwd')"}),
    ("bash", {"command": "echo 12 > answer; ls"}),
    ("submit", {"answer": "12"}),
]
SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 2


def answer(messages, tools, tool_choice, config):
    """Makes the next call of the script."""
    done = sum(isinstance(message, ChatMessageTool) for message in messages)
    name, arguments = CALLS[done]
    output = ModelOutput.for_tool_call("mockllm/model", name, arguments)
    output.usage = ModelUsage()  # without it Inspect fetches a tokenizer to count
    return output


@scorer(metrics=[accuracy()])
def answer_file():
    """Reads the answer from the sandbox of the sample."""

    async def score(state, target):
        found = await sandbox().read_file("answer")
        return Score(value="C" if found.strip() == target.text else "I", answer=found)

    return score


task = Task(
    dataset=[
        Sample(
            input="What is the sum?",
            target="12",
            id=number,
            files={"sales.csv": "tea,3\nice,4\n"},
            setup="echo tea,5 >> sales.csv",
        )
        for number in range(SAMPLES)
    ],
    solver=react(tools=[bash(timeout=60), python(timeout=60)]),
    scorer=answer_file(),
    sandbox=SandboxEnvironmentSpec("wasm", WasmSandboxConfig(prepare="import pandas")),
)
(log,) = eval(
    task,
    model=get_model("mockllm/model", custom_outputs=answer),
    log_dir=tempfile.mkdtemp(),
    display="none",
)
for message in log.samples[0].messages if log.samples else ():
    if isinstance(message, ChatMessageTool):
        print(f"{message.function}: {message.text.strip().splitlines()[-1]}")
accuracies = [each.metrics["accuracy"].value for each in log.results.scores] if log.results else []
print(log.status, *accuracies, *([log.error.message] if log.error else []))
