"""The commands and files of a sandbox, as frameworks with a shell use them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faces import wait_for
from wasm_kernel.integrations.agent_sandbox import AgentSandbox
from wasm_kernel.integrations.guest_commands import (
    CompletedCommand,
    GuestCommands,
    TooLarge,
    droppable,
)

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


def test_a_command_gets_input_folder_and_environment(commands: GuestCommands) -> None:
    script = 'sort; pwd; echo "$A"; echo no >&2; exit 3'
    given = b"b\na\n"
    ran = commands.run(["sh", "-c", script], stdin=given, folder="/tmp", environment={"A": "é"})
    assert ran == CompletedCommand(3, "a\nb\n/tmp\né\n".encode(), b"no\n")
    assert commands.run("echo 1 | wc -l").stdout == b"1\n"
    assert commands.run(["nothing"]).status == 127


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


def test_a_forged_status_is_a_failure(commands: GuestCommands) -> None:
    forged = "import subprocess; subprocess.run = None; _wasm_kernel_take('status', b'9' * 4000)"
    assert commands.run(["python", "-c", forged]).status == 1


def test_a_dropped_command_ends_no_other(agent: AgentSandbox, commands: GuestCommands) -> None:
    waiting = "touch begun; until [ -e go ]; do sleep 0.05; done; echo on"
    first, _ = droppable(lambda: commands.run(waiting))
    second, drop = droppable(lambda: commands.run("sleep 60"))
    with ThreadPoolExecutor(2) as pool:
        on = pool.submit(first)
        wait_for((agent.sandbox.workspace / "begun").exists)
        dropped = pool.submit(second)
        drop()
        (agent.sandbox.workspace / "go").touch()
        assert on.result().stdout == b"on\n"
        assert dropped.result().status == 1
