"""The names that tests of a course import: `test`, `inside` and `ProbeError`.

This runs in a clean guest, which never held a submission. `wasm-kernel grade` puts it there, with
the tests; the answers to their probes come as JSON.

A check gives a verdict in one of two ways. It never returns a value, and raises an error if points
are not earned; or each of its returns gives True, False or a number of points. A check that does
neither gives no points to any submission.
"""

from __future__ import annotations

import ast
import copy
import doctest
import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Check = Callable[..., Any]

_ERROR = "ProbeError"
_ODD_ANSWERS: tuple[Any, ...] = (None, "no such answer", -987654.321, "", 0, [], {}, False, True)
"""Nonsensical answers; a check that judges refuses at least one of them."""
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_NO_VERDICTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.Lambda)
_VERDICTS = "a check returns nothing at all, or True, False or a number from 0 to its points"
_ALONE = "only its own text is run: no arguments, outer variables or further decorators"


class ProbeError(Exception):
    """The answer to a probe that raised an error.

    Attributes:
        name: The class of the error, as the submission reports it.
        text: Its text.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


class NoVerdict(Exception):
    """A check returned a value that is not a verdict."""


# -- the decorators of tests


def test(
    *, probes: Sequence[str], points: float = 1.0, hidden: bool = False
) -> Callable[[Check], Check]:
    """Registers a function that judges the answers to probes.

    It gets one argument for each probe: plain data. If it raises an error, it gives no points. If
    it returns True, or never returns a value, it gives all points; False gives none, and a number
    gives that number.

    The answer to a probe that raised an error is a `ProbeError`. A function that does not name that
    class can't give all points for such an answer: all points become none, fewer are kept.

    Args:
        probes: Cells that the submission runs; the value of each one's last expression is the
            answer. All of them run one after another in one copy of the submission.
        points: The points that it is worth.
        hidden: Whether students are only told whether it was passed.

    Raises:
        ValueError: The function can't judge the answers to these probes.
    """

    def register(check: Check) -> Check:
        made = _Registered(check, points)
        if isinstance(probes, str) or not probes:
            raise made.refused("its probes are not a list of texts, or there are none")
        try:
            inspect.signature(check).bind(*probes)
        except TypeError:
            raise made.refused("it must take one answer for each probe") from None
        made.add("probes", hidden, probes=list(probes))
        return check

    return register


def inside(*, points: float = 1.0, hidden: bool = False) -> Callable[[Check], Check]:
    """Registers a function that runs beside the submission, which can fool it.

    It takes no arguments. Its errors and return values count as for `test`.

    Args:
        points: The points that it is worth.
        hidden: Whether students are only told whether it was passed.

    Raises:
        ValueError: The function can't judge, or needs more than its own text.
    """

    def register(check: Check) -> Check:
        made = _Registered(check, points)
        made.add("inside", hidden, code=made.code())
        return check

    return register


class _Registered:
    """The check of a test, with its definition in the file that is being loaded.

    It `returns` verdicts if it returns anything. It `takes_errors` if it names `ProbeError`.
    """

    def __init__(self, check: Check, points: float) -> None:
        """Raises `ValueError` if the check gives no verdict, or not at each return."""
        self.name = str(getattr(check, "__name__", check))
        self.check, self.points = check, float(points)
        self.told: dict[str, Any] = {}
        if self.name in _REGISTERED:
            raise ValueError(f"two tests are named {self.name}")
        if not 0 <= self.points < math.inf:
            raise self.refused(f"no test is worth {points} points")
        self._definition = self._find()
        if not isinstance(self._definition, ast.FunctionDef) or inspect.isgeneratorfunction(check):
            raise self.refused("a call of it runs nothing, as it is async or has a yield")
        values = [*_returned(self._definition.body)]
        self.returns = not all(map(_is_nothing, values))
        if self.returns and (any(map(_is_nothing, values)) or not _ends(self._definition.body)):
            raise self.refused(f"it does not return a verdict in every place; {_VERDICTS}")
        if any(self._is_no_verdict(value) for value in values):
            raise self.refused(f"it returns something that is not a verdict; {_VERDICTS}")
        words = [vars(each) for each in ast.walk(self._definition)]
        self.takes_errors = any(_ERROR in (each.get("id"), each.get("attr")) for each in words)

    def refused(self, why: str) -> ValueError:
        """Returns the error that says why the check can't be a test."""
        return ValueError(f"{self.name} can't be a test: {why}")

    def add(self, kind: str, hidden: bool, **more: Any) -> None:
        """Adds the test to those of the course."""
        self.told = {"name": self.name, "kind": kind, "points": self.points, **more}
        self.told |= {"hidden": bool(hidden), "returns": self.returns}
        _REGISTERED[self.name] = self

    def _find(self) -> ast.AST:
        code = getattr(inspect.unwrap(self.check), "__code__", None)
        for node in ast.walk(_loading):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code is not None:
                first = min(each.lineno for each in (node, *node.decorator_list))
                if (node.name, first) == (self.name, code.co_firstlineno):
                    return node
        raise self.refused("it is not defined with def in this file")

    def _is_no_verdict(self, value: ast.expr | None) -> bool:
        match value:
            case ast.IfExp():
                return self._is_no_verdict(value.body) or self._is_no_verdict(value.orelse)
            case ast.Constant(value=None):
                return self.returns
            case ast.Constant(value=found):
                return not _is_within(found, self.points)
            case _:
                return isinstance(value, _NO_VERDICTS)

    def code(self) -> str:
        """Returns a cell that defines the function and calls it."""
        made = copy.copy(self._definition)
        assert isinstance(made, ast.FunctionDef)
        is_closure = bool(self.check.__code__.co_freevars)
        if is_closure or len(made.decorator_list) > 1 or inspect.signature(self.check).parameters:
            raise self.refused(_ALONE)
        made.decorator_list = []
        return f"{ast.unparse(made)}\n{self.name}()"


_REGISTERED: dict[str, _Registered] = {}
_loading = ast.parse("")  # the file of tests that is being loaded


def _returned(body: Sequence[ast.stmt]) -> Iterator[ast.expr | None]:
    """Yields the values of a function's return statements, without those of functions in it."""
    left: list[ast.AST] = [*body]
    while left:
        node = left.pop()
        if isinstance(node, ast.Return):
            yield node.value
        elif not isinstance(node, _INNER):
            left += ast.iter_child_nodes(node)


def _is_nothing(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _ends(body: Sequence[ast.stmt]) -> bool:
    """Returns whether the text of statements shows that they end with a return or an error."""
    match body[-1] if body else None:
        case ast.If() as last:
            ways = [last.body, last.orelse]
        case ast.With() as last:
            ways = [last.body]
        case ast.Try() as last:
            ways = [last.orelse or last.body, *(each.body for each in last.handlers)]
        case ast.Match() as last:
            ways = [each.body for each in last.cases]
        case last:  # a call may never return; the check's value is tested again when it runs
            is_error = isinstance(last, ast.Assert) and not getattr(last.test, "value", True)
            is_call = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)
            return is_error or is_call or isinstance(last, ast.Return | ast.Raise | ast.While)
    return all(map(_ends, ways))


# -- called by the host


def load(source: str) -> None:
    """Runs a file of tests in a namespace of its own: other files may use the same names."""
    global _loading  # noqa: PLW0603 - the only way for decorators to find their file
    _loading = ast.parse(source)
    exec(compile(_loading, "the tests", "exec"), {"__name__": "tests"})  # noqa: S102 - in a guest


def listing() -> str:
    """Returns all tests as JSON, in their order."""
    return json.dumps([each.told for each in _REGISTERED.values()])


def try_out(name: str) -> str:
    """Returns the reaction of a check to nonsensical answers, as JSON.

    It `refuses` some of them, if it judges. It `takes_nan` if it gives all points for NaN, which is
    neither near nor far from any number. Raises `NoVerdict` if it gives no verdict on an answer
    before it refuses one.
    """
    it = _REGISTERED[name]
    refuses = not it.points or any(_earned(it, each) < it.points for each in _ODD_ANSWERS)
    try:
        takes_nan = refuses and it.points > 0 and _earned(it, math.nan) >= it.points
    except NoVerdict:
        takes_nan = False
    return json.dumps({"refuses": refuses, "takes_nan": takes_nan})


def _earned(it: _Registered, answer: Any) -> float:
    return float(_judged(it, [answer for _ in it.told["probes"]])["earned"])


def judge(name: str, answers: str) -> str:
    """Returns a test's judgement of the answers to its probes, as JSON: points and a message.

    Raises `NoVerdict`, or another error that shows that the check itself is wrong.
    """
    given = [_answer(each) for each in json.loads(answers)]
    failed = dict.fromkeys(str(each) for each in given if isinstance(each, ProbeError))
    it = _REGISTERED[name]
    found = _judged(it, given)
    if failed and not it.takes_errors and found["earned"] >= it.points:
        found = {"earned": 0.0, "message": ""}  # an error is truthy and unequal to all
    if "message" in found:
        message = found["message"]
        untold = (each for each in failed if each not in message)
        found["message"] = "; ".join(filter(None, (message, *untold)))
    return json.dumps(found)


def _judged(it: _Registered, given: Sequence[Any]) -> dict[str, Any]:
    try:
        return {"earned": points_of(it.check(*given), it.points, returns=it.returns)}
    except (NoVerdict, NameError, ImportError):  # a submission can't cause these here
        raise
    except AssertionError as problem:
        return {"earned": 0.0, "message": str(problem) or "an assertion failed"}
    except Exception as problem:
        return {"earned": 0.0, "message": repr(problem)}


def points_of(verdict: Any, most: float, *, returns: bool) -> float:
    """Returns the points of a verdict; raises `NoVerdict` if the value is not a verdict.

    `returns` tells whether the check returns verdicts at all.
    """
    if verdict is None and not returns:
        return most
    found = verdict.item() if getattr(verdict, "shape", None) == () else verdict  # numpy's
    if not _is_within(found, most):
        shown = repr(verdict)[:80]
        raise NoVerdict(f"it returned {shown}, which is not a verdict; {_VERDICTS}")
    return most * found if isinstance(found, bool) else float(found)


def _is_within(verdict: Any, most: float) -> bool:
    return isinstance(verdict, bool) or (isinstance(verdict, int | float) and 0 <= verdict <= most)


def judge_text(want: str, got: str, flags: int) -> str:
    """Returns, as JSON, whether a doctest's output is the expected one."""
    return json.dumps(doctest.OutputChecker().check_output(want, got, flags))


def _answer(told: dict[str, Any]) -> Any:
    if told["ok"]:
        return json.loads(told["value"])
    return ProbeError(told["name"], told["text"])
