"""`grade_notebooks`: runs submissions in sandboxes, and each test in a copy of their state."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.batch.batch_session import BatchSession
from wasm_kernel.frontends.batch.graded_tests import Example, GradedTest, TestFiles, read_tests
from wasm_kernel.frontends.batch.local_run import jobs_of, run_folder, run_sources
from wasm_kernel.frontends.batch.notebook_run import RunSettings
from wasm_kernel.frontends.batch.notebooks import Source, find_sources, source_of
from wasm_kernel.frontends.batch.outcome import BatchError, Budgets, Outcome, out_in, paths_in
from wasm_kernel.frontends.batch.packages import installed, read_requirements
from wasm_kernel.frontends.batch.probing import CleanGuest, NotJudged, SubmissionCopy
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.linux.task import QUIET
from wasm_kernel.policy import ExecutionPolicy, NetworkMode, is_limit, user_path
from wasm_kernel.service.service import Service
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.forking import ForkSession, fork_session
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.root import SessionsRoot

TEST_SECONDS = 10.0
"""The seconds that a test may take by default, with all its probes."""

_TOGETHER = 4  # submissions per processor that run before they are graded; their states take room
_CANCELLED = "Grading was cancelled. No grades were written."
_NOTHING_RAN = "The submission did not run."
_NO_TEST = (
    "There is no test in these files. Ours are functions below @test(...) or @inside(...), from "
    "wasm_kernel_grading. Nothing was run."
)
_CANNOT_FAIL = (
    "{name} gives all its points, whatever it is answered. Have it assert something, or return a "
    "verdict. Nothing was run."
)
_TAKES_NAN = (
    "{name} gives all its points to NaN, too, which is neither near nor far: let it assert what is "
    "near (abs(x - 42) < 0.1)"
)
_FREE = "{name} gives an empty notebook {earned:g} of {of:g} points, too"
BUDGETS = Budgets(cell_seconds=60.0, notebook_seconds=300.0)


class TestGrade(Struct, frozen=True):
    """The points that a submission earned with one test.

    Attributes:
        name: The test's name.
        earned: The points that it earned.
        points: The points that it could earn.
        message: Why points are missing.
        hidden: Whether students are not told the message.
        forgeable: Whether the test ran beside the submission, which can fool it.
        judged: Whether it is known what the submission earned; `message` says why not.
        free: The points that an empty notebook earns, too.
    """

    __test__ = False

    name: str
    earned: float
    points: float
    message: str = ""
    hidden: bool = False
    forgeable: bool = False
    judged: bool = True
    free: float = 0.0


class Grade(Struct, frozen=True):
    """The outcome of a submission.

    Attributes:
        outcome: The outcome of its notebook.
        tests: The points that it earned with each test.
    """

    outcome: Outcome
    tests: tuple[TestGrade, ...] = ()

    @property
    def judged(self) -> bool:
        """True if the points of every test are known."""
        return all(test.judged for test in self.tests)

    @property
    def earned(self) -> float:
        """All points that the submission earned."""
        return sum(test.earned for test in self.tests)

    @property
    def points(self) -> float:
        """All points that the submission could earn."""
        return sum(test.points for test in self.tests)


def grade_notebooks(
    tests: Sequence[Path | str],
    submissions: Sequence[Path | str],
    out: Path | str,
    *,
    workspace_root: Path | str = WORKSPACE_ROOT,
    private_root: Path | str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    budgets: Budgets = BUDGETS,
    test_seconds: float = TEST_SECONDS,
    network: Sequence[str] = (),
    replay: Path | str | None = None,
    inputs: Sequence[Path | str] = (),
    requirements: Sequence[Path | str] = (),
) -> list[Grade]:
    """Runs submissions in sandboxes, and each test in a copy of the state that they reached.

    Failed cells do not end a submission. No test sees the effects of another one. Tests that judge
    probes run in a guest that never held a submission.

    Args:
        tests: Files of tests, or folders of them.
        submissions: Notebooks, as `run_notebooks` takes them.
        out: The folder for executed notebooks.
        workspace_root: The folder that holds the sessions in which notebooks run.
        private_root: The folder that holds their private folders; one of the user's by default.
        jobs: How many run at a time; by default as many as this process has processors.
        progress: Gets events about the notebooks.
        budgets: The limits of each submission.
        test_seconds: The seconds that a test may take.
        network: Hosts whose recorded answers submissions may get, as `https://HOST/PATH`.
        replay: The folder of recorded requests, which `run_notebooks` has written; with `network`.
        inputs: Files that are copied into `/app` first.
        requirements: Requirements files, whose packages each submission has.

    Raises:
        BatchError: the tests can't be read, or the run can't begin.
    """
    files = read_tests([user_path(each) for each in paths_in("tests", tests)])
    named = paths_in("submissions", submissions)
    count = jobs_of(jobs)
    if not is_limit("test_seconds", test_seconds):
        raise BatchError(f"A test may take some seconds, not {test_seconds!r}. Nothing was run.")
    if network and replay is None:
        raise BatchError("--network needs --replay: grading reaches no host. Nothing was run.")
    settings = RunSettings(
        root=SessionsRoot(workspace_root, private_root),
        budgets=budgets,
        folder="none",
        network=tuple(network),
        network_mode=(NetworkMode.LIVE if replay is None else NetworkMode.REPLAY).value,
        exchanges=None if replay is None else user_path(replay),
        inputs=tuple(user_path(each) for each in paths_in("inputs", inputs)),
        is_graded=True,
        keeps_session=True,
        lasts=False,
    )
    policy = ExecutionPolicy.from_values({**budgets.limits(), "history_cells": 5})
    words = read_requirements(requirements)
    with (
        Service(workspace_root, private_root=private_root, policy=policy) as service,
        installed(settings, words) as with_packages,
        closing(_Grading(service, with_packages, files, test_seconds, count)) as grading,
    ):
        notes = grading.check()
        sources = find_sources(named, out_in(out))
        told = progress or Progress()
        for note in (*files.notes, *notes):
            told.noted(note)
        grading.try_empty(told)
        grades: list[Grade] = []
        for part in range(0, len(sources), _TOGETHER * count):
            grades += grading.run(sources[part : part + _TOGETHER * count], told)
        return grades


@dataclass
class _Grading:
    """Runs submissions and grades them. Each of its threads has a clean guest."""

    service: Service
    settings: RunSettings
    files: TestFiles
    seconds: float
    jobs: int

    def __post_init__(self) -> None:
        self.threads = ThreadPoolExecutor(self.jobs)
        self.own = threading.local()
        self.made: list[str] = []
        self.free: dict[str, float] = {}
        self.is_cancelled = False

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for name in self.made:
            self.service.delete(name)

    def check(self) -> list[str]:
        """Loads the tests once; `BatchError` if there are none, or one can't judge anything.

        Returns notes on tests that may give points by mistake.
        """
        clean = self._clean()
        names = [test.name for test in clean.tests]
        if not names:
            raise BatchError(_NO_TEST)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BatchError(f"Two tests are named {twice[0]}. Nothing was run.")
        notes = list[str]()
        for test in (each for each in clean.tests if each.kind == "probes"):
            try:
                tried = clean.tried(test)
            except NotJudged as problem:
                raise BatchError(f"{test.name}: {problem} Nothing was run.") from None
            if not tried["refuses"]:
                raise BatchError(_CANNOT_FAIL.format(name=test.name))
            if tried["takes_nan"]:
                notes.append(_TAKES_NAN.format(name=test.name))
        return notes

    def try_empty(self, progress: Progress) -> None:
        """Grades an empty notebook, and notes the points that it earns.

        Raises `BatchError` if it can't be run, or a test can't judge it.
        """
        with run_folder() as place:
            (grade,) = self.run([source_of(place, "empty", "None")], Progress())
        if not grade.outcome.ok:
            raise BatchError(f"No notebook can be run. {grade.outcome.reason} Nothing was graded.")
        for test in grade.tests:
            if not test.judged:
                raise BatchError(f"{test.name}: {test.message} Nothing was graded.")
            if test.earned:
                progress.noted(_FREE.format(name=test.name, earned=test.earned, of=test.points))
        self.free = {test.name: test.earned for test in grade.tests}

    def run(self, sources: Sequence[Source], progress: Progress) -> list[Grade]:
        """Runs some submissions; returns their grades; `BatchError` if the run was cancelled."""
        try:
            outcomes = run_sources(sources, self.settings, self.jobs, progress)
            return self._grade_all(outcomes)
        finally:
            for source in sources:
                BatchSession(self.settings.root, source.output).discard()

    def _clean(self) -> CleanGuest:
        if not hasattr(self.own, "guest"):
            sandbox = self.service.create()
            self.made.append(sandbox.session_id)
            self.own.guest = CleanGuest(sandbox, self.files, self.seconds)
        guest: CleanGuest = self.own.guest
        return guest

    def _grade_all(self, outcomes: Sequence[Outcome]) -> list[Grade]:
        if any(outcome.verdict == "cancelled" for outcome in outcomes):
            raise BatchError(_CANCELLED)
        try:
            return [*self.threads.map(self._grade, outcomes)]
        except KeyboardInterrupt:
            self.is_cancelled = True
            raise BatchError(_CANCELLED) from None

    def _grade(self, outcome: Outcome) -> Grade:
        clean = self._clean()
        session = BatchSession(self.settings.root, Path(outcome.output))
        return Grade(
            outcome, tuple(self._one(clean, session, outcome, test) for test in clean.tests)
        )

    def _one(
        self, clean: CleanGuest, session: BatchSession, outcome: Outcome, test: GradedTest
    ) -> TestGrade:
        earned, message, judged = 0.0, _NOTHING_RAN, True
        if self.is_cancelled:
            raise BatchError(_CANCELLED)
        if outcome.verdict == "kernel-lost":  # not the submission's fault
            message, judged = outcome.reason, False
        elif outcome.output:  # otherwise, an existing session is an earlier run's
            try:
                earned, message = self._in_copy(clean, session, test)
            except (WasmKernelError, OSError) as problem:
                message, judged = str(problem), False
        free = self.free.get(test.name, 0.0)
        return TestGrade(
            test.name, earned, test.points, message, test.hidden, test.forgeable, judged, free
        )

    def _in_copy(
        self, clean: CleanGuest, session: BatchSession, test: GradedTest
    ) -> tuple[float, str]:
        """Runs one test in a copy of the submission, which is then deleted."""
        name = ids.new()
        root = self.settings.root
        lineage = root.lineage_below(session.id)
        fork_session(root, lineage)(ForkSession(name, reseed=False), QUIET)
        try:
            copy = SubmissionCopy(self.service.get(name), self.seconds)
            return _judged(clean, copy, test)
        finally:
            with suppress(WasmKernelError, OSError):
                self.service.delete(name)


def _judged(clean: CleanGuest, copy: SubmissionCopy, test: GradedTest) -> tuple[float, str]:
    match test.kind:
        case "probes":
            return clean.judge(test, [copy.answer(each) for each in test.probes])
        case "inside":
            return copy.verdict(test)
        case "doctest":
            for example in test.examples:
                printed, error = copy.printed(example)
                if not clean.is_wanted(example, printed, error):
                    return 0.0, _differs(example, printed, error)
            return test.points, ""


def _differs(example: Example, printed: str, error: str) -> str:
    wanted = (example.error or example.want).strip() or "nothing"
    return f"{example.code.strip()}: {wanted} was expected, not {(error or printed).strip()}"
