"""The interfaces of agent frameworks, with the frameworks' newest packages and scripted models.

`make frameworks` runs them one after another, and writes the table of versions on the page.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from datetime import UTC, datetime
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

HOSTILE = "str\n" * 6 + "[{'a': 1}]\n" + "None\n" * 3

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


TOOL = """\
rows: 3
np.int64(6)
FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'
answer: The sum is 6.
"""

CAMEL = "Executing code block 0: {{\n{}}}\n\n".format(
    "FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'"
)


DEEP_AGENT = """\
write_file: Updated file /app/sales.csv
execute: 5

[Command succeeded with exit code 0]
execute: 12

[Command succeeded with exit code 0]
edit_file: Successfully replaced 1 instance(s) of the string in '/app/sales.csv'
grep: /app/sales.csv
glob: ['/app/sales.csv']
ls: ['/app/sales.csv', '/app/sum']
read_file: @@ lines 1-3 of 3 @@
tea,3
coffee,4
tea,5
Tea sold best.
"""

AG2 = """\
written
3
Traceback (most recent call last):
  File "<string>", line 1, in <module>
FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'
[exit code: 1]
answer: The largest is 3.
"""

AGENT_FRAMEWORK = """\
   n
0  1
1  2
2  3
np.int64(6)
KeyError: 'plum'
answer: The sum is 6.
"""

OPENAI_SANDBOX = """\
4
7
cat: /etc/passwd: No such file or directory
answer: The sum is 7.
"""

INSPECT = """\
bash: 5
python: 12
python: FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'
bash: sales.csv
success 1.0
"""


TABLE = "FRAMEWORKS_TABLE"
"""The variable with the page that gets the table; by default none does."""
HEAD = """\
# Frameworks, as tried

`make frameworks` ran these examples with the newest packages on {day}, each in an environment of
its own, on Python {python}.

| package | version | example | result |
|---|---|---|---|
"""
VERSION = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"


@pytest.fixture(scope="module")
def tried() -> Iterator[list[str]]:
    """The rows of the table."""
    rows: list[str] = []
    yield rows
    if page := os.environ.get(TABLE):
        head = HEAD.format(day=datetime.now(UTC).date(), python=platform.python_version())
        Path(page).write_text(f"{head}{''.join(sorted(rows))}", encoding="utf-8")


@pytest.mark.parametrize(
    ("framework", "script", "printed"),
    [
        ("smolagents", "examples/frameworks/smolagents_agent.py", SMOLAGENTS),
        ("smolagents", "tests/soak/clients/hostile_agent.py", HOSTILE),
        ("dspy", "examples/frameworks/dspy_rlm.py", DSPY),
        ("autogen-agentchat", "examples/frameworks/autogen_executor.py", AUTOGEN),
        ("ag2", "examples/frameworks/ag2_agent.py", AG2),
        (
            "agent-framework-core",
            "examples/frameworks/agent_framework_agent.py",
            AGENT_FRAMEWORK,
        ),
        ("google-adk", "examples/frameworks/google_adk_agent.py", GOOGLE_ADK),
        ("deepagents", "examples/frameworks/deep_agent.py", DEEP_AGENT),
        ("inspect-ai", "examples/frameworks/inspect_eval.py", INSPECT),
        ("pydantic-ai-slim", "examples/frameworks/pydantic_ai_agent.py", TOOL),
        ("openai-agents", "examples/frameworks/openai_agent.py", TOOL),
        (
            "openai-agents",
            "examples/frameworks/openai_sandbox_agent.py",
            OPENAI_SANDBOX,
        ),
        ("llama-index-core", "examples/frameworks/llama_index_agent.py", TOOL),
        ("crewai", "examples/frameworks/crewai_agent.py", TOOL),
        # CAMEL imports names that version 2 of `mcp` does not have
        ("camel-ai mcp<2", "examples/frameworks/camel_agent.py", CAMEL),
    ],
)
def test_a_framework_runs_its_agents_code_in_a_sandbox(
    warm: None, tmp_path: Path, tried: list[str], framework: str, script: str, printed: str
) -> None:
    result, version = "failed", "not installed"
    try:
        python = installed(tmp_path / "venv", framework)
        named = [str(python), "-c", VERSION, framework.split(maxsplit=1)[0]]
        version = subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()
        run(python, script, printed, tmp_path)
        result = "ran"
    finally:
        tried.append(f"| {framework} | {version} | `{script}` | {result} |\n")


def installed(venv: Path, framework: str) -> Path:
    """Installs a framework into an environment of its own; returns its Python."""
    python = venv / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *framework.split()]
    subprocess.run(install, check=True)
    # at the end of the path, so that the framework finds the versions that it asks for
    (folder,) = (venv / "lib").glob("python*/site-packages")
    (folder / "ours.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    return python


def run(python: Path, script: str, printed: str, folder: Path) -> None:
    ended = subprocess.run(
        [str(python), str(ROOT / script)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(printed), ended.stdout


@pytest.mark.parametrize(
    ("packages", "checks", "passed"),
    [
        ("deepagents langchain-tests", "checks_of_langchain.py", 79),
        ("inspect-ai", "checks_of_inspect.py", 36),
    ],
)
def test_checks_of_frameworks_pass_as_the_page_says(
    warm: None, tmp_path: Path, packages: str, checks: str, passed: int
) -> None:
    python = installed(tmp_path / "venv", f"{packages} pytest pytest-asyncio")
    shutil.copy(ROOT / "tests" / "soak" / "clients" / checks, tmp_path)  # away from our settings
    ended = subprocess.run(
        [str(python), "-m", "pytest", "-q", "--asyncio-mode=auto", checks],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f" {passed} passed" in ended.stdout, ended.stdout
