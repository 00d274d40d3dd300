"""Cells through the agent: results, errors, tracebacks, input, limits, and what cells break."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest
from IPython.core.error import UsageError
from wasm_kernel_agent import tracebacks
from wasm_kernel_agent.display import NotSendable, Outbox, jsonable
from wasm_kernel_agent.host import FrameChannel, FrameTooLarge
from wasm_kernel_agent.magics.basics import limit_in_place, parse_limits

Serve = Callable[..., list[Any]]
Cell = Callable[..., dict[str, Any]]


def test_failed_displays_odd_errors_and_endless_awaits_get_a_reply(serve: Serve) -> None:
    first = serve("sorted(n for n in globals() if not n.startswith('_'))")[0]
    assert first.text == "['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']"
    [turn] = serve("class R:\n    def __repr__(self): 1/0\ndisplay(R())")
    assert turn.sent("error")
    assert turn.reply["status"] == "ok"
    code = "class E(Exception):\n    def __str__(self): raise KeyError(1)\nraise E"
    [turn, after] = serve(code, "1")
    assert turn.reply["status"] == "error"
    assert after.text == "1"
    endless = "import asyncio\nawait asyncio.Future()"
    [turn, after] = serve(endless, "await asyncio.to_thread(abs, -1)")
    assert turn.reply["ename"] == "NothingToWaitFor"
    assert after.text == "1"


def test_silent_cells_show_and_count_nothing(serve: Serve, make_cell: Cell) -> None:
    [silent, after] = serve(make_cell("1", silent=True), "2")
    assert silent.frames == []
    assert after.reply["execution_count"] == 1


def test_limits_keep_the_cell_and_left_tasks_do_not_fail_it(serve: Serve) -> None:
    [turn] = serve("%%limit seconds=5 fuel=1e9\nimport asyncio\nawait asyncio.sleep(0, 7)")
    assert turn.sent("limit") == [{"op": "limit", "seconds": 5.0, "fuel": 10**9}]
    assert turn.text == "7"
    leaving = (
        "import asyncio\ngo = asyncio.Event()\n"
        "async def leave():\n  await go.wait()\n  raise SystemExit\n"
        "t = asyncio.create_task(leave())"
    )
    ending = "asyncio.get_running_loop().call_soon(go.set)\nawait asyncio.sleep(0, 'on')"
    _, turn, after = serve(leaving, ending, "await asyncio.sleep(0)\nraise SystemExit")
    assert turn.text == "'on'"
    assert turn.reply["status"] == "ok"
    assert after.reply["ename"] == "SystemExit"


SHOWN = """
import signal
class Shown:
    def __repr__(self):
        try:
            {act}
        finally:
            [].pop()
"""


@pytest.mark.parametrize("show", ["Shown()", "display(Shown())"])
def test_interrupt_that_an_error_of_a_display_hides_ends_the_cell(serve: Serve, show: str) -> None:
    act = "signal.raise_signal(signal.SIGINT)"
    [_, turn] = serve(SHOWN.format(act=act), show)
    assert turn.reply["ename"] == "KeyboardInterrupt"


def test_an_interrupt_that_a_cell_has_caught_stays_caught(serve: Serve) -> None:
    interrupted = "try:\n    signal.raise_signal(signal.SIGINT)\n"
    show = f"{interrupted}except KeyboardInterrupt:\n    display(Shown())"
    [_, turn] = serve(SHOWN.format(act="pass"), show)
    assert turn.reply["status"] == "ok"
    assert [error["ename"] for error in turn.sent("error")] == ["IndexError"]


HOOK = """
def hook(*_):
    get_ipython().events.unregister({event!r}, hook)
    raise {error}
get_ipython().events.register({event!r}, hook)
"""


@pytest.mark.parametrize("event", ["pre_execute", "pre_run_cell", "post_execute", "post_run_cell"])
def test_an_interrupt_that_comes_upon_a_callback_ends_the_cell(serve: Serve, event: str) -> None:
    turns = serve(HOOK.format(event=event, error="KeyboardInterrupt"), "2 * 3", "4 * 5")
    interrupted = turns[1] if event.startswith("pre") else turns[0]
    assert interrupted.reply["ename"] == "KeyboardInterrupt"
    assert len(interrupted.sent("error")) == 1
    assert turns[2].text == "20"


def test_a_callback_that_fails_is_told_and_the_cell_runs(serve: Serve) -> None:
    turns = serve(HOOK.format(event="pre_run_cell", error="ValueError('mine')"), "2 * 3")
    assert turns[1].text == "6"
    assert [error["evalue"] for error in turns[1].sent("error")] == ["mine"]


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("open('sales.csv')", "[wasm-kernel]"),
        ("raise ExceptionGroup('several', [ValueError(1)])", "several (1"),
    ],
)
def test_tb_shows_an_error_again_as_it_was(serve: Serve, code: str, part: str) -> None:
    [first, again] = [turn.sent("error")[0]["traceback"] for turn in serve(code, "%tb")]
    assert first == again
    assert "\n".join(again).count(part) == 1


def test_the_reply_holds_the_error_that_is_shown(serve: Serve) -> None:
    code = "raise ValueError('mine') from ExceptionGroup('several', [KeyError(6 * 7)])"
    [turn] = serve(code)
    [error] = turn.sent("error")
    for part in ("ename", "evalue", "traceback"):
        assert turn.reply[part] == error[part]
    assert error["evalue"] == "mine"
    coloured = r"KeyError\S*: \S*42"  # from Python 3.13 on
    assert re.search(coloured, "\n".join(error["traceback"]))


@pytest.mark.parametrize(("code", "kept"), [("exit", False), ("exit(keep_kernel=True)", True)])
def test_exit_asks_the_front_end(serve: Serve, code: str, kept: bool) -> None:
    payload = {"source": "ask_exit", "keepkernel": kept}
    assert serve(code)[0].reply["payload"] == [payload]


def test_both_limits_are_read_and_the_cell_stays_in_its_lines() -> None:
    assert parse_limits("seconds=0.5 fuel=2_000") == {"seconds": 0.5, "fuel": 2000}
    assert limit_in_place(["%%limit seconds=1\n", "x\n"]) == ["%limit seconds=1\n", "x\n"]
    first, second = limit_in_place(["%%limit seconds=1\n", "%%time\n", "x\n"])
    assert first == "%limit seconds=1\n"
    assert "run_cell_magic('time'" in second


@pytest.mark.parametrize(
    "line", ["", "5", "seconds", "seconds=x", "seconds=0", "fuel=-1", "seconds=nan", "memory=1",
             "fuel=1 fuel=2", "seconds=inf"]
)  # fmt: skip
def test_a_wrong_line_is_a_usage_error(line: str) -> None:
    with pytest.raises(UsageError, match="takes seconds"):
        parse_limits(line)


@pytest.mark.parametrize(
    "code",
    [
        "__builtins__ = None",
        "import builtins; builtins.len = lambda *_: 1/0",
        "import sys; sys.modules.clear()",
        "import sys; del sys.modules['__main__']",
        "get_ipython()._user_ns = {}",
        "get_ipython().run_line_magic = None",
        "type(get_ipython()).run_cell = None",
        "import asyncio; asyncio.get_event_loop().close()",
    ],
)
def test_the_cell_after_the_next_runs_as_before(serve: Serve, code: str) -> None:
    last = "import __main__\nhere = %pwd\nprint(x)\nawait __import__('asyncio').sleep(0, 2)"
    turns = serve("x = 41", code, "None", "x + 1", last)
    assert [turn.text for turn in turns[3:]] == ["42", "2"]


def test_a_cleared_namespace_works_again_and_debuggers_need_frames(serve: Serve) -> None:
    mine = "import builtins; builtins.print = mine = lambda *_: 5"
    turns = serve("globals().clear()", "1 + 1", "_ + 1", mine, "print is mine")
    assert (turns[2].text, turns[4].text) == ("3", "True")
    turns = serve("1 +", "%debug", "%pdb on", "class A:\n    __repr__ = lambda self: 5\nA()")
    assert "TypeError" in str(turns[3].frames)
    assert "tb_frame" not in str([turn.frames for turn in turns])


def names(trace: TracebackType | None) -> list[str]:
    found = []
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


def caught(error: type[BaseException], work: object) -> TracebackType | None:
    try:
        work()  # type: ignore[operator]
    except error as problem:
        return problem.__traceback__
    raise AssertionError("nothing was raised")


def test_the_agents_frames_are_left_out_also_of_causes() -> None:
    trace = caught(NotSendable, lambda: jsonable(object()))
    assert "jsonable" in names(trace)
    assert names(tracebacks.without_agent(trace)[0]) == ["caught", "<lambda>"]
    cause, error = ValueError(), KeyError()
    cause.__traceback__ = caught(NotSendable, lambda: jsonable(object()))
    cause.__context__, error.__cause__ = error, cause
    tracebacks.shorten_causes(error)
    assert names(cause.__traceback__) == ["caught", "<lambda>"]


def test_a_deep_recursion_is_cut_and_counted() -> None:
    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        else:
            raise ValueError

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        trace = caught(ValueError, lambda: dive(6_000))
    finally:
        sys.setrecursionlimit(limit)
    short, cut = tracebacks.without_agent(trace)
    assert len(names(short)) + cut == len(names(trace))
    assert len(names(short)) == 250
    assert names(short)[0] == "caught"


def test_outputs_are_cleared_updated_and_keep_their_types(serve: Serve) -> None:
    [turn] = serve("from IPython.display import clear_output; clear_output(wait=True)")
    assert turn.frames == [{"op": "clear_output", "wait": True}]
    [turn] = serve("%clear")
    assert turn.frames == [{"op": "clear_output", "wait": False}]
    [turn] = serve("h = display('a', display_id='x'); h.update('b')")
    assert [each["op"] for each in turn.frames] == ["display", "update_display"]
    [turn] = serve("display({'text/html': 'long' * 9, 'text/plain': 'x'}, raw=True)")
    assert list(turn.frames[0]["data"]) == ["text/html", "text/plain"]
    [turn] = serve("display({'text/plain': 'x'}, raw=True, metadata={'a': object(), 'b': 1})")
    assert turn.frames[0]["metadata"] == {"b": 1}


def test_values_that_json_lacks_are_translated_and_large_ones_noted(serve: Serve) -> None:
    values = "{(1, 2): [b'123', {4}], 'd': __import__('datetime').date(2026, 1, 2), 's': '\\ud800'}"
    [turn] = serve(f"display({{'image/png': b'123', 'a/json': {values}}}, raw=True)")
    carried = {"(1, 2)": ["MTIz", [4]], "d": "2026-01-02", "s": "?"}
    assert turn.frames[0]["data"] == {"image/png": "MTIz", "a/json": carried}
    [turn] = serve("class R:\n    def __repr__(self): return 'y' * 70_000_000\nR()")
    assert "[wasm-kernel] text/plain of 66.8 MiB is too large" in turn.text


@pytest.mark.parametrize(
    ("bundle", "note"),
    [
        ("{'text/plain': 5}", "text/plain was left out"),
        ("{'text/plain': 'a', 3: 'b'}", "a\n[wasm-kernel] the MIME type 3 is not text"),
        ("{'a/json': eval('[' * 60 + ']' * 60)}", "nested too deeply"),
        ("{'a/json': object()}", "a/json was left out"),
        ("{'image/png': b'x' * 60_000_000}", "too large to show"),
    ],
)
def test_content_beyond_any_frame_becomes_a_note(serve: Serve, bundle: str, note: str) -> None:
    [turn] = serve(f"display({bundle}, raw=True)")
    [frame] = turn.sent("display")
    assert list(frame["data"]) == ["text/plain"]
    assert note in frame["data"]["text/plain"]
    assert turn.reply["status"] == "ok"


def test_a_frame_over_the_limit_is_not_sent() -> None:
    sent: list[bytes] = []
    with pytest.raises(FrameTooLarge, match="64 MiB"):
        FrameChannel(lambda data: sent.append(data) or b"").send({"op": "x" * (1 << 26)})  # type: ignore[func-returns-value]
    assert not sent


def test_a_refusal_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Outbox(FrameChannel(lambda data: b'{"refused":"too much"}')).send({"op": "clear_output"})
    assert capsys.readouterr().err == "[wasm-kernel] the output was refused: too much\n"
