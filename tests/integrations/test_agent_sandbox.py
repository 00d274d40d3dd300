"""The sandbox of an agent: variables that are set, values that come back, commands and files."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from pathlib import Path

import pytest

from wasm_kernel.integrations.agent_sandbox import REQUIRED, AgentSandbox, signature_of
from wasm_kernel.integrations.guest_commands import (
    GuestCommands,
    TooLarge,
    on_thread,
)
from wasm_kernel.integrations.results import value_of


def test_long_texts_and_lists_are_variables_and_values_are_literals(agent: AgentSandbox) -> None:
    text = "a\n" + "é" * 5_000_000 + "z"  # too long for one call
    rows = [{"a": [None, "é" * 1000]}] * 9000  # too large, as well
    agent.set_variables({"text": text, "empty": "", "numbers": [1, None], "rows": rows})
    code = "len(text), text[:3], text[-2:], set(text) == set('a\\néz'), empty, numbers"
    assert value_of(agent.run(code)) == (len(text), "a\né", "éz", True, "", [1, None])
    assert value_of(agent.run("len(rows), rows[-1]")) == (len(rows), rows[-1])
    found = [value_of(agent.run(code)) for code in ("'a'", "{1: 2.5}", "object", "x = 1")]
    assert found == ["a", {1: 2.5}, "object", None]


def test_a_variable_that_can_not_be_passed_is_refused(agent: AgentSandbox) -> None:
    with pytest.raises(TypeError, match="not plain data"):
        agent.set_variables({"lock": object()})
    for name in ("class", "a b", ""):
        with pytest.raises(ValueError, match="a variable can't be named"):
            agent.set_variables({name: 1})


def test_a_tool_may_be_async(agent: AgentSandbox) -> None:
    async def double(n: int) -> int:
        return 2 * n

    agent.offer({"double": agent.tool("double", double, signature_of({"n": REQUIRED, "m": 1}))})
    assert value_of(agent.run("double(3)")) == 6
    assert agent.run("double(m=3)").error is not None


def test_a_tool_can_not_wait_for_the_code_that_waits_for_it(agent: AgentSandbox) -> None:
    def nested() -> None:
        with pytest.raises(RuntimeError, match="can't run code in the sandbox"):
            agent.set_variables({"a": 1})
        agent.run("1")

    agent.offer({"nested": agent.tool("nested", nested, inspect.signature(nested))})
    result = agent.run("nested()")
    assert result.error is not None and "can't run code in the sandbox" in result.error.evalue
    assert value_of(agent.run("40 + 2")) == 42


def test_a_cell_gives_one_answer_and_its_own(agent: AgentSandbox) -> None:
    like = inspect.Signature([inspect.Parameter("value", inspect.Parameter.KEYWORD_ONLY)])
    agent.offer({"answer": agent.answer_tool("answer", lambda value: value, like)})
    flood = "for n in range(9):\n    try: answer(value=n)\n    except RuntimeError: pass"
    result, answers = agent.run_for_answer(flood)
    assert (result.error, answers) == (None, [0])
    assert agent.run_for_answer("answer(value=1); 1 / 0")[1] == [1]
    assert agent.run_for_answer("2")[1] == []


def test_failed_sandboxes_leave_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(TypeError):
        AgentSandbox(None, {"policy": "none"})
    assert not [*tmp_path.iterdir()]


def test_nothing_is_left_beside_the_folder_of_a_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Formerly, an empty folder stayed in /tmp if the state folder was on another disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    agent = AgentSandbox(None, {})
    assert agent.run("1").success
    agent.close()
    assert not [*tmp_path.iterdir()]


POISON = """
import builtins, subprocess
builtins.exec = builtins.open = subprocess.run = lambda *a, **k: _wasm_kernel_take('status', b'0')
"""
MOVES_THE_NAME = """
import IPython, subprocess
IPython.get_ipython().run_line_magic("checkpoint", "before the first command")
class Forged: returncode, stdout, stderr = 0, b"no", b""
subprocess.run = lambda *a, **k: Forged
"""
FLOOD = """
for _ in range(9):
    try: _wasm_kernel_take('stdout', bytes(1000))
    except Exception: pass
"""


@pytest.fixture(scope="module")
def commands(agent: AgentSandbox) -> GuestCommands:
    """The commands of the sandbox."""
    return agent.commands()


def test_command_gets_input_and_environment_and_forges_no_status(commands: GuestCommands) -> None:
    script = 'sort; pwd; echo "$A"; echo no >&2; exit 3'
    given = b"b\na\n"
    ran = commands.run(["sh", "-c", script], stdin=given, folder="/tmp", environment={"A": "é"})
    assert (ran.returncode, ran.stderr) == (3, b"no\n")
    assert ran.stdout == "a\nb\n/tmp\né\n".encode()
    assert commands.run("echo 1 | wc -l").stdout == b"1\n"
    assert commands.run(["nothing"]).returncode == 127
    forged = "import subprocess; subprocess.run = None; _wasm_kernel_take('status', b'9' * 4000)"
    assert commands.run(["python", "-c", forged]).returncode == 1


def test_files_are_read_and_written(commands: GuestCommands) -> None:
    content = bytes(range(256)) * 20_000
    commands.write("/app/d/e", content)
    assert commands.read("/app/d/e") == content
    for path, error in {"/app/no": FileNotFoundError, "/app/d": IsADirectoryError}.items():
        with pytest.raises(error):
            commands.read(path)
    with pytest.raises(TooLarge):
        commands.read("/app/d/e", most_bytes=1000)


def test_a_command_changes_no_later_answer(commands: GuestCommands) -> None:
    commands.write("/app/true", b"yes")
    for script in (POISON, MOVES_THE_NAME):
        commands.run(["python", "-c", script])
        assert commands.run("cat true").stdout == commands.read("/app/true") == b"yes"


def test_output_and_time_are_limited(commands: GuestCommands) -> None:
    with pytest.raises(TooLarge) as found:
        commands.run(["python", "-c", FLOOD], most_bytes=2500)
    assert len(found.value.begin) == 2500
    with pytest.raises(TimeoutError):
        commands.run("sleep 60", seconds=0.2)
    assert commands.run("echo on").stdout == b"on\n"


async def test_dropped_command_ends_no_other(agent: AgentSandbox, commands: GuestCommands) -> None:
    waiting = "touch begun; until [ -e go ]; do sleep 0.05; done; echo on"
    first = asyncio.ensure_future(on_thread(commands.run, waiting))
    while not (agent.sandbox.workspace / "begun").exists():
        await asyncio.sleep(0.05)
    second = asyncio.ensure_future(on_thread(commands.run, "sleep 600"))
    await asyncio.sleep(0.2)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    (agent.sandbox.workspace / "go").touch()
    assert (await first).stdout == b"on\n"
    assert (await on_thread(commands.run, "echo next")).stdout == b"next\n"
