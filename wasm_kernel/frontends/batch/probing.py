"""The probes, which run in a copy of a submission, and a clean guest that judges their answers.

A submission can replace every builtin and watch every call, so code that runs beside it can't be
trusted. A copy of it answers probes with plain data, and a guest that never held it judges them.
"""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.batch.graded_tests import Example, GradedTest, TestFiles
from wasm_kernel.frontends.batch.outcome import BatchError, plain
from wasm_kernel.frontends.batch.wasm_kernel_grading import NoVerdict, points_of
from wasm_kernel.kernels.messages import Expression
from wasm_kernel.result import SandboxResult
from wasm_kernel.service.sandbox import Sandbox

_GUEST_SIDE = Path(__file__).with_name("wasm_kernel_grading.py")
_MODULE = _GUEST_SIDE.stem
_ANSWER_CHARACTERS = 1024 * 1024
_LOADED = "tests"
_LEAST_SECONDS = 0.1
_INSTALL = (
    "import sys, types\n"
    "_module = types.ModuleType({name!r})\n"
    "sys.modules[{name!r}] = _module\n"
    "exec(compile({source!r}, {name!r}, 'exec'), _module.__dict__)\n"
    "del _module"
)
_PLAIN = """
def _wasm_kernel_plain(value, depth=0):
    if depth > 50:
        raise ValueError("an answer is nested too deeply")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "to_dict"):
        value = value.to_dict("list") if hasattr(value, "columns") else value.to_list()
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _wasm_kernel_plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return [_wasm_kernel_plain(each, depth + 1) for each in value]
    return value if isinstance(value, (int, float, str)) else repr(value)

def _wasm_kernel_told(value, most):
    import json
    return json.dumps(_wasm_kernel_plain(value))[: most + 1].encode().hex()
"""
_AS_AT_A_PROMPT = (
    "import sys\n"
    "_hook, sys.displayhook = sys.displayhook, sys.__displayhook__\n"
    "try:\n"
    "    exec(compile({code!r}, '<test>', 'single'), globals())\n"
    "finally:\n"
    "    sys.displayhook = _hook\n"
)

Answer = Mapping[str, Any]


class NotJudged(WasmKernelError):
    """A test could not judge a submission, which is not the submission's fault."""

    def __init__(self, why: object) -> None:
        shown = plain(str(why)).partition(". ")[0].removesuffix(".")
        super().__init__(f"The test itself failed ({shown}).")


class SubmissionCopy:
    """A copy of a submission, in which the probes of one test run.

    The whole test may take `seconds`, from when the copy is awake.
    """

    def __init__(self, sandbox: Sandbox, seconds: float) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        sandbox.start().result()
        self._end = time.monotonic() + seconds

    def answer(self, probe: str) -> Answer:
        """Returns the value of a probe's last expression, as JSON text, or its error."""
        body, last = split_probe(probe)
        result = self._run(
            f"{_PLAIN}\n{body}", value=f"_wasm_kernel_told(({last or None}), {_ANSWER_CHARACTERS})"
        )
        if (error := result.error) is not None:
            text = error.evalue
            if time.monotonic() >= self._end:
                text = f"the test's {self._seconds:g} seconds were over"
            return {"ok": False, "name": error.ename, "text": plain(text)}
        return _value_in(result.reply)

    def printed(self, example: Example) -> tuple[str, str]:
        """Returns the output of a doctest's example, and the last line of its traceback."""
        result = self._run(_AS_AT_A_PROMPT.format(code=example.code))
        error = result.error
        return result.stdout, "" if error is None else f"{error.ename}: {error.evalue}\n"

    def verdict(self, test: GradedTest) -> tuple[float, str]:
        """Runs a test beside the submission; returns the points of its verdict, and a message.

        Raises `NotJudged` if the test does not return a verdict.
        """
        answer = self.answer(test.code)
        if not answer["ok"]:
            return 0.0, f"{answer['name']}: {answer['text']}"
        try:
            return points_of(json.loads(answer["value"]), test.points, returns=test.returns), ""
        except NoVerdict as problem:
            raise NotJudged(problem) from None

    def _run(self, code: str, **expressions: str) -> SandboxResult:
        left = max(self._end - time.monotonic(), _LEAST_SECONDS)
        return self._sandbox.execute(
            code, store_history=False, user_expressions=expressions, timeout_seconds=left
        )


def split_probe(probe: str) -> tuple[str, str]:
    """Returns the statements of a probe, and its last expression, empty if there is none.

    A probe with magics, or an `await` in its last expression, counts as statements only.
    """
    try:
        tree = ast.parse(probe)
    except SyntaxError:
        return probe, ""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or any(isinstance(n, ast.Await) for n in ast.walk(last)):
        return probe, ""
    tree.body.pop()
    return ast.unparse(tree), ast.unparse(last.value)


def _check_probes(test: GradedTest) -> None:
    """Raises `BatchError`, before anything runs, if a probe is not valid Python."""
    for probe in test.probes:
        try:
            ast.parse(probe)
        except (SyntaxError, ValueError, RecursionError) as problem:
            why = plain(str(problem))
            raise BatchError(
                f"A probe of {test.name} can't be read ({why}). Nothing was run."
            ) from None


def _text_of(told: Expression) -> str:
    """Decodes a value, a text in hexadecimal; raises `ValueError` if it is anything else."""
    return bytes.fromhex(told.data.text.strip("'")).decode()


def _value_in(reply: Mapping[str, Any]) -> Answer:
    """Returns the answer in a copy's reply, which is untrusted."""
    try:
        told = Expression.found(reply, "value")
        if told.status == "error":
            return {"ok": False, "name": plain(told.ename), "text": plain(told.evalue)}
        text = _text_of(told)
        if len(text) > _ANSWER_CHARACTERS:
            return {"ok": False, "name": "ValueError", "text": "the answer is too long"}
        json.loads(text)
    except (KeyError, ValueError, RecursionError):  # a ValidationError is a ValueError
        return {"ok": False, "name": "ValueError", "text": "the answer is not plain data"}
    return {"ok": True, "value": text}


class CleanGuest:
    """A guest that holds the tests, and never a submission. Only one thread uses it.

    Judging one test may take `seconds`. Raises `BatchError` if the tests can't be loaded.
    """

    def __init__(self, sandbox: Sandbox, files: TestFiles, seconds: float) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        source = _GUEST_SIDE.read_text(encoding="utf-8")
        self._load(_INSTALL.format(name=_MODULE, source=source), _GUEST_SIDE.name)
        self._load(f"import {_MODULE}", _GUEST_SIDE.name)
        for name, text in files.sources:
            self._load(f"{_MODULE}.load({text!r})", name)
        own = msgspec.convert(self._ask("listing()"), list[GradedTest])
        for test in own:
            _check_probes(test)
        self.tests: Sequence[GradedTest] = (*own, *files.tests)
        self._sandbox.checkpoint(_LOADED)

    def _load(self, code: str, file: str) -> None:
        result = self._sandbox.execute(code)
        if result.error is not None:
            why = plain(f"{result.error.ename}: {result.error.evalue}")
            raise BatchError(f"The tests in {file} can't be loaded ({why}). Nothing was run.")

    def _ask_anew(self, call: str) -> Any:
        self._sandbox.restore(_LOADED)  # removes the traces of other submissions, or raises
        return self._ask(call)

    def _ask(self, call: str) -> Any:
        result = self._sandbox.execute(
            "pass",
            store_history=False,
            user_expressions={"it": f"{_MODULE}.{call}.encode().hex()"},
            timeout_seconds=self._seconds,
        )
        if result.error is not None:
            raise NotJudged(result.error.evalue)
        told = Expression.found(result.reply, "it")
        if told.status != "ok":
            raise NotJudged(told.evalue)
        return json.loads(_text_of(told))

    def tried(self, test: GradedTest) -> Mapping[str, bool]:
        """Returns a test's reactions to nonsensical answers, as `try_out`; raises `NotJudged`."""
        found: dict[str, bool] = self._ask_anew(f"try_out({test.name!r})")
        return found

    def judge(self, test: GradedTest, answers: Sequence[Answer]) -> tuple[float, str]:
        """Returns the points that the answers to a test's probes earn, and a message."""
        found = self._ask_anew(f"judge({test.name!r}, {json.dumps([*answers])!r})")
        return float(found["earned"]), str(found.get("message", ""))

    def is_wanted(self, example: Example, printed: str, error: str) -> bool:
        """Returns whether an example had the expected output or error."""
        texts = (example.error, error) if example.error or error else (example.want, printed)
        return bool(self._ask_anew(f"judge_text(*{texts!r}, {example.flags})"))
