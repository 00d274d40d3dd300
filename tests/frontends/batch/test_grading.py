# mypy: disable-error-code="no-untyped-call"

"""Grades: how points are earned, what a submission can't forge, and which formats are read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from junitparser import JUnitXml

from tests.faces import PATIENCE
from tests.frontends.batch.conftest import Making
from wasm_kernel import create_sandbox
from wasm_kernel.frontends.batch import wasm_kernel_grading
from wasm_kernel.frontends.batch.batch_session import BatchSession, session_id_of
from wasm_kernel.frontends.batch.grade_reports import feedback, grades_junit, table_of, table_report
from wasm_kernel.frontends.batch.graded_tests import read_tests
from wasm_kernel.frontends.batch.grading import Grade, TestGrade, grade_notebooks
from wasm_kernel.frontends.batch.outcome import BatchError, Outcome
from wasm_kernel.frontends.batch.probing import SubmissionCopy
from wasm_kernel.frontends.batch.reporting import Lines
from wasm_kernel.sessions.root import SessionsRoot

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
    assert isinstance(answer, ProbeError) and "seconds were over" in answer.text

@test(probes=["double(21)"])
def is_not_far(x):
    if abs(x - 42) > 0.1:
        return False
    return True

@inside(points=2)
def is_honest():
    return double(4) == 9

@inside()
def is_free():
    assert True
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
    make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = BatchSession.is_whole, session_id_of(tmp_path / "out" / "cut.ipynb")
    monkeypatch.setattr(BatchSession, "is_whole", lambda it: it.id != cut and whole(it))
    answer = SubmissionCopy.answer

    def answered(copy: SubmissionCopy, probe: str) -> Any:
        if probe == "slow()":  # only this probe has a second
            copy._end -= PATIENCE - 1.0
        return answer(copy, probe)

    monkeypatch.setattr(SubmissionCopy, "answer", answered)
    (tmp_path / "tests.py").write_text(TESTS)
    make("honest.ipynb", *HONEST)
    make("evil.ipynb", EVIL)
    make("cut.ipynb", "def double(x): return x")
    make("script.ipynb", "const double = (x) => x * 2", language="javascript")
    (tmp_path / "in" / "none.ipynb").write_text("{}")
    earlier = BatchSession(SessionsRoot(tmp_path / "sessions"), tmp_path / "out" / "none.ipynb")
    earlier.begin([tmp_path / "tests.py"])  # like a run that was killed
    heard = io.StringIO()
    found = grade_notebooks(
        [tmp_path / "tests.py"],
        [tmp_path / "in"],
        tmp_path / "out",
        workspace_root=tmp_path / "sessions",
        jobs=2,
        test_seconds=PATIENCE,
        progress=Lines(heard),
    )
    assert "note          is_free gives an empty notebook 1 of 1 points" in heard.getvalue()
    assert "note          is_not_far gives all its points to NaN" in heard.getvalue()
    grades = {grade.outcome.notebook: grade for grade in found}
    honest, evil, none = (grades[f"{name}.ipynb"] for name in ("honest", "evil", "none"))
    assert honest.outcome.verdict == "error" and honest.outcome.cell == 2
    assert earned(honest) == {
        "doubles": 4.0,
        "stands_alone": 1.0,
        "stands_alone_too": 1.0,
        "keeps_its_secret": 1.0,
        "ends": 1.0,
        "is_not_far": 1.0,
        "is_honest": 0.0,
        "is_free": 1.0,
    }
    assert [test.free for test in honest.tests] == [0.0] * 7 + [1.0]
    cut_short = grades["cut.ipynb"]
    assert "could not be kept" in cut_short.outcome.reason
    assert not any(test.judged for test in cut_short.tests)  # as if the disk was full
    assert earned(evil)["doubles"] == earned(evil)["keeps_its_secret"] == 0.0
    assert (none.earned, none.points) == (0.0, 12.0)
    script = grades["script.ipynb"]
    assert script.earned == 0.0 and "is in javascript" in script.outcome.reason
    assert [test.name for test in honest.tests if test.forgeable] == ["is_honest", "is_free"]
    assert not any((tmp_path / "sessions").glob("*-*"))


def test_formats_of_others_are_graded(make: Making, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "q1.py").write_text(
        "OK_FORMAT = True\n"
        "test = {'name': 'q1', 'points': 3, 'suites': [{'type': 'doctest', 'cases': [\n"
        " {'code': '>>> x = double(2)\\n>>> x\\n4', 'hidden': False},\n"
        " {'code': '>>> for i in range(2):\\n...     print(i)\\n0\\n1'},\n"
        " {'code': '>>> double(None)\\nTraceback (most recent call last):\\nKeyError: 1',"
        " 'hidden': False}]}]}\n"
    )
    cell = nbformat.v4.new_code_cell("### BEGIN HIDDEN TESTS\nassert double(1) == 2")
    cell.metadata["nbgrader"] = {"grade": True, "solution": False, "points": 2, "grade_id": "c1"}
    part = nbformat.v4.new_code_cell("1.5 if double(1) == 2 else 0")
    part.metadata["nbgrader"] = {**cell.metadata["nbgrader"], "grade_id": "c2"}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell, part]), tests / "release.ipynb")
    make("a.ipynb", "def double(x): return x * 2")
    (grade,) = grade_notebooks(
        [tests], [tmp_path / "in"], tmp_path / "out", workspace_root=tmp_path / "sessions"
    )
    assert earned(grade) == {"q1-1": 1.0, "q1-2": 1.0, "q1-3": 0.0, "c1": 2.0, "c2": 1.5}
    assert "KeyError: 1 was expected" in grade.tests[2].message
    assert [test.hidden for test in grade.tests] == [False, True, False, True, False]
    assert [test.forgeable for test in grade.tests] == [False, False, False, True, True]


def test_an_answer_that_is_too_long_is_named_so(tmp_path: Path) -> None:
    with create_sandbox(workspace=tmp_path) as sandbox:
        answer = SubmissionCopy(sandbox, PATIENCE).answer("'x' * 50_000_000")
    assert answer == {"ok": False, "name": "ValueError", "text": "the answer is too long"}


@pytest.mark.parametrize(
    "forged", ["[]", "{'value': {'status': 'ok', 'data': {'text/plain': 5}}}", "{'value': 1}"]
)
def test_an_answer_in_a_forged_reply_is_no_answer(tmp_path: Path, forged: str) -> None:
    """Formerly, a submission that spoiled its replies ended the grading of all others."""
    with create_sandbox(workspace=tmp_path) as sandbox:
        agent = "Agent = type(get_ipython().agent); done = Agent._done"
        told = f"{{**reply, 'user_expressions': {forged}}}"
        sandbox.execute(f"{agent}\nAgent._done = lambda self, reply: done(self, {told})")
        answer = SubmissionCopy(sandbox, PATIENCE).answer("42")
    assert answer == {"ok": False, "name": "ValueError", "text": "the answer is not plain data"}


def test_files_that_hold_no_tests_are_refused_or_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import json")
    assert "bad.py has no test" in read_tests([bad]).notes[0]
    bad.write_text("test = {'suites': open('x')}")
    with pytest.raises(BatchError, match="more than plain values"):
        read_tests([bad])
    for case in ("{'code': 'x == 42'}", "{}", "{'code': '>>> x', 'points': -1}"):
        bad.write_text(f"test = {{'suites': [{{'cases': [{case}]}}]}}")
        with pytest.raises(BatchError, match=r"bad\.py can't be read"):
            read_tests([bad])
    bad.write_text("def")
    with pytest.raises(BatchError, match=r"bad\.py can't be read .*\(bad\.py, line 1"):
        read_tests([bad])
    bad.write_text("from otter.test_files import test_case")
    with pytest.raises(BatchError, match=r"bad\.py can't be loaded .*'otter'"):
        grade_notebooks([bad], [tmp_path], tmp_path / "out", workspace_root=tmp_path / "sessions")
    with pytest.raises(BatchError, match=r"gone\.py can't be read"):
        read_tests([tmp_path / "gone.py"])


@pytest.fixture
def load() -> Iterator[Callable[[str], None]]:
    """Loads the text of a file of tests, like a clean guest."""
    begin = f"from {GUEST_SIDE} import ProbeError, inside, test\n"
    yield lambda text: wasm_kernel_grading.load(begin + text)
    wasm_kernel_grading._REGISTERED.clear()


def judged(name: str, *values: Any) -> Any:
    """The verdict of a test on answers; an error stands for a probe that raised it."""
    answers = [
        {"ok": False, "name": type(each).__name__, "text": str(each)}
        if isinstance(each, Exception)
        else {"ok": True, "value": json.dumps(each)}
        for each in values
    ]
    return json.loads(wasm_kernel_grading.judge(name, json.dumps(answers)))


def test_a_verdict_is_an_end_without_error_or_a_truth_or_a_number_of_points(
    load: Callable[[str], None],
) -> None:
    load(
        "@test(probes=['x'], points=2)\n"
        "def share(x): return x\n"
        "@test(probes=['x'], points=2)\n"
        "def alike(x):\n    import numpy\n    return numpy.isclose(x, 0.3)\n"
        "@test(probes=['x'], points=2)\n"
        "def said(x): assert x == 1\n"
    )
    for given, earned in ((True, 2.0), (False, 0.0), (1.5, 1.5), (0, 0.0)):
        assert judged("share", given) == {"earned": earned}
    odd: tuple[Any, ...] = ("good", None, [1], 3, -1, math.nan, math.inf)
    for value in odd:
        with pytest.raises(wasm_kernel_grading.NoVerdict, match="which is not a verdict"):
            judged("share", value)
    assert (judged("alike", 0.1 + 0.2), judged("alike", 1)) == ({"earned": 2.0}, {"earned": 0.0})
    assert judged("said", 1) == {"earned": 2.0}
    assert judged("said", 2) == {"earned": 0.0, "message": "an assertion failed"}


def test_a_probe_that_raises_an_error_earns_never_all_points_unless_that_is_asked_for(
    load: Callable[[str], None],
) -> None:
    load(
        "@test(probes=['f(4)'])\ndef is_no_prime(x): assert not x != 3 or x\n"
        "@test(probes=['f(4)'])\ndef refuses(x): assert isinstance(x, ProbeError) and x.text\n"
        "@test(probes=['f(4)'], points=3)\ndef partly(x): return 3 if x == 1 else 1\n"
        "@test(probes=['f(4)', 'f(5)'])\ndef says(x, y): assert x == 1, f'{x}, not 1'\n"
    )
    failed = {"earned": 0.0, "message": "ValueError: no"}
    assert judged("is_no_prime", ValueError("no")) == failed
    assert judged("refuses", ValueError("no")) == {"earned": 1.0}
    assert judged("partly", ValueError("no")) == {"earned": 1.0}
    told_once = {"earned": 0.0, "message": "ValueError: no, not 1"}
    assert judged("says", ValueError("no"), ValueError("no")) == told_once


UNFIT = {
    "some places": "@test(probes=['x'])\ndef a(x):\n    if x: return 1",
    "a text": "@test(probes=['x'])\ndef a(x): return 'good' if x == 42 else 0",
    "too many points": "@test(probes=['x'])\ndef a(x): return 4 if x == 42 else 0",
    "async": "@test(probes=['x'])\nasync def a(x): assert x == 42",
    "yields": "@test(probes=['x'])\ndef a(x):\n    assert x == 42\n    yield",
    "a lambda": "test(probes=['x'])(lambda x: x == 42)",
    "no probes": "@test(probes=[])\ndef a(): assert 1",
    "other probes": "@test(probes=['x', 'y'])\ndef a(x): assert x",
    "points": "@test(probes=['x'], points=-1)\ndef a(x): assert x",
    "inside, of others": "def f():\n    y = 1\n    @inside()\n    def a(): assert y\nf()",
    "inside, with arguments": "@inside()\ndef a(x): assert x",
    "inside, returns": "@inside()\ndef a(): return 'good'",
    "two": "@test(probes=['x'])\ndef a(x): assert x\n" * 2,
}


@pytest.mark.parametrize("text", UNFIT.values(), ids=UNFIT.keys())
def test_checks_without_a_verdict_are_refused_early(load: Callable[[str], None], text: str) -> None:
    with pytest.raises(ValueError, match=r"can't be a test|two tests are named a"):
        load(text)


def test_files_of_tests_have_names_of_their_own(load: Callable[[str], None]) -> None:
    for name, wanted in (("one", 1), ("two", 2)):
        load(f"wanted = {wanted}\n@test(probes=['x'])\ndef is_{name}(x): assert x == wanted\n")
    assert (judged("is_one", 1), judged("is_two", 2)) == ({"earned": 1.0}, {"earned": 1.0})


def test_checks_that_refuse_nothing_or_take_nothing_are_known(
    load: Callable[[str], None],
) -> None:
    load(
        "@test(probes=['x'])\ndef forgets(x): x == 42\n"
        "@test(probes=['x'])\ndef shows(x): print(x == 42)\n"
        "@test(probes=['x'])\ndef catches(x):\n"
        "    try:\n        assert x == 42\n    except Exception: pass\n"
        "@test(probes=['x'])\ndef judges(x): assert x\n"
    )
    names = ("forgets", "shows", "catches", "judges")
    refuses = {name: json.loads(wasm_kernel_grading.try_out(name))["refuses"] for name in names}
    assert refuses == {"forgets": False, "shows": False, "catches": False, "judges": True}
    load(
        "@test(probes=['x'])\ndef is_far(x):\n    if abs(x - 42) > 0.1: return False\n"
        "    return True\n"
        "@test(probes=['x'])\ndef is_near(x): return abs(x - 42) < 0.1\n"
        "@test(probes=['x'], points=9)\ndef less(x): return min(9, max(9 - abs(x - 42), 0))\n"
        "@test(probes=['x'], points=9)\ndef rounds(x): return round(9 - abs(x - 42))\n"
    )
    names = ("is_far", "is_near", "less", "rounds")
    takes = {name: json.loads(wasm_kernel_grading.try_out(name))["takes_nan"] for name in names}
    assert [name for name in names if takes[name]] == ["is_far", "less"]


REFUSED = {
    "a gives all its points, whatever": "@test(probes=['f()'])\ndef a(x): x == 42",
    "b: The test itself failed": "@inside()\ndef b(): return print(1)",
}


def test_the_teacher_is_warned_before_anything_is_graded(make: Making, tmp_path: Path) -> None:
    make("a.ipynb", "def f(): return 41")
    for why, text in REFUSED.items():
        (tmp_path / "tests.py").write_text(f"from wasm_kernel_grading import inside, test\n{text}")
        with pytest.raises(BatchError, match=why):
            grade_notebooks(
                [tmp_path / "tests.py"],
                [tmp_path / "in"],
                tmp_path / "out",
                workspace_root=tmp_path / "sessions",
            )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def grades() -> list[Grade]:
    tests = (
        TestGrade("first", 1.5, 2.0, "it is `3`\x1b[2J, not 4"),
        TestGrade("second", 0.0, 1.0, "the secret is 7", hidden=True),
        TestGrade("third", 1.0, 1.0, forgeable=True),
        TestGrade("fourth", 0.0, 1.0, "no room", judged=False),
        TestGrade("fifth", 0.0, 0.0, "wrong", free=0.5),
        TestGrade("sixth", 0.0, 0.0, "no room", judged=False),
    )
    return [Grade(Outcome("=cmd().ipynb", "timeout", "too *slow*", cell=3), tests)]


def test_students_are_told_what_they_may_know_and_teachers_all(grades: list[Grade]) -> None:
    text = feedback(grades[0]).decode()
    assert (
        "2.5 of 5 points so far" in text and "`timeout` in cell 3" in text and "it is `3`" in text
    )
    assert "secret" not in text and "second" not in text and "\x1b" not in text
    rows = [*csv.reader(table_report(grades).decode().splitlines())]
    names = "first second third fourth fifth sixth"
    assert rows[0] == f"submission verdict earned points {names}".split()
    assert rows[1] == ["'=cmd().ipynb", "timeout", "", "5", "1.5", "0", "1", "", "0", ""]
    (suite,) = JUnitXml.fromstring(grades_junit(grades))
    assert (suite.tests, suite.failures, suite.errors) == (6, 3, 2)
    assert "third" in table_of(grades) and "points, too: fifth" in table_of(grades)
