"""The names that tests of a course import: `test`, `inside` and `ProbeError`.

This runs in a clean guest, which never held a submission. `wasm-kernel grade` puts it there, with
the tests; the answers to their probes come as JSON.
"""

from __future__ import annotations

import ast
import doctest
import json
from collections.abc import Callable, Sequence
from typing import Any

Check = Callable[..., Any]
_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
_REGISTERED: dict[str, dict[str, Any]] = {}
_CHECKS: dict[str, Check] = {}


class ProbeError(Exception):
    """The answer to a probe that raised an error; tests get it as an argument.

    Attributes:
        name: The class of the error, as the submission says.
        text: Its text.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


def test(
    *, probes: Sequence[str], points: float = 1.0, hidden: bool = False
) -> Callable[[Check], Check]:
    """Registers a function that judges the answers to probes.

    It gets one argument for each probe: plain data, or a `ProbeError`. If it raises nothing, all
    points are earned; if it returns a number, so many of them.

    Args:
        probes: Cells that the submission runs; the value of each one's last expression is the
            answer. All of them run one after another in one copy of the submission.
        points: What it is worth.
        hidden: Whether students are not told more than whether it was passed.
    """

    def register(check: Check) -> Check:
        _register(check, "probes", points, hidden, probes=list(probes))
        return check

    return register


def inside(*, points: float = 1.0, hidden: bool = False) -> Callable[[Check], Check]:
    """Registers a function that runs beside the submission, which can fool it.

    Args:
        points: What it is worth if it raises nothing.
        hidden: Whether students are not told more than whether it was passed.
    """

    def register(check: Check) -> Check:
        _register(check, "inside", points, hidden)
        return check

    return register


def _register(check: Check, kind: str, points: float, hidden: bool, **more: Any) -> None:
    name = check.__name__
    if name in _REGISTERED:
        raise ValueError(f"two tests are named {name}")
    told = {"name": name, "kind": kind, "points": float(points), "hidden": bool(hidden), **more}
    _REGISTERED[name] = told
    _CHECKS[name] = check


def load(source: str, namespace: dict[str, Any]) -> None:
    """Runs a file of tests, and keeps the source of those that run inside."""
    tree = ast.parse(source)
    exec(compile(tree, "the tests", "exec"), namespace)  # noqa: S102 - in a guest
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in _REGISTERED:
            node.decorator_list = []
            _REGISTERED[node.name]["code"] = f"{ast.unparse(node)}\n{node.name}()"


def listing() -> str:
    """Returns all tests as JSON, in their order."""
    return json.dumps(list(_REGISTERED.values()))


def judge(name: str, answers: str) -> str:
    """Returns what a test makes of the answers to its probes, as JSON: points and a message."""
    points = _REGISTERED[name]["points"]
    given = [_answer(each) for each in json.loads(answers)]
    try:
        earned = _CHECKS[name](*given)
        is_number = isinstance(earned, int | float) and not isinstance(earned, bool)
        earned = min(max(0.0, float(earned)), points) if is_number else points  # nan is 0
    except Exception as problem:
        told = str(problem) if isinstance(problem, AssertionError) else repr(problem)
        failed = [str(each) for each in given if isinstance(each, ProbeError)]
        return json.dumps(
            {"earned": 0.0, "message": "; ".join([*([told] if told else []), *failed])}
        )
    return json.dumps({"earned": earned})


def judge_text(want: str, got: str) -> str:
    """Returns whether a doctest's output is what it is to be, as JSON."""
    return json.dumps(doctest.OutputChecker().check_output(want, got, _FLAGS))


def _answer(told: dict[str, Any]) -> Any:
    if told["ok"]:
        return json.loads(told["value"])
    return ProbeError(told["name"], told["text"])
