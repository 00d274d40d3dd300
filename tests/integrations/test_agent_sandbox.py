"""The sandbox of an agent: variables that are set, and values that come back."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path

import pytest

from wasm_kernel.integrations.agent_sandbox import REQUIRED, AgentSandbox, signature_of
from wasm_kernel.integrations.results import value_of


def test_long_texts_and_lists_are_variables(agent: AgentSandbox) -> None:
    text = "a\n" + "é" * 5_000_000 + "z"  # too long for one call
    rows = [{"a": [None, "é" * 1000]}] * 9000  # too large, as well
    agent.set_variables({"text": text, "empty": "", "numbers": [1, None], "rows": rows})
    code = "len(text), text[:3], text[-2:], set(text) == set('a\\néz'), empty, numbers"
    assert value_of(agent.run(code)) == (len(text), "a\né", "éz", True, "", [1, None])
    assert value_of(agent.run("len(rows), rows[-1]")) == (len(rows), rows[-1])


def test_values_are_literals_or_their_text(agent: AgentSandbox) -> None:
    found = [value_of(agent.run(code)) for code in ("'a'", "{1: 2.5}", "object", "x = 1")]
    assert found == ["a", {1: 2.5}, "object", None]


def test_a_variable_that_can_not_be_passed_is_refused(agent: AgentSandbox) -> None:
    with pytest.raises(TypeError, match="no plain data"):
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


def test_a_sandbox_that_can_not_be_made_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(TypeError):
        AgentSandbox(None, {"policy": "none"})
    assert not [*tmp_path.iterdir()]
