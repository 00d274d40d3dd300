"""Tests that submissions are graded by: our own, otter-grader's test files, nbgrader's cells.

Files of tests are the teacher's and trusted, but for one thing: our own run in a sandbox all the
same. The formats of others are read for what they have in common with ours.
"""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from wasm_kernel.errors import describe
from wasm_kernel.frontends.batch.notebooks import SUFFIX, NotebookRefused, parse_notebook
from wasm_kernel.frontends.batch.outcome import BatchError

Kind = Literal["probes", "inside", "doctest"]

_HIDDEN = "### BEGIN HIDDEN TESTS"
_MOST = 10_000


class Example(Struct, frozen=True):
    """One example of a doctest, run in the mode of a prompt, and the output that it wants.

    `error` is the last line of the traceback that is expected; empty if none is.
    """

    code: str
    want: str
    error: str = ""


class GradedTest(Struct, frozen=True):
    """A test.

    Attributes:
        name: Its name, unlike those of all others.
        kind: `probes`: a clean guest judges the answers to probes; `doctest`: it compares printed
            text; `inside`: it runs beside the submission, which can fool it.
        points: What it is worth.
        hidden: Whether students are not told more than whether it was passed.
        probes: The cells of the probes.
        examples: The examples of a doctest.
        code: What is run inside.
    """

    name: str
    kind: Kind
    points: float = 1.0
    hidden: bool = False
    probes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    code: str = ""

    @property
    def forgeable(self) -> bool:
        """True if a submission could pass it without doing what it asks for."""
        return self.kind == "inside"


class TestFiles(Struct, frozen=True):
    """The tests in files: sources of our own format, for a clean guest, and tests of the others."""

    sources: tuple[str, ...] = ()
    tests: tuple[GradedTest, ...] = ()


def read_tests(paths: Sequence[Path]) -> TestFiles:
    """Reads files of tests, or all of a folder.

    Raises `BatchError` if one can't be read, or is not a file of tests.
    """
    sources: list[str] = []
    tests: list[GradedTest] = []
    for file in _files(paths):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise _refused(file, describe(problem)) from None
        if file.suffix == SUFFIX:
            tests += _nbgrader(file, text)
        elif (table := _otter_table(file, text)) is not None:
            tests += _otter(file, table)
        else:
            sources.append(text)
    names = [test.name for test in tests]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BatchError(f"Two tests are named {twice[0]}. Nothing was run.")
    return TestFiles(tuple(sources), tuple(tests))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        yield from sorted(each for each in path.iterdir() if each.suffix in (".py", SUFFIX))


def _refused(file: Path, why: str) -> BatchError:
    return BatchError(f"The tests in {file.name} can't be read ({why}). Nothing was run.")


# -- otter-grader: a file with a table named `test`, whose cases are doctests


def _otter_table(file: Path, text: str) -> Mapping[str, Any] | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as problem:
        raise _refused(file, str(problem)) from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and _names(node) == ["test"]:
            try:
                table = ast.literal_eval(node.value)
            except ValueError:
                raise _refused(file, "its table `test` holds more than plain values") from None
            return table if isinstance(table, dict) else None
    return None


def _names(node: ast.Assign) -> list[str]:
    return [each.id for each in node.targets if isinstance(each, ast.Name)]


def _otter(file: Path, table: Mapping[str, Any]) -> Iterator[GradedTest]:
    name = str(table.get("name", file.stem))
    cases = [case for suite in table.get("suites", []) for case in suite.get("cases", [])]
    points = table.get("points")
    each = points / len(cases) if isinstance(points, int | float) and cases else 1.0
    worth = [*points, *[1.0] * len(cases)] if isinstance(points, list) else [each] * len(cases)
    for number, case in enumerate(cases, start=1):
        try:
            examples = doctest.DocTestParser().get_examples(case["code"])
        except (KeyError, ValueError) as problem:
            raise _refused(file, str(problem)) from None
        yield GradedTest(
            f"{name}-{number}" if len(cases) > 1 else name,
            "doctest",
            points=float(case.get("points", worth[number - 1])),
            hidden=bool(case.get("hidden", False)),
            examples=tuple(Example(e.source, e.want, e.exc_msg or "") for e in examples),
        )


# -- nbgrader: cells of the teacher's notebook that are graded, and hold no solution


def _nbgrader(file: Path, text: str) -> Iterator[GradedTest]:
    try:
        book = parse_notebook(text.encode())
    except NotebookRefused as problem:
        raise _refused(file, str(problem)) from None
    for number, cell in enumerate(book.cells, start=1):
        told = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and told.get("grade") and not told.get("solution"):
            yield GradedTest(
                str(told.get("grade_id", f"cell-{number}")),
                "inside",
                points=float(told.get("points", 0)),
                hidden=_HIDDEN in cell.source,
                code=cell.source,
            )
