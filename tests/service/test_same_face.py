"""The interface of a sandbox, whose guest lives in a worker of a service."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import pytest

from tests.faces import PATIENCE, error_of, put_back
from tests.listening import Page
from wasm_kernel.errors import FrameError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import NoListener
from wasm_kernel.result import CommMessage
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.service import Service


@pytest.fixture(scope="module")
def module_sandbox(service: Service) -> Iterator[Sandbox]:
    """A session of a service."""
    with service.create() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(module_sandbox: Any) -> Any:
    return put_back(module_sandbox)


def test_text_is_carried_or_replaced_and_outputs_change(sandbox: Sandbox) -> None:
    assert sandbox.execute("print('\ud800')").stdout == "?\n"
    with pytest.raises(FrameError, match="surrogates"):
        sandbox.query({"op": "complete", "code": "\ud800", "cursor_pos": 1}).result(30)
    assert not sandbox.busy
    with pytest.raises(ValueError, match="n is 1 or more"):
        sandbox.fork(0)
    code = "from IPython.display import clear_output\nh = display('a', display_id=True)\n"
    outputs = sandbox.execute(f"{code}h.update('b')\nclear_output()\n'c'").outputs
    assert [output.kind for output in outputs] == ["display", "update", "clear", "result"]


@pytest.mark.parametrize(
    "call",
    [
        lambda sandbox: sandbox.comm(CommMessage("ask", "c")).result(30),  # type: ignore[arg-type]
        lambda sandbox: sandbox.comm(CommMessage("open", "c"), parent={"msg_id": 1}).result(30),
        lambda sandbox: sandbox.execute("kept = 2", user_expressions={"n": 1}),
        lambda sandbox: sandbox.checkpoint(5),
        lambda sandbox: sandbox.undo(1.5),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_and_nothing_is_lost(
    sandbox: Sandbox, call: Callable[[Any], object]
) -> None:
    """Formerly, the worker ended, and with it a cell that was not on disk yet."""
    sandbox.execute("kept = 1")
    sentence = r"^The call can't be sent: (kind|parent|user_expressions|name|cells): [EI]\w+.*"
    with pytest.raises(
        FrameError, match=sentence + r"`\. Nothing was run\.$|'\. Nothing was run\.$"
    ):
        call(sandbox)
    after = sandbox.execute("print(kept)")
    assert (after.stdout, after.stderr) == ("1\n", "")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda sandbox: sandbox.reconfigure(None, "log"), "takes a structlog logger.* not str"),
        (lambda sandbox: sandbox.reconfigure("limits", None), "policy is of type Exec.* not str"),
        (lambda sandbox: sandbox.query("complete"), "a query is of type Mapping, not str"),
        (lambda sandbox: sandbox.query({"op": "execute", "code": "kept = 2"}), "not 'execute'"),
        (lambda sandbox: sandbox.execute("kept = 2", timeout_seconds="5"), "float . int, not str"),
        (lambda sandbox: sandbox.execute("kept = 2", listener=print), "has none"),
        (lambda sandbox: sandbox.fork("2"), "n is of type int"),
        (copy.copy, "can't be copied or pickled"),
        (lambda sandbox: sandbox.offer_functions(print), "functions is of type Iterable"),
    ],
)
def test_arguments_that_the_sandbox_can_not_take_are_refused_at_once(
    sandbox: Sandbox, call: Callable[[Any], object], words: str
) -> None:
    """Formerly, a wrong logger hung the next cell, and a query could run code like a cell."""
    sandbox.execute("kept = 1")
    with pytest.raises((TypeError, ValueError), match=words):
        call(sandbox)
    assert sandbox.submit("print(kept)").result(PATIENCE).stdout == "1\n"


class Exits(NoListener):
    """A listener, and a logger, whose every call exits."""

    def emit(self, *_: object, **__: object) -> NoReturn:
        raise SystemExit

    ask = info = warning = emit


def test_code_of_the_application_that_exits_ends_no_session(sandbox: Sandbox) -> None:
    """Formerly, such code ended the session's thread, and all later calls hung."""
    cell = sandbox.submit("kept = 1; print(kept)", listener=Exits())
    cell.add_done_callback(Exits().emit)
    assert cell.result(PATIENCE).stdout == "1\n"
    asking = sandbox.submit("input()", allow_stdin=True, listener=Exits())
    assert "The program that takes input failed" in error_of(asking.result(PATIENCE))
    sandbox.reconfigure(None, SandboxLogger(Exits()))
    assert sandbox.submit("print(kept)").result(PATIENCE).stdout == "1\n"
    sandbox.reconfigure(None, SandboxLogger())


def test_input_is_answered_refused_and_interrupted(sandbox: Sandbox) -> None:
    ask = "from getpass import getpass\nprint(input('name '), getpass('word '))"
    page = Page("me", "secret")
    assert sandbox.execute(ask, allow_stdin=True, listener=page).stdout == "me secret\n"
    assert page.asked == [("name ", False), ("word ", True)]
    asking = partial(sandbox.execute, "input()", allow_stdin=True)
    assert error_of(asking(listener=page)).startswith("KeyboardInterrupt")
    page = Page("\ud800", "x" * 2 * 10**6)
    assert sandbox.execute("print(input())", allow_stdin=True, listener=page).stdout == "?\n"
    assert "the line is too long" in error_of(asking(listener=page))
    assert "there is none here" in error_of(asking())
    refused = sandbox.execute("input()", listener=Page("me"))
    assert "does not support input requests" in error_of(refused)


def test_a_late_answer_does_not_answer_the_next_question(sandbox: Sandbox) -> None:
    class Late(Page):
        def ask(self, prompt: str, password: bool) -> str:
            if prompt == "late ":
                sandbox.interrupt()
                time.sleep(1)  # the worker has read it before the answer comes
            return super().ask(prompt, password)

    page = Late("old", "new")
    late = sandbox.execute("input('late ')", allow_stdin=True, listener=page)
    assert error_of(late).startswith("KeyboardInterrupt")
    assert sandbox.execute("print(input())", allow_stdin=True, listener=page).stdout == "new\n"
