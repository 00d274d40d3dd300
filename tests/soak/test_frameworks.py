"""The interfaces of agent frameworks, with the frameworks' real packages and scripted models."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak
ROOT = Path(__file__).resolve().parents[2]

VARIABLES = (
    "You have been provided with these additional arguments, that you can access directly using "
    "the keys as variables:"
)
SMOLAGENTS = f"""\
New task:
How many?
{VARIABLES}
{{'data': {{'n': 4}}}}.
Observation:
Execution logs:
apples: 3
Last output from code snippet:
6
KeyError: 'plum'
Call id: call_2
Error:
KeyError: 'plum'
answer: {{'all': 7}}
"""

HOSTILE = "str\n" * 6 + "[{'a': 1}]\n"

DSPY = """\
found k 3
[Error] IndexError: list index out of range
four
FINAL: {'answer': 'three'}
answer: three
"""

AUTOGEN = """\
rows: 3
np.int64(6)
The script ran, then exited with an error (POSIX exit code: 1)
Its output was:
FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'
"""

GOOGLE_ADK = """\
OUTCOME_OK Code execution result:
3 rows


Saved artifacts:
`n.csv`
OUTCOME_FAILED FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'
OUTCOME_OK Code execution result:
np.int64(6)

answer: The sum is 6.
artifacts: ['n.csv']
"""


@pytest.mark.parametrize(
    ("framework", "script", "printed"),
    [
        ("smolagents>=1.26,<2", "examples/frameworks/smolagents_agent.py", SMOLAGENTS),
        ("smolagents>=1.26,<2", "tests/soak/clients/hostile_agent.py", HOSTILE),
        ("dspy>=3.4,<4", "examples/frameworks/dspy_rlm.py", DSPY),
        ("autogen-agentchat>=0.7,<0.8", "examples/frameworks/autogen_executor.py", AUTOGEN),
        ("google-adk>=2.13,<3", "examples/frameworks/google_adk_agent.py", GOOGLE_ADK),
    ],
)
def test_a_framework_runs_its_agents_code_in_a_sandbox(
    warm: None, tmp_path: Path, framework: str, script: str, printed: str
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", framework], check=True)
    ours = sysconfig.get_path("purelib")
    ended = subprocess.run(
        [str(python), str(ROOT / script)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ours}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == printed
