"""The tests that grade submissions: our own, otter-grader's test files, nbgrader's cells.

Files of tests come from the teacher and are trusted, but ours still run in a sandbox. Of the
other formats, the parts that have a counterpart in ours are read.
"""

from __future__ import annotations

import ast
import doctest
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import describe
from wasm_kernel.frontends.batch.notebooks import SUFFIX, NotebookError, parse_notebook
from wasm_kernel.frontends.batch.outcome import BatchError

Kind = Literal["probes", "inside", "doctest"]

_OWN = "wasm_kernel_grading"
_HIDDEN = "### BEGIN HIDDEN TESTS"
_BY_HAND = "{file} has cells that are graded by hand, which are not counted: {count}"
_UNREADABLE = (NotebookError, OSError, ValueError, SyntaxError, KeyError, TypeError, AttributeError)


class Example(Struct, frozen=True):
    """One example of a doctest, run as at a prompt, and the output that it wants.

    `error` is the last line of the expected traceback, if any. `flags` are doctest's own.
    """

    code: str
    want: str
    error: str = ""
    flags: int = 0


class GradedTest(Struct, frozen=True):
    """A test.

    Attributes:
        name: Its unique name.
        kind: `probes`: a clean guest judges the answers to probes; `doctest`: it compares printed
            text; `inside`: it runs beside the submission, which can fool it.
        points: The points that it is worth.
        hidden: Whether students are only told whether it was passed.
        probes: The cells of the probes.
        examples: The examples of a doctest.
        code: The cell that is run inside; the value of its last expression is its verdict.
        returns: Whether that value is always a verdict; otherwise it may be None.
    """

    name: str
    kind: Kind
    points: float = 1.0
    hidden: bool = False
    probes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    code: str = ""
    returns: bool = False

    @property
    def forgeable(self) -> bool:
        """True if a submission could pass it without solving its task."""
        return self.kind == "inside"


class TestFiles(Struct, frozen=True):
    """The tests in files: those of our own format, for a clean guest, and tests of the others.

    `sources` are names and texts of files. `notes` name the parts that are not graded.
    """

    sources: tuple[tuple[str, str], ...] = ()
    tests: tuple[GradedTest, ...] = ()
    notes: tuple[str, ...] = ()


def read_tests(paths: Sequence[Path]) -> TestFiles:
    """Reads files of tests, or all such files in a folder.

    Raises `BatchError` if a file can't be read, or is not a file of tests.
    """
    sources: list[tuple[str, str]] = []
    tests: list[GradedTest] = []
    notes: list[str] = []
    for file in _files(paths):
        try:
            text = file.read_text(encoding="utf-8")
            if file.suffix == SUFFIX:
                found, by_hand = _nbgrader(text)
                tests += found
                if by_hand:
                    notes.append(_BY_HAND.format(file=file.name, count=by_hand))
            elif (table := _otter_table(file.name, text)) is not None:
                tests += _cases(str(table.get("name", file.stem)), table)
            else:
                sources.append((file.name, text))
                if text.strip() and _OWN not in text:
                    notes.append(f"{file.name} has no test: it does not import {_OWN}")
        except _UNREADABLE as problem:
            words = f"The tests in {file.name} can't be read ({describe(problem)})."
            raise BatchError(f"{words} Nothing was run.") from None
    return TestFiles(tuple(sources), tuple(tests), tuple(notes))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        yield from sorted(each for each in path.iterdir() if each.suffix in (".py", SUFFIX))


# -- otter-grader: a file with a table named `test`, whose cases are doctests


def _otter_table(name: str, text: str) -> Mapping[str, Any] | None:
    for node in ast.parse(text, name).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _names(node) == ["test"]:
            try:
                table = ast.literal_eval(node.value)
            except ValueError:
                raise ValueError("its table `test` holds more than plain values") from None
            return table if isinstance(table, dict) else None
    return None


def _names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _cases(name: str, table: Mapping[str, Any]) -> list[GradedTest]:
    """Returns the cases of a table, as otter-grader counts them, or one test of all of them."""
    suites = table["suites"]
    suite = suites[0] if suites else {}
    if len(suites) > 1 or suite.get("type", "doctest") != "doctest":
        raise ValueError("only one suite, of doctests, is read")
    if suite.get("setup") or suite.get("teardown"):
        raise ValueError("setup and teardown are not read")
    if not (cases := suite.get("cases")):
        raise ValueError("it has no case")
    worth = _worth(table.get("points"), [case.get("points") for case in cases])
    tests = [
        GradedTest(
            f"{name}-{number}" if len(cases) > 1 else name,
            "doctest",
            points=points,
            hidden=bool(case.get("hidden", True)),
            examples=_examples(number, str(case["code"])),
        )
        for number, (case, points) in enumerate(zip(cases, worth, strict=True), start=1)
    ]
    if not table.get("all_or_nothing"):
        return tests
    hidden, examples = any(test.hidden for test in tests), [test.examples for test in tests]
    points = sum(test.points for test in tests)
    return [replace(tests[0], name=name, points=points, hidden=hidden, examples=sum(examples, ()))]


def _worth(total: Any, named: Sequence[Any]) -> list[float]:
    """Returns the points of each case: its own, or its share of the rest of the total.

    Source: `resolve_test_file_points` of otter-grader 7.
    """
    if isinstance(total, list):
        if len(total) != len(named):
            raise ValueError("it has another number of points than of cases")
        total, named = None, total
    own = sum(_points(each) for each in named if each is not None)
    rest = _points(total) - own if total is not None else float(not own)
    if rest < 0:
        raise ValueError("its cases have more points than there are in all")
    return [rest / named.count(None) if each is None else float(each) for each in named]


def _points(value: Any) -> float:
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"no test is worth {value} points")
    return float(value)


def _examples(number: int, code: str) -> tuple[Example, ...]:
    found = []
    for each in doctest.DocTestParser().get_examples(code):
        flags = sum(flag for flag, is_on in each.options.items() if is_on)
        if not flags & doctest.SKIP:
            found.append(Example(each.source, each.want, each.exc_msg or "", flags))
    if not found:
        raise ValueError(f"case {number} runs nothing, as it has no line that begins with >>>")
    return tuple(found)


# -- nbgrader: graded cells of the teacher's notebook that hold no solution


def _nbgrader(text: str) -> tuple[list[GradedTest], int]:
    """Returns the tests of a notebook, and the number of its cells that are graded by hand."""
    tests, by_hand = list[GradedTest](), 0
    for number, cell in enumerate(parse_notebook(text.encode()).cells, start=1):
        told = cell.metadata.get("nbgrader", {})
        is_test = cell.cell_type == "code" and told.get("grade") and not told.get("solution")
        if is_test:
            name, points = told.get("grade_id", f"cell-{number}"), _points(told["points"])
            hidden, code = _HIDDEN in cell.source, cell.source
            tests.append(GradedTest(str(name), "inside", points, hidden, code=code))
        by_hand += bool(not is_test and (told.get("grade") or told.get("task")))
    if not tests:
        raise ValueError("none of its cells is an autograder test of nbgrader's")
    return tests, by_hand
