"""The command `wasm-kernel grade` and its options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wasm_kernel.frontends.batch import command
from wasm_kernel.service.named_functions import add_repeated, path_of

_ABOUT = (
    "Runs submissions in sandboxes, and each test in a copy of a submission's last state. The "
    "status is 0 if every submission was graded, 1 if a test could not be judged, 2 if nothing "
    "was graded."
)
_PASSED_ON = ("jobs", "test_seconds", "network", "replay", "inputs", "requirements")
"""The options that are arguments of `grade_notebooks` by the same names."""
_EXECUTED = "executed"
_FEEDBACK = "feedback"
_GRADES = "grades.csv"
_TESTS = "a file or folder of tests: our own, otter-grader's, or a notebook of nbgrader's"
_OUT = f"the folder for {_GRADES}, {_FEEDBACK} for each student, and {_EXECUTED} notebooks"
_NETWORK = "a host whose recorded answers submissions may get; needs --replay"


def add_grade(commands: Any, root: Callable[[], Path]) -> None:
    """Adds the command to those of `wasm-kernel`; `root` returns the default sessions' folder."""
    parser = commands.add_parser("grade", help="grade notebooks by tests", description=_ABOUT)
    add = parser.add_argument
    add("notebooks", nargs="+", metavar="SUBMISSION", help="as for `run`")
    add("--tests", action="append", required=True, type=path_of, metavar="TESTS", help=_TESTS)
    add("-o", "--out", required=True, type=path_of, metavar="OUT", help=_OUT)
    add("--test-seconds", type=float, default=10.0, help="the most that a test may take")
    command.add_replay(parser)
    add_repeated(parser, "--network", "URL", _NETWORK)
    command.add_reports(parser)
    command.add_running(parser)
    parser.set_defaults(run=lambda options: command.guarded(lambda: _grade(options, root)))


def _grade(options: argparse.Namespace, root: Callable[[], Path]) -> int:
    from wasm_kernel.frontends.batch import grade_reports
    from wasm_kernel.frontends.batch.grading import BUDGETS, grade_notebooks
    from wasm_kernel.frontends.batch.notebooks import SUFFIX
    from wasm_kernel.frontends.batch.report_files import write_reports

    table, pages = options.out / _GRADES, options.out / _FEEDBACK
    command.check_reports(options, table, pages / f"all{SUFFIX}")
    workspace_root, private_root = command.roots_of(options, root)
    with command.progress_of(options) as progress:
        grades = grade_notebooks(
            options.tests,
            options.notebooks,
            options.out / _EXECUTED,
            workspace_root=workspace_root,
            private_root=private_root,
            progress=progress,
            budgets=command.budgets_of(options, BUDGETS),
            **{name: getattr(options, name) for name in _PASSED_ON},
        )
    reports: dict[Path, Callable[[], bytes]] = {table: partial(grade_reports.table_report, grades)}
    for grade in grades:
        page = f"{grade.outcome.notebook.removesuffix(SUFFIX)}.md"
        reports[pages / page] = partial(grade_reports.feedback, grade)
    if options.junit is not None:
        reports[options.junit] = partial(grade_reports.grades_junit, grades)
    are_written = write_reports(reports)
    if not options.json:
        print(grade_reports.table_of(grades))
    return int(not (are_written and all(grade.judged for grade in grades)))
