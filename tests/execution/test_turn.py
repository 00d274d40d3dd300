"""One turn from the host's side: its answers, refusals, outputs and limits."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.listening import Page
from tests.tasks import LocalBroker
from wasm_kernel.engine.clock import Clock
from wasm_kernel.errors import TravelError, WasmKernelError
from wasm_kernel.execution.commands import HostCommands
from wasm_kernel.execution.interfaces import Cell, InputInterrupted, OfferedMessage
from wasm_kernel.execution.turn import Turn, TurnHost
from wasm_kernel.guests import protocol
from wasm_kernel.guests.base import ActionContext, CommandContext, CommandLine
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CommMessage

CELL = Cell(code="1", allow_stdin=True)
REQUEST = {"op": "execute", "code": "1", "allow_stdin": True}
DISPLAY = {"op": "display", "data": {"text/plain": "x"}}


class Travels:
    """Grants every travel but `redo`."""

    def plan(self, line: CommandLine) -> Mapping[str, Any]:
        if line.name == "redo":
            raise TravelError("There is nothing to redo.")
        return {"said": "Undone: In[1] x = 1"}

    def begin(self, number: int) -> None:
        """Forgets the travel that was asked for."""


def host(policy: ExecutionPolicy) -> TurnHost:
    travels: Any = Travels()
    commands = HostCommands(cast("Any", None), PythonLanguage(), LocalBroker({}))
    commands.travel = travels
    return TurnHost(policy, commands)


class Driven:
    """A turn, its listener and its sandbox."""

    def __init__(self, cell: Cell | str = CELL, *, begun: bool = True, **limits: Any) -> None:
        policy = ExecutionPolicy(**limits)
        self.ear, self.sandbox = Page(), host(policy)
        if isinstance(cell, str):
            self.turn = Turn({"op": cell}, self.ear, self.sandbox)
        else:
            text = PythonLanguage().parse_cell(cell.code)
            self.turn = Turn(REQUEST, self.ear, self.sandbox, cell, text=text)
        if begun:
            self.send({"op": "next"})

    def send(self, frame: Mapping[str, Any] | bytes) -> dict[str, Any]:
        data = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
        answer: dict[str, Any] = json.loads(self.turn.answer(data))
        return answer


def test_each_frame_is_a_line_of_the_log_at_level_debug(caplog: pytest.LogCaptureFixture) -> None:
    long = {"op": "display", "data": {"text/plain": "1\n2" * 5_000}}
    with caplog.at_level(logging.DEBUG, "wasm_kernel.execution"):
        Driven().send(long)
    asked, shown = caplog.messages
    assert '{"op":"next"}' in asked.replace(" ", "")
    assert '"allow_stdin": true' in asked or '"allow_stdin":true' in asked
    assert "display" in shown
    assert shown.endswith("host {}")
    assert len(shown) < 1_000
    assert "\n" not in shown


def test_a_sessions_outputs_are_limited_and_errors_are_shown_even_then() -> None:
    policy = ExecutionPolicy(session_output_bytes=1000, output_bytes=1000)
    parts = host(policy)
    shown = []
    for _ in range(3):
        page = Page()
        turn = Turn({"op": "execute"}, page, parts)
        frame = protocol.encode({"op": "display", "data": {"text/plain": "x" * 400}})
        shown.append(b"refused" not in turn.answer(frame))
    assert shown == [True, True, False]
    assert "session_output_bytes" in page.text
    error = protocol.encode({"op": "error", "ename": "E", "evalue": "v", "traceback": []})
    assert b"refused" not in turn.answer(error)
    large = protocol.encode({"op": "error", "ename": "E", "evalue": "v" * 1000, "traceback": []})
    assert b"refused" in turn.answer(large)
    assert turn.error is not None and len(turn.error.evalue) == 1000, "for the cell's result"
    assert parts.allowance.caps()["stdout"].bytes < 200


def test_frames_beyond_a_million_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wasm_kernel.execution.turn.FRAMES_MOST", 3)
    driven = Driven(begun=False)
    assert ["refused" in driven.send(DISPLAY) for _ in range(5)] == [False] * 3 + [True] * 2


class Leaving(Page):
    """A page whose user interrupts each question."""

    def ask(self, prompt: str, password: bool) -> str:
        raise InputInterrupted


def patient(line: CommandLine, context: CommandContext) -> None:
    raise Cancelled


@pytest.mark.parametrize("frame", [{"op": "input"}, {"op": "command", "name": "knock"}])
def test_an_interrupted_question_or_command_takes_the_interrupt(
    frame: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest raises the interrupt from the answer, and must not raise it a second time."""
    taken: list[str] = []
    driven = Driven(Cell(code="%knock", allow_stdin=True))
    driven.turn.comms.listener = Leaving()
    driven.sandbox.commands.add("knock", patient)
    monkeypatch.setattr(driven.sandbox.clock, "interrupt_delivered", lambda: taken.append("once"))
    assert driven.send({"prompt": "", "password": False, "line": ""} | frame) == {
        "interrupted": True
    }
    assert taken == ["once"]


def test_a_callback_can_ask_for_names_and_for_nothing_else() -> None:
    driven = Driven("comm")
    assert "works in a cell" in driven.send({"op": "command", "name": "undo"})["refused"]
    assert "said" in driven.send({"op": "command", "name": "checkpoints"})["value"]
    driven.sandbox.commands.add("knock", lambda line, context: 1)
    assert "reaches beyond the sandbox" in driven.send(KNOCK)["refused"]


@pytest.mark.parametrize(
    "frame",
    [
        {"op": "limit", "seconds": 0.001},
        {"op": "command", "name": "undo"},
        {"op": "command", "name": "knock", "line": ""},
        {"op": "input", "prompt": "", "password": False},
    ],
)
def test_f7_leftovers_of_cells_can_do_nothing_before_a_cell_begins(frame: dict[str, Any]) -> None:
    driven = Driven(begun=False)
    assert "nothing runs yet" in driven.send(frame)["refused"]
    assert driven.ear.asked == []


KNOCK = {"op": "command", "name": "knock", "line": "twice"}


def asking(code: str = "%knock twice", **limits: Any) -> Driven:
    """A turn of this cell in a sandbox that knows the command `knock`."""
    driven = Driven(Cell(code=code), **limits)
    driven.sandbox.commands.add("knock", lambda line, context: [line.name, line.line])
    return driven


def test_a_command_speaks_for_the_cell_up_to_its_cap() -> None:
    driven = asking(stdout_bytes=10)

    def talk(line: CommandLine, context: CommandContext) -> bool:
        for _ in range(3):
            context.say("12345")
        context.say("x", "stderr")
        return context.cancelled

    driven.sandbox.commands.add("knock", talk)
    assert driven.send(KNOCK) == {"value": False}
    streams = [part for part in driven.ear.heard if isinstance(part, protocol.Stream)]
    assert "".join(part.text for part in streams if part.name == "stdout") == "1234512345"


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (WasmKernelError("The door is locked."), "The door is locked."),
        (OSError(2, "No such file", "/home/someone/secret"), "%knock: internal error"),
        (RecursionError("deep"), "%knock: internal error; the kernel's log says more."),
    ],
)
def test_a_command_that_fails_is_told_without_the_hosts_paths_and_logged_with_its_traceback(
    failure: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    driven = asking()

    def fail(line: CommandLine, context: CommandContext) -> None:
        raise failure

    driven.sandbox.commands.add("knock", fail)
    answer = driven.send(KNOCK)["refused"]
    assert told in answer
    assert "/home" not in answer
    unexpected = not isinstance(failure, WasmKernelError)
    assert ("Traceback (most recent call last)" in caplog.text) == unexpected
    assert ("in fail\n" in caplog.text) == unexpected


COMM = {"op": "comm_open", "comm_id": "c", "target_name": "t"}


@pytest.mark.parametrize(("setting", "most"), [("comm_count", 3), ("comm_bytes", 200)])
def test_a_flood_of_comm_messages_is_cut_with_one_notice(setting: str, most: int) -> None:
    limits: dict[str, Any] = {setting: most}
    driven = Driven(**limits)
    answers = [driven.send(COMM | {"comm_id": f"c{number}"}) for number in range(6)]
    assert ["refused" in answer for answer in answers] == [False] * 3 + [True] * 3
    assert driven.ear.text.count(f"Raise {setting}") == 1


def test_a_harmless_command_is_done_from_anywhere_and_as_often_as_asked() -> None:
    driven = Driven(Cell(code=""))
    driven.sandbox.commands.add("knock", lambda line, context: line.line, from_anywhere=True)
    assert [driven.send(KNOCK) for _ in range(3)] == [{"value": "twice"}] * 3
    driven.sandbox.commands.add("knock", lambda line, context: 1)
    assert "refused" in driven.send(KNOCK)


class Offer(OfferedMessage):
    """A message of a page, which records its progress."""

    def __init__(self, message: CommMessage, page: Page) -> None:
        super().__init__(message, {"msg_id": "m"}, page)
        self.states: list[str] = []

    def began(self) -> None:
        self.states.append("began")

    def ended(self) -> None:
        self.states.append("ended")


def offered(driven: Driven, message: CommMessage) -> tuple[Offer, Page]:
    ear = Page()
    offer = Offer(message, ear)
    driven.sandbox.comms.offer(offer)
    return offer, ear


UPDATE = CommMessage("msg", "c", {"a": 1})


def test_a_cell_that_awaits_is_handed_what_the_page_says() -> None:
    driven = Driven()
    driven.send(COMM)
    assert driven.send({"op": "comm_next"}) == {}
    offer, ear = offered(driven, UPDATE)
    answer = driven.send({"op": "comm_next"})["message"]
    assert (answer["op"], answer["data"], answer["parent"]) == ("comm", {"a": 1}, {"msg_id": "m"})
    assert not offer.claim()
    driven.send(DISPLAY)
    assert offer.states == ["began"]
    driven.send({"op": "comm_done"})
    driven.send(DISPLAY)
    assert offer.states == ["began", "ended"]
    assert (len(ear.heard), len(driven.ear.heard)) == (1, 1)


def test_messages_that_were_withdrawn_or_have_no_comm_are_not_handed_over() -> None:
    driven = Driven()
    offer, _ = offered(driven, UPDATE)
    assert offer.claim()
    second, ear = offered(driven, CommMessage("open", "x", target_name="nobody"))
    assert driven.send({"op": "comm_next"}) == {}
    assert ear.said == [CommMessage("close", "x")]
    assert second.states == ["began", "ended"]


@pytest.mark.parametrize("frame", [{"op": "comm_next"}, {"op": "done", "reply": {}}])
def test_messages_that_were_handed_over_end_with_their_turn(frame: dict[str, Any]) -> None:
    driven = Driven()
    driven.send(COMM)
    offer, ear = offered(driven, UPDATE)
    driven.send({"op": "comm_next"})
    driven.send(frame)
    assert offer.states == ["began", "ended"]
    driven.turn.on_text("stdout", "of the cell")
    assert not ear.heard


class Action:
    """An action after a cell, which fails or says when it runs or is dropped."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def run(self, context: ActionContext) -> None:
        if self._fails:
            raise OSError(5, "secret", "/a/path")
        context.say("run")

    def cell_lost(self, context: ActionContext) -> None:
        if self._fails:
            raise OSError(5, "secret", "/a/path")
        context.say("put back")


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_action_that_fails_keeps_no_other_from_its_end(
    is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    driven = Driven()
    commands = driven.sandbox.commands
    for action in (Action(fails=True), Action()):
        commands.after_cell(action)
    if is_lost:
        commands.cell_lost(driven.turn, Clock())
    commands.run_actions(driven.turn, Clock())  # a lost cell has left no action to run
    internal = "[wasm-kernel] internal error; the kernel's log says more.\n"
    assert driven.ear.text == internal + ("put back" if is_lost else "run")
    assert "Traceback (most recent call last)" in caplog.text
