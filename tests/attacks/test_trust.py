"""ATTACKS 17-21: whatever a cell does to the agent or sends to the host, the host stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faces import error_of
from tests.peak import MB
from tests.sampled import sampled

BREAKING = {
    "agent module gone": "import sys; [sys.modules.pop(n) for n in [*sys.modules] if 'agent' in n]",
    "closed stdout": "import sys; sys.stdout.close()",
    "no get_ipython": "get_ipython = None; import builtins; builtins.get_ipython = None",
    "json encoder broken": "from json import encoder as e; e.JSONEncoder.encode = None",
    "builtins cleared": "import builtins; builtins.__dict__.clear()",
    "no import": "import builtins; builtins.__import__ = None",
    "globals cleared": "globals().clear()",
    "shell attributes": "vars(get_ipython()).clear()",
    "agent emptied": "vars(get_ipython().agent).clear()",
    "agent class raises": "type(get_ipython().agent).turn = lambda *a: 1 / 0",
    "host module": "import _host; _host.call = lambda data: b'{}'",
    "audit hook": "import sys\ndef hook(*a): raise RuntimeError('no')\nsys.addaudithook(hook)",
    "trace": "import sys\ndef f(*a): raise RuntimeError\nsys.settrace(f)",
    "recursion limit": "import sys; sys.setrecursionlimit(30)",
    "collector callbacks": "import gc\ndef f(*a): raise RuntimeError\ngc.callbacks.append(f)",
    "meta path": "import sys; sys.meta_path.clear(); sys.path.clear(); sys.path_hooks.clear()",
    "displayhook": "import sys; sys.displayhook = None; get_ipython().displayhook = None",
    "events": "get_ipython().events.register('pre_run_cell', lambda *a: 1 / 0)",
    "history": "get_ipython().history_manager = None",
    "working folder": "import os; os.mkdir('d'); os.chdir('d'); os.rmdir('/app/d')",
    "user_ns replaced": "get_ipython().user_ns = 7",
    "exit in destructor": "class A:\n  def __del__(self): raise SystemExit\na = A()\ndel a",
}


@pytest.mark.parametrize("code", sampled(BREAKING, 8))
def test_case_17_a_broken_agent_costs_a_cell_at_most(victim_of: Making, code: str) -> None:
    broken = victim_of()
    broken.says("mine = 17")
    broken.run(code, timeout_seconds=4.0)
    broken.run("1", timeout_seconds=4.0)  # one cell may fail because of the broken value
    assert broken.says("kept = 1; print(40 + 2)").endswith("42")
    assert broken.says("print(len([1, 2]), kept)").endswith("2 1")


def test_case_17_cells_that_spoilt_the_interpreter_are_taken_back(victim_of: Making) -> None:
    broken = victim_of()
    broken.says("mine = 17")
    broken.run("import os, sys\nsys.addaudithook(lambda *a: os._exit(9))")
    result = broken.run("mine = 18")
    assert error_of(result).startswith("GuestExited:")
    assert "before that earlier cell" in error_of(result)
    assert broken.says("print(mine)") == "17"


DEEP_REPLY = """
channel = get_ipython().agent.channel
def send(frame, send=channel.send):
    if frame["op"] == "done":
        del channel.send
        deep = {}
        for _ in range(61):
            deep = {"": deep}
        frame["reply"]["deep"] = deep
    return send(frame)
channel.send = send
kept = 1
"""
VALID = {
    "deep reply": DEEP_REPLY,
    "long error": "kept = 1\nraise type('x' * 5_000_000, (Exception,), {})",
}


@pytest.mark.parametrize("code", VALID.values(), ids=VALID)
def test_a_cell_can_not_make_its_worker_look_like_one_that_was_taken_over(
    victim: Victim, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the worker was ended, and the cell's variables were lost."""
    process = victim.process
    assert error_of(victim.run(code))[:1] in ("", "x")
    assert victim.says("print(kept)") == "1"
    assert (victim.process, caplog.text) == (process, "")


def test_case_17_a_limit_too_low_for_any_turn_takes_nothing_back(
    warm_metered: None, fresh_victim_of: Making
) -> None:
    starved = fresh_victim_of(fuel_budget=10)
    before = starved.sandbox.checkpoints()
    assert [starved.fails("1") for _ in range(3)] == ["OutOfFuel"] * 3
    assert starved.sandbox.checkpoints() == before


LASTING = {
    "transformers": "get_ipython().input_transformers_cleanup[:] = [lambda lines: 1 / 0]",
    "traitlets": "import traitlets; traitlets.HasTraits.__getattribute__ = None",
}


@pytest.mark.parametrize("code", LASTING.values(), ids=LASTING.keys())
def test_case_17_a_broken_ipython_is_undone_from_outside(victim_of: Making, code: str) -> None:
    broken = victim_of()
    broken.says("mine = 17")
    broken.run(code)
    cells = [broken.run("1") for _ in range(2)]
    broken.sandbox.undo(1 + len(cells))
    assert broken.says("print(mine)") == "17"


FORGE = """
import _host, json
def forge(frame):
    data = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
    return _host.call(data)
"""


@pytest.fixture
def forger(victim: Victim) -> Victim:
    """A guest whose cells write frames to the host themselves."""
    victim.says(FORGE)
    return victim


def answer(forger: Victim, expression: str) -> Any:
    """The host's answer to a forged frame."""
    return json.loads(forger.says(f"print(forge({expression}).decode())"))


def test_case_18_a_second_request_is_refused_and_frames_name_no_other_cell(forger: Victim) -> None:
    assert "refused" in answer(forger, "{'op': 'next'}")
    frame = "{'op': 'display', 'data': {}, 'cell_id': 'other', 'parent': 'x', 'session': '../../x'}"
    assert "cell_id" not in answer(forger, frame)


def test_case_18_a_forged_end_makes_no_failure_a_success_and_ends_output(forger: Victim) -> None:
    code = "forge({'op': 'done', 'reply': {'status': 'ok', 'execution_count': 1}})\n1 / 0"
    assert not forger.run(code).success
    code = (
        "forge({'op': 'done', 'reply': {'status': 'ok'}})\n"
        "print(forge({'op': 'display', 'data': {'text/plain': 'late'}}).decode())"
    )
    assert "refused" in forger.run(code).stdout


def test_case_18_no_forged_frame_stretches_the_deadline_or_counts_on(forger: Victim) -> None:
    for frame in ("'done', 'reply': {'status': 'ok'}", "'limit', 'seconds': 1000, 'fuel': 10**15"):
        code = f"forge({{'op': {frame}}})\nwhile True: pass"
        assert forger.fails(code, timeout_seconds=0.3) == "CellTimeout"
    for count in ("2**40", "-5", "'x'"):
        forger.run(
            f"forge({{'op': 'done', 'reply': {{'status': 'ok', 'execution_count': {count}}}}})"
        )
    last = forger.run("1").reply["execution_count"]
    assert isinstance(last, int)
    assert 0 < last < 2**31


def test_case_18_a_forged_result_or_error_stays_in_its_own_cell(forger: Victim) -> None:
    first = forger.run(
        "forge({'op': 'result', 'execution_count': 99, 'data': {'text/plain': '!'}})"
    )
    second = forger.run("None")
    assert [output.kind for output in first.outputs].count("result") >= 1
    assert second.outputs == ()
    forger.run("forge({'op': 'error', 'ename': 'E', 'evalue': 'v', 'traceback': []})")
    assert forger.run("1").success


HOSTILE = {
    "deep arrays": "b'[' * 200_000 + b']' * 200_000",
    "nan": 'b\'{"op":"display","data":{"a/json":NaN}}\'',
    "not utf-8": r"b'{\"op\":\"display\",\"data\":{\"text/plain\":\"\xff\"}}'",
    "empty": "b''",
    "a number": "b'1'",
    "op unknown": 'b\'{"op":"system"}\'',
    "content of a wrong type": 'b\'{"op":"display","data":{"text/plain":{}}}\'',
    "negative limit": 'b\'{"op":"limit","seconds":-1}\'',
    "reply of a wrong type": 'b\'{"op":"done","reply":[]}\'',
    "pickle": "__import__('pickle').dumps({'op': 'done'})",
    "70 MB": "b'x' * (70 << 20)",
}


def test_case_19_a_hostile_frame_is_refused_and_two_million_end(forger: Victim) -> None:
    peak = forger.peak()
    for name, frame in HOSTILE.items():
        code = (
            f"try:\n  said = forge({frame}).decode()\nexcept OSError as e:\n  said = 'refused'\n"
            "print(said[:200])"
        )
        assert "refused" in forger.says(code), name
    assert peak.grown < 700 * MB
    forger.run("for _ in range(2_000_000): _host.call(b'{}')", timeout_seconds=0.7)


def test_case_19_a_lone_surrogate_is_replaced_and_of_equal_keys_one_counts(forger: Victim) -> None:
    result = forger.run(r"""forge(b'{"op":"display","data":{"text/plain":"a\\ud800b"}}')""")
    for output in result.outputs:
        json.dumps(dict(output.data)).encode()
        str(output.data["text/plain"]).encode()
    result = forger.run("""forge(b'{"op":"clear_output","wait":true,"wait":false}')""")
    assert [output.kind for output in result.outputs][:1] == ["clear"]
    result = forger.run("""forge(b'{"op":"display","op":"clear_output","data":{}}')""")
    assert not {"clear", "display"} & {output.kind for output in result.outputs}


def test_case_20_the_host_unpickles_nothing(forger: Victim) -> None:
    code = (
        "import pickle, os\n"
        "class Evil:\n  def __reduce__(self): return (os.mkdir, ('owned-by-a-pickle',))\n"
        "import base64; text = base64.b64encode(pickle.dumps(Evil())).decode()\n"
        "forge({'op': 'display', 'data': {'application/x-pickle': text, 'application/json': text}})"
    )
    assert forger.run(code).success
    assert not Path("owned-by-a-pickle").exists()
    assert not (forger.app / "owned-by-a-pickle").exists()


def test_case_21_a_checkpoint_with_a_name_of_a_path_is_refused(victim: Victim) -> None:
    before = {*victim.app.parent.rglob("x")}
    for name in ("../../x", "/etc/x", "..", "a/b", "a\\0b", ".", "", "\\u202e"):
        victim.run(f"%checkpoint {name}")
    assert {*victim.app.parent.rglob("x")} == before
