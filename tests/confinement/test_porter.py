"""The porter does what it is asked by name, outside the walls, and ends with who hired it."""

from __future__ import annotations

from pathlib import Path

from tests.confinement.inside import needs_walls, said_by

_DUTIES = """
import os, sys, time, threading
from pathlib import Path
from wasm_kernel.confinement import porter, walls
from wasm_kernel.errors import WasmKernelError

def read(fields, tell, stopped):
    tell("reading")
    return {"text": Path(fields["path"]).read_text()}

def wait(fields, tell, stopped):
    tell("waiting")
    while not stopped():
        time.sleep(0.01)
    return {"stopped": True}

def fail(fields, tell, stopped):
    raise WasmKernelError("It rained. Nothing was changed.")

def crash(fields, tell, stopped):
    raise KeyError("/host/path")

def tried(what):
    try:
        print(what())
    except WasmKernelError as problem:
        print(problem)

folder = Path(sys.argv[1])

def hire():
    duties = {"read": read, "wait": wait, "fail": fail, "crash": crash}
    return porter.hire(duties, at_the_end=lambda: (folder / "ended").write_text("yes"))
"""
_HIRED = f"{_DUTIES}\nhired = hire()\n"


def test_a_duty_is_done_and_says_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("known outside")
    code = f"{_HIRED}\nprint(hired.ask('read', {{'path': sys.argv[1] + '/secret'}}, print))"
    assert said_by(code, tmp_path) == ["reading", "{'text': 'known outside'}"]


@needs_walls
def test_it_stays_outside_the_walls(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("known outside")
    code = f"""{_HIRED}
walls.close_files(walls.Kept())
walls.close_calls()
print(hired.ask('read', {{'path': sys.argv[1] + '/secret'}}))
"""
    assert said_by(code, tmp_path) == ["{'text': 'known outside'}"]


def test_a_duty_is_told_to_stop(tmp_path: Path) -> None:
    code = f"{_HIRED}\nprint(hired.ask('wait', {{}}, print, lambda: True))"
    assert said_by(code, tmp_path) == ["waiting", "{'stopped': True}"]


def test_a_stopped_duty_does_not_stop_the_next_one(tmp_path: Path) -> None:
    code = f"""{_HIRED}
hired.ask('wait', {{}}, stopped=lambda: True)
begun = time.monotonic()
hired.ask('wait', {{}}, stopped=lambda: time.monotonic() > begun + 0.3)
print(time.monotonic() - begun >= 0.3)
"""
    assert said_by(code, tmp_path) == ["True"]


def test_a_failure_comes_back_in_its_own_words_and_an_accident_without_any(tmp_path: Path) -> None:
    code = f"{_HIRED}\nfor one in ('fail', 'crash', 'other'): tried(lambda: hired.ask(one, {{}}))"
    assert said_by(code, tmp_path) == [
        "It rained. Nothing was changed.",
        "it failed unexpectedly (KeyError)",
        "there is no such duty",
    ]


def test_it_ends_when_the_one_inside_is_killed(tmp_path: Path) -> None:
    code = f"""{_DUTIES}
inside = os.fork()
if not inside:
    hire()
    os.kill(os.getpid(), 9)
os.waitpid(inside, 0)
while not (folder / "ended").exists():
    time.sleep(0.01)
print("ended")
"""
    assert said_by(code, tmp_path) == ["ended"]


def test_without_a_porter_the_answer_is_a_sentence(tmp_path: Path) -> None:
    code = f"""{_HIRED}
os.kill(hired._process, 9)
os.waitpid(hired._process, 0)
tried(lambda: hired.ask("read", {{}}))
"""
    assert said_by(code, tmp_path) == ["the kernel's helper process has ended. Restart the kernel."]
