"""The sandbox of an agent: variables that are set, and values that come back."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from wasm_kernel.integrations.agent_sandbox import AgentSandbox, value_of


@pytest.fixture(scope="module")
def agent(warm: None) -> Iterator[AgentSandbox]:
    """An agent's sandbox of its own."""
    found = AgentSandbox(None, {})
    yield found
    found.close()


def test_a_long_text_is_a_variable_as_a_whole(agent: AgentSandbox) -> None:
    text = "a\n" + "é" * 5_000_000 + "z"  # too long for one call
    agent.set_variables({"text": text, "empty": "", "numbers": [1, None]})
    code = "len(text), text[:3], text[-2:], set(text) == set('a\\néz'), empty, numbers"
    assert value_of(agent.run(code)) == (len(text), "a\né", "éz", True, "", [1, None])


def test_values_are_literals_or_their_text(agent: AgentSandbox) -> None:
    found = [value_of(agent.run(code)) for code in ("'a'", "{1: 2.5}", "object", "x = 1")]
    assert found == ["a", {1: 2.5}, "object", None]


def test_a_variable_that_is_no_plain_data_is_refused(agent: AgentSandbox) -> None:
    with pytest.raises(TypeError, match="no plain data"):
        agent.set_variables({"lock": object()})


def test_a_tool_can_not_wait_for_the_code_that_waits_for_it(agent: AgentSandbox) -> None:
    def nested() -> None:
        with pytest.raises(RuntimeError, match="can't run code in the sandbox"):
            agent.set_variables({"a": 1})
        agent.run("1")

    agent.offer({"nested": agent.tool("nested", nested, inspect.signature(nested))})
    result = agent.run("nested()")
    assert result.error is not None and "can't run code in the sandbox" in result.error.evalue
    assert value_of(agent.run("40 + 2")) == 42
