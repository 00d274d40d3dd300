"""Guest code can't make the host run a command that the cell's text does not contain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.attacks.conftest import Making, Shared, Victim
from tests.faces import PATIENCE
from tests.local import LocalSandbox, create_sandbox
from wasm_kernel.execution.commands import HostCommands
from wasm_kernel.guests.base import CommandContext, CommandLine
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.policy import ExecutionPolicy

MAGIC = """
from IPython.core.magic import no_var_expand, register_line_magic
from wasm_kernel_agent.host import run_host_command
@register_line_magic
@no_var_expand
def knock(line):
    return run_host_command(get_ipython(), "knock", line)
del knock  # it would hide the magic where that stands without its percent sign
"""


@pytest.fixture(scope="module")
def shared(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """The file's guests live in this process, which adds a command to them."""

    def make(policy: ExecutionPolicy) -> Any:
        return create_sandbox(workspace=tmp_path_factory.mktemp("victim"), policy=policy)

    made = Shared(make)
    yield made
    made.close()


def commands_of(victim: Victim) -> HostCommands:
    sandbox: object = victim.sandbox
    assert isinstance(sandbox, LocalSandbox)
    return sandbox.commands


@pytest.fixture
def done(victim: Victim) -> Iterator[list[str]]:
    """The lines for which the host ran the command `knock`."""
    lines: list[str] = []

    def knock(line: CommandLine, context: CommandContext) -> int:
        lines.append(line.line)
        context.say(f"knocked {line.line}\n")
        return len(lines)

    commands_of(victim).add("knock", knock)
    victim.says(MAGIC)
    yield lines
    commands_of(victim).add("knock", lambda line, context: None)


def test_a_command_in_the_cells_text_is_done_and_gives_its_value(
    victim: Victim, done: list[str]
) -> None:
    said = victim.says("print('before')\n%knock {a} $b\nx = %knock again\nprint(x)")
    assert said.splitlines() == ["before", "knocked {a} $b", "knocked again", "2"]
    assert done == ["{a} $b", "again"]


def test_a_command_below_time_and_without_its_percent_sign(victim: Victim, done: list[str]) -> None:
    victim.says("%%time\n%knock timed")
    victim.says("knock bare")
    victim.says("%%capture\n%knock captured")
    victim.says("%%limit seconds=9\n%knock limited")
    assert done == ["timed", "bare", "captured", "limited"]


SNEAKING = {
    "run_line_magic": "get_ipython().run_line_magic('knock', 'in')",
    "a function": "def f():\n    %knock in\nf()",
    "a block": "if True:\n    %knock in",
    "a loop on one line": "for i in 'ab': x = %knock in",
    "a string that is run": "get_ipython().run_cell('%knock in')",
    "exec": "text = '''\n%knock in\n'''\nget_ipython().run_cell(text)",
    "a file": "open('k.ipy', 'w').write('%knock in')\n%run k.ipy",
    "the helper": "from wasm_kernel_agent.host import run_host_command\n"
    "run_host_command(get_ipython(), 'knock', 'in')",
    "another line than stands there": "%knock out\n"
    "get_ipython().run_line_magic('knock', 'out --apply')",
    "once more than it stands there": "%knock out\nget_ipython().run_line_magic('knock', 'out')",
    "a loop around it": "%%timeit -n 2 -r 1\n%knock in",
    "a rewritten cell": "get_ipython().input_transformers_cleanup.append("
    "lambda lines: ['%knock in\\n'])\nget_ipython().run_cell('1')",
    "a user's alias": "%alias_magic knack knock\n%knack in",
}


@pytest.mark.parametrize("code", SNEAKING.values(), ids=SNEAKING)
def test_a_command_that_the_text_does_not_name_is_refused(victim_of: Making, code: str) -> None:
    lines: list[str] = []
    sneak = victim_of()
    commands_of(sneak).add("knock", lambda line, context: lines.append(line.line))
    sneak.says(MAGIC)
    result = sneak.run(code)
    assert set(lines) <= {"out"}
    assert len(lines) <= 1
    assert "at top level" in result.stderr or "done already" in result.stderr


FORGED = """
import _host, json
def forge(**frame):
    return json.loads(_host.call(json.dumps(frame | {"op": "command"}).encode()))
answers = [
    forge(name="knock", line="in"),
    forge(name="knock", line=["out"]),
    forge(name={}, line="out"),
    forge(name="knock"),
    forge(name="knock", line="x" * 20_000_000),
    forge(name="no such thing", line=""),
    forge(name="knock", line="in", cell="%knock in"),
    forge(name="knock\\n%knock", line="in"),
]
print(all("refused" in answer for answer in answers))
"""


def test_forged_frames_are_refused(victim: Victim, done: list[str]) -> None:
    assert victim.says(FORGED) == "True"
    assert not done


def test_a_command_after_a_forged_end_is_refused(victim: Victim, done: list[str]) -> None:
    victim.run(
        "import _host, json\n"
        "_host.call(json.dumps({'op': 'done', 'reply': {'status': 'ok'}}).encode())\n"
        "%knock in"
    )
    assert not done


def test_a_slow_command_is_interrupted_at_once(victim: Victim) -> None:
    def slow(line: CommandLine, context: CommandContext) -> None:
        while not context.wait(60):
            pass
        raise Cancelled

    commands_of(victim).add("knock", slow)
    victim.says(MAGIC)
    code = "print('begun')\nkept = 1\ntry:\n    pass\nfinally:\n    kept = 2\n%knock"
    result = victim.run(code, interrupt="begun")
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert victim.says("print(kept)") == "2"


def test_a_slow_command_ends_at_the_cells_deadline(victim: Victim) -> None:
    waited: list[bool] = []

    def slow(line: CommandLine, context: CommandContext) -> None:
        waited.append(context.wait(PATIENCE))
        raise Cancelled

    commands_of(victim).add("knock", slow)
    victim.says(MAGIC)
    assert victim.fails("%knock", timeout_seconds=0.3) == "CellTimeout"
    assert waited == [True]


def test_a_slow_command_burns_no_fuel(warm_metered: None, victim_of: Making) -> None:
    metered = victim_of(fuel_budget=10**9)
    metered.says(MAGIC)
    burnt = []
    for seconds in (0.0, 0.5):

        def slow(line: CommandLine, context: CommandContext, seconds: float = seconds) -> bool:
            return context.wait(seconds)

        commands_of(metered).add("knock", slow)
        burnt.append(metered.run("%knock").fuel_consumed or 0)
    assert burnt[1] < burnt[0] * 1.5


def test_f6_a_text_that_is_too_long_to_be_read_is_refused_in_words(
    victim: Victim, done: list[str]
) -> None:
    result = victim.run("%knock long\n#" + "x" * 300_000)
    assert "not done in a cell of more than 250,000 characters" in result.stderr
    assert "cell of its own" in result.stderr
    assert done == []
