# mypy: disable-error-code="no-untyped-call"

"""Grades: who earns what, what a submission can't forge, and whose formats are read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from junitparser import JUnitXml

from tests.faces import PATIENCE
from tests.frontends.batch.conftest import Making
from wasm_kernel.frontends.batch import wasm_kernel_grading
from wasm_kernel.frontends.batch.batch_session import BatchSession, session_id_of
from wasm_kernel.frontends.batch.grade_reports import (
    table_of,
    write_csv,
    write_feedback,
    write_grades_junit,
)
from wasm_kernel.frontends.batch.graded_tests import read_tests
from wasm_kernel.frontends.batch.grading import Grade, TestGrade, grade_notebooks
from wasm_kernel.frontends.batch.outcome import BatchError, Outcome
from wasm_kernel.frontends.batch.probing import Copy, split_probe

GUEST_SIDE = wasm_kernel_grading.__name__
TESTS = """
from wasm_kernel_grading import ProbeError, inside, test

judged = []  # is empty for each test: one has no word with another

@test(probes=["double(21)", "double('a')"], points=4)
def doubles(number, text):
    assert number == 42, f"double(21) is {number}"
    return 4 if text == "aa" else 1.5

@test(probes=["seen.append(9)\\nlen(seen)"])
def stands_alone(length):
    assert length == 1 and not judged
    judged.append(length)

@test(probes=["seen.append(9)\\nlen(seen)"])
def stands_alone_too(length):
    assert length == 1 and not judged
    judged.append(length)

@test(probes=["secret()"], hidden=True)
def keeps_its_secret(answer):
    assert answer == 73194

@test(probes=["slow()"])
def ends(answer):
    assert isinstance(answer, ProbeError) and answer.name == "CellTimeout"

@inside(points=2)
def is_honest():
    assert False, "an honest submission fails here"
"""
HONEST = (
    "seen = []\ndef double(x): return x * 2\ndef slow():\n    while True: pass",
    "1/0",
    "def secret(): return 73194",
)
EVIL = """
import builtins, gc, json, os, sys
seen = []
class Equal:
    def __eq__(self, other): return True
    def __int__(self): return 42
def double(x): return Equal()
def slow(): return Equal()
calls = []
sys.addaudithook(lambda name, args: calls.append((name, repr(args)[:10_000])))
def secret():
    frame, found = sys._getframe(), [repr(calls), repr(In)]
    while frame:
        found += [repr(frame.f_globals), repr(frame.f_locals), repr(frame.f_code.co_consts)]
        frame = frame.f_back
    found += [text for text in gc.get_objects() if isinstance(text, (str, list, tuple))]
    found += [open(os.path.join(top, name), errors="replace").read()
              for top, _, names in os.walk("/app") for name in names]
    wanted = "".join(["731", "94"])
    return int(wanted) if any(wanted in str(text) for text in found) else len(found)
"""


def earned(grade: Grade) -> dict[str, float]:
    return {test.name: test.earned for test in grade.tests}


def test_each_test_has_a_copy_of_its_own_and_none_can_be_forged(
    warm: None, make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = BatchSession.is_whole, session_id_of(tmp_path / "out" / "cut.ipynb")
    monkeypatch.setattr(BatchSession, "is_whole", lambda it: it.id != cut and whole(it))
    answer = Copy.answer

    def answered(copy: Copy, probe: str) -> Any:
        if probe == "slow()":  # this one alone has a second
            copy._end -= PATIENCE - 1.0
        return answer(copy, probe)

    monkeypatch.setattr(Copy, "answer", answered)
    (tmp_path / "tests.py").write_text(TESTS)
    make("honest.ipynb", *HONEST)
    make("evil.ipynb", EVIL)
    make("cut.ipynb", "def double(x): return x")
    make("script.ipynb", "const double = (x) => x * 2", language="javascript")
    (tmp_path / "in" / "none.ipynb").write_text("{}")
    found = grade_notebooks(
        [tmp_path / "tests.py"],
        [tmp_path / "in"],
        tmp_path / "out",
        workspace_root=tmp_path / "sessions",
        jobs=2,
        test_seconds=PATIENCE,
    )
    grades = {grade.outcome.notebook: grade for grade in found}
    honest, evil, none = (grades[f"{name}.ipynb"] for name in ("honest", "evil", "none"))
    assert honest.outcome.verdict == "error" and honest.outcome.cell == 2
    assert earned(honest) == {
        "doubles": 4.0,
        "stands_alone": 1.0,
        "stands_alone_too": 1.0,
        "keeps_its_secret": 1.0,
        "ends": 1.0,
        "is_honest": 0.0,
    }
    cut_short = grades["cut.ipynb"]
    assert "could not be kept" in cut_short.outcome.reason
    assert not any(test.judged for test in cut_short.tests)  # the disk was full, say
    assert earned(evil)["doubles"] == earned(evil)["keeps_its_secret"] == 0.0
    assert (none.earned, none.points) == (0.0, 10.0)
    script = grades["script.ipynb"]
    assert script.earned == 0.0 and "is in javascript" in script.outcome.reason
    assert [test.name for test in honest.tests if test.forgeable] == ["is_honest"]
    assert not any((tmp_path / "sessions").glob("*-*"))


def test_formats_of_others_are_graded(warm: None, make: Making, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "q1.py").write_text(
        "OK_FORMAT = True\n"
        "test = {'name': 'q1', 'points': 3, 'suites': [{'type': 'doctest', 'cases': [\n"
        " {'code': '>>> x = double(2)\\n>>> x\\n4', 'hidden': False},\n"
        " {'code': '>>> for i in range(2):\\n...     print(i)\\n0\\n1', 'hidden': True},\n"
        " {'code': '>>> double(None)\\nTraceback (most recent call last):\\nKeyError: 1'}]}]}\n"
    )
    cell = nbformat.v4.new_code_cell("### BEGIN HIDDEN TESTS\nassert double(1) == 2")
    cell.metadata["nbgrader"] = {"grade": True, "solution": False, "points": 2, "grade_id": "c1"}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tests / "release.ipynb")
    make("a.ipynb", "def double(x): return x * 2")
    (grade,) = grade_notebooks(
        [tests], [tmp_path / "in"], tmp_path / "out", workspace_root=tmp_path / "sessions"
    )
    assert earned(grade) == {"q1-1": 1.0, "q1-2": 1.0, "q1-3": 0.0, "c1": 2.0}
    assert "KeyError: 1 was expected" in grade.tests[2].message
    assert [test.hidden for test in grade.tests] == [False, True, False, True]
    assert [test.forgeable for test in grade.tests] == [False, False, False, True]


def test_files_that_hold_no_tests_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("test = {'suites': open('x')}")
    with pytest.raises(BatchError, match="more than plain values"):
        read_tests([bad])
    bad.write_text("def")
    with pytest.raises(BatchError, match=r"bad\.py can't be read"):
        read_tests([bad])
    with pytest.raises(BatchError, match=r"gone\.py can't be read"):
        read_tests([tmp_path / "gone.py"])


def test_tests_that_cannot_be_are_refused_and_no_points_are_made_up(
    warm: None, make: Making, tmp_path: Path
) -> None:
    import_it = "from wasm_kernel_grading import test\n"
    twice = import_it + "@test(probes=['1'])\ndef same(x): ...\n" * 2
    with pytest.raises(ValueError, match="two tests are named same"):
        wasm_kernel_grading.load(twice.replace("wasm_kernel_grading", GUEST_SIDE), {})
    share = f"from {GUEST_SIDE} import test\n@test(probes=['x'], points=2)\ndef share(x): return x"
    wasm_kernel_grading.load(share, {})
    for value, earned in (("NaN", 0.0), ("Infinity", 2.0), ("-3", 0.0), ("1.5", 1.5)):
        told = json.dumps([{"ok": True, "value": value}])
        assert json.loads(wasm_kernel_grading.judge("share", told))["earned"] == earned
    (tmp_path / "tests.py").write_text(import_it + "@test(probes=['%time f()'])\ndef a(x): ...")
    with pytest.raises(BatchError, match="A probe of a can't be read"):
        grade_notebooks(
            [tmp_path / "tests.py"],
            [make("a.ipynb", "1")],
            tmp_path / "out",
            workspace_root=tmp_path / "sessions",
        )


def test_a_probe_is_its_statements_and_its_last_expression() -> None:
    assert split_probe("s = f(1)\ns.push(2); s.pop()") == ("s = f(1)\ns.push(2)", "s.pop()")
    assert split_probe("x = 1") == ("x = 1", "")


@pytest.fixture
def grades() -> list[Grade]:
    tests = (
        TestGrade("first", 1.5, 2.0, "it is `3`\x1b[2J, not 4"),
        TestGrade("second", 0.0, 1.0, "the secret is 7", hidden=True),
        TestGrade("third", 1.0, 1.0, forgeable=True),
        TestGrade("fourth", 0.0, 1.0, "no room", judged=False),
    )
    return [Grade(Outcome("=cmd().ipynb", "timeout", "too *slow*", cell=3), tests)]


def test_students_are_told_what_they_may_know(grades: list[Grade], tmp_path: Path) -> None:
    write_feedback(tmp_path / "a.md", grades[0])
    text = (tmp_path / "a.md").read_text()
    assert (
        "2.5 of 5 points so far" in text and "`timeout` in cell 3" in text and "it is `3`" in text
    )
    assert "secret" not in text and "second" not in text and "\x1b" not in text


def test_teachers_get_a_table_and_junit(grades: list[Grade], tmp_path: Path) -> None:
    write_csv(tmp_path / "grades.csv", grades)
    rows = [*csv.reader((tmp_path / "grades.csv").read_text().splitlines())]
    assert rows[0] == [
        "submission",
        "verdict",
        "earned",
        "points",
        "first",
        "second",
        "third",
        "fourth",
    ]
    assert rows[1] == ["'=cmd().ipynb", "timeout", "", "5", "1.5", "0", "1", ""]
    write_grades_junit(tmp_path / "j.xml", grades)
    (suite,) = JUnitXml.fromfile(str(tmp_path / "j.xml"))
    assert (suite.tests, suite.failures) == (4, 3)
    assert "third" in table_of(grades)
