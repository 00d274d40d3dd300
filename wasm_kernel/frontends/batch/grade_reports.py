"""Reports of grades: a table for the teacher, a page of feedback for each student, JUnit XML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from wasm_kernel.frontends.batch.grading import Grade, TestGrade
from wasm_kernel.frontends.batch.outcome import plain
from wasm_kernel.frontends.batch.report_files import case_of, junit_of

_FORMULA = (*"=+-@", "\uff0b", "\uff0d", "\uff1d", "\uff20")
_NOT_ALL = " so far: not every test could be judged"
_FORGEABLE = "it ran beside the submission, which can fool it"


def table_report(grades: Sequence[Grade]) -> bytes:
    """Returns CSV with a row for each submission, and a column for each test."""
    names = [test.name for test in grades[0].tests] if grades else []
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["submission", "verdict", "earned", "points", *map(_cell, names)])
    for grade in grades:
        earned = [_earned(test) for test in grade.tests]
        name = _cell(grade.outcome.notebook)
        totals = [f"{grade.earned:g}" if grade.judged else "", f"{grade.points:g}"]
        rows.writerow([name, grade.outcome.verdict, *totals, *earned])
    return text.getvalue().encode()


def _cell(text: str) -> str:
    """The text, changed so that no spreadsheet takes it for a formula."""
    shown = plain(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def feedback(grade: Grade) -> bytes:
    """Returns the feedback for a student; of hidden tests, it only says whether they passed."""
    outcome = grade.outcome
    total = f"{grade.earned:g} of {grade.points:g} points{'' if grade.judged else _NOT_ALL}"
    lines = [f"# {_text(outcome.notebook)}", "", total, ""]
    if not outcome.ok:
        where = f" in cell {outcome.cell}" if outcome.cell else ""
        lines += [f"The notebook ended with `{outcome.verdict}`{where}:", ""]
        lines += [f"    {plain(outcome.reason)}", ""]
    lines += ["| test | points | of |", "|---|---|---|"]
    shown = [
        (f"hidden test {number}" if test.hidden else test.name, test)
        for number, test in enumerate(grade.tests, 1)
    ]
    lines += [f"| {_text(name)} | {_earned(test)} | {test.points:g} |" for name, test in shown]
    for name, test in shown:
        if test.message and not test.hidden:
            lines += ["", f"**{_text(name)}**", "", f"    {plain(test.message)}"]
    return "\n".join([*lines, ""]).encode()


def _earned(test: TestGrade) -> str:
    return f"{test.earned:g}" if test.judged else ""


def _text(text: str) -> str:
    """The text with all Markdown escaped."""
    return "".join(f"\\{each}" if each in "\\`*_{}[]<>()#+!|&" else each for each in plain(text))


def grades_junit(grades: Sequence[Grade]) -> bytes:
    """Returns JUnit XML: one test case for each test of each submission."""
    cases = [
        case_of(test.name, grade.outcome.notebook, *_verdict(test))
        for grade in grades
        for test in grade.tests
    ]
    return junit_of("wasm-kernel grade", cases)


def _verdict(test: TestGrade) -> tuple[str, str]:
    if not test.judged:
        return "kernel-lost", f"it could not be judged: {test.message}"
    if test.earned >= test.points and not test.message:
        return "ok", ""
    note = f" ({_FORGEABLE})" if test.forgeable else ""
    return "error", f"{test.earned:g} of {test.points:g} points: {test.message}{note}"


def table_of(grades: Sequence[Grade]) -> str:
    """Returns a line for each submission, and the tests that can be fooled."""
    lines = [
        f"{grade.earned:>6g} of {grade.points:g}  {plain(grade.outcome.notebook)}"
        f"  ({grade.outcome.verdict})"
        for grade in grades
    ]
    unjudged = sum(not grade.judged for grade in grades)
    if unjudged:
        lines.append(f"Not judged in full, look at their feedback: {unjudged} submissions.")
    tests = grades[0].tests if grades else ()
    if forgeable := [test.name for test in tests if test.forgeable]:
        names = ", ".join(forgeable)
        lines.append(f"Can be fooled, because they ran beside the submission: {names}.")
    if free := [test.name for test in tests if test.free]:
        lines.append(f"Give an empty notebook points, too: {', '.join(free)}.")
    return "\n".join(lines)
