"""A recursive language model of DSPy whose code runs in a sandbox. Its answers are scripted."""

import dspy
from dspy.utils.dummies import DummyLM

from wasm_kernel.integrations.dspy import SandboxInterpreter

STEPS = [
    "import re; words = re.findall(r'\\w+', context); print(look_up(key='k'), len(words))",
    "words[99]",
    "print(dspy.Predict('word -> length')(word='pear').length)",
    "SUBMIT(answer=words[-1])",
]


def look_up(key: str) -> str:
    """Looks a key up."""
    return f"found {key}"


scripted = [{"reasoning": "", "code": code} for code in STEPS]
dspy.configure(lm=DummyLM([*scripted[:3], {"length": "four"}, scripted[3]]))
rlm = dspy.RLM(
    "context, question -> answer", tools=[look_up], interpreter_factory=SandboxInterpreter
)
found = rlm(context="one two three", question="Which word is the last one?")
for step in found.trajectory:
    print(step["output"].strip())
print("answer:", found.answer)
