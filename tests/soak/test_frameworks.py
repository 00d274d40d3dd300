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
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faces import completed

pytestmark = pytest.mark.soak
ROOT = Path(__file__).resolve().parents[2]

NO_FILE = "FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'"
"""The error of each agent that asks for a file of the host."""
TOOL = ("rows: 3", "np.int64(6)", NO_FILE, "answer: The sum is 6.")
HOSTILE = ("str\n" * 6 + "[{'a': 1}]\n" + "None\n" * 3,)
EXAMPLES = {
    "smolagents_agent": ("apples: 3", "{'n': 4}", "KeyError: 'plum'", "answer: {'all': 7}"),
    "dspy_rlm": ("found k 3", "[Error] IndexError: list index out of range", "answer: three"),
    "autogen_executor": ("rows: 3", "np.int64(6)", "(POSIX exit code: 1)", NO_FILE),
    "ag2_agent": ("written", NO_FILE, "[exit code: 1]", "answer: The largest is 3."),
    "agent_framework_agent": ("np.int64(6)", "KeyError: 'plum'", "answer: The sum is 6."),
    "google_adk_agent": ("`n.csv`", f"OUTCOME_FAILED {NO_FILE}", "artifacts: ['n.csv']"),
    "deep_agent": ("execute: 12", "ls: ['/app/sales.csv', '/app/sum']", "Tea sold best."),
    "inspect_eval": ("bash: 5", "python: 12", f"python: {NO_FILE}", "success 1.0"),
    "openai_sandbox_agent": ("cat: /etc/passwd: No such file or directory", "The sum is 7."),
    "camel_agent": (f"Executing code block 0: {{\n{NO_FILE}}}",),
    **dict.fromkeys(
        ("pydantic_ai_agent", "openai_agent", "llama_index_agent", "crewai_agent"), TOOL
    ),
}
"""Texts that the examples print, by their names."""

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
    ("framework", "script"),
    [
        ("smolagents", "smolagents_agent"),
        ("smolagents", "tests/soak/clients/hostile_agent.py"),
        ("dspy", "dspy_rlm"),
        ("autogen-agentchat", "autogen_executor"),
        ("ag2", "ag2_agent"),
        ("agent-framework-core", "agent_framework_agent"),
        ("google-adk", "google_adk_agent"),
        ("deepagents", "deep_agent"),
        ("inspect-ai", "inspect_eval"),
        ("pydantic-ai-slim", "pydantic_ai_agent"),
        ("openai-agents", "openai_agent"),
        ("openai-agents", "openai_sandbox_agent"),
        ("llama-index-core", "llama_index_agent"),
        ("crewai", "crewai_agent"),
        # CAMEL imports names that version 2 of `mcp` does not have
        ("camel-ai mcp<2", "camel_agent"),
    ],
)
def test_a_framework_runs_its_agents_code_in_a_sandbox(
    tmp_path: Path, tried: list[str], framework: str, script: str
) -> None:
    printed = EXAMPLES.get(script, HOSTILE)
    if script in EXAMPLES:
        script = f"examples/frameworks/{script}.py"
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


def run(python: Path, script: str, printed: Sequence[str], folder: Path) -> None:
    ended = completed(
        [str(python), str(ROOT / script)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=folder,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert all(part in ended.stdout for part in printed), ended.stdout


@pytest.mark.parametrize(
    ("packages", "checks", "passed"),
    [
        ("deepagents langchain-tests", "checks_of_langchain.py", 79),
        ("inspect-ai", "checks_of_inspect.py", 36),
    ],
)
def test_checks_of_frameworks_pass_as_the_page_says(
    tmp_path: Path, packages: str, checks: str, passed: int
) -> None:
    python = installed(tmp_path / "venv", f"{packages} pytest pytest-asyncio")
    shutil.copy(ROOT / "tests" / "soak" / "clients" / checks, tmp_path)  # away from our settings
    ended = completed(
        [str(python), "-m", "pytest", "-q", "--asyncio-mode=auto", checks],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
        timeout=None,
    )
    assert f" {passed} passed" in ended.stdout, ended.stdout
