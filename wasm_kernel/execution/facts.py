"""The facts that a cell may know about its own sandbox, for `%session_info`, `%policy` and `%fuel`.

The answers go into the guest, so they contain no path of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wasm_kernel.execution.interfaces import SessionFacts
from wasm_kernel.policy import POLICY_FIELDS, ExecutionPolicy, field_meanings

if TYPE_CHECKING:
    from wasm_kernel.execution.runner import GuestRunner


def offer_facts(runner: GuestRunner, own: Mapping[str, Any]) -> SessionFacts:
    """Adds the commands that return facts; returns the session's facts, to which others can add."""
    facts, add = SessionFacts(lambda: own, lambda: _memory(runner)), runner.commands.add
    add("session_info", lambda line, context: facts.all(), from_anywhere=True)
    add("fuel", lambda line, context: runner.fuel.facts(), from_anywhere=True)
    add("policy", lambda line, context: as_rows(runner.policy), from_anywhere=True)
    return facts


def _memory(runner: GuestRunner) -> dict[str, Any]:
    policy = runner.policy
    commits = runner.state.tree.commits.values()
    return {
        "memory_bytes": runner.memory_bytes,
        "memory_limit_bytes": policy.memory_bytes,
        "cell_timeout": policy.cell_timeout,
        "fuel_budget": policy.fuel_budget,
        "workspace_limit_bytes": policy.workspace_bytes,
        "workspace_limit_files": policy.workspace_files,
        "history_states": runner.history_states,
        "history_bytes": sum(commit.page_bytes for commit in commits),
        "history_is_saved": runner.state.saved,
        **({"network": ", ".join(map(str, policy.network))} if policy.network else {}),
    }


def as_rows(policy: ExecutionPolicy) -> list[dict[str, Any]]:
    """Returns the limits, each with its name, its value as JSON, and its meaning."""
    meanings = field_meanings()
    return [
        {"name": name, "value": _plain(getattr(policy, name)), "meaning": meanings.get(name, "")}
        for name in POLICY_FIELDS
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):  # mounts, or the network's rules
        return [str(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value
