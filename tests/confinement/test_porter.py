"""The porter does what it is asked by name, outside the walls, and ends with who hired it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.confinement.inside import needs_walls, said_by

_DUTIES = """
import os, sys, time, threading
from pathlib import Path
from wasm_kernel.linux import broker, confinement
from wasm_kernel.errors import WasmKernelError

def read(fields, tell, stopped):
    tell("reading")
    return {"text": Path(fields["path"]).read_text()}

def wait(fields, tell, stopped):
    tell("waiting")
    while not stopped():
        time.sleep(0.01)
    return {"stopped": True}

def deaf(fields, tell, stopped):
    time.sleep(60)

def compute(fields, tell, stopped):
    return {"sum": sum(i * i for i in range(10**10))}

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
    return broker.hire({each.__name__: each for each in (read, wait, deaf, compute, fail, crash)})
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
confinement.close_files(confinement.KeptPaths())
confinement.close_calls()
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


@pytest.mark.parametrize("duty", ["", "wait", "deaf", "compute"])
def test_it_ends_within_a_second_of_the_one_inside(tmp_path: Path, duty: str) -> None:
    """F25, whatever it is doing: nothing, heeding that it must stop, not heeding it, computing."""
    code = f"""{_DUTIES}
watch, alive = os.pipe()  # its other end closes once all who have it are gone
inside = os.fork()
if not inside:
    hired = hire()
    if {duty!r}:
        threading.Thread(target=lambda: hired.ask({duty!r}, {{}})).start()
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
os.close(alive)
os.waitpid(inside, 0)
begun = time.monotonic()
os.read(watch, 1)
print(time.monotonic() - begun < 1.5)
"""
    assert said_by(code, tmp_path) == ["True"]


def test_a_program_that_it_starts_ends_with_it(tmp_path: Path) -> None:
    code = """
import os, subprocess, time
from wasm_kernel.linux.broker import tied_command
watch, alive = os.pipe()
starter = os.fork()
if not starter:
    program = tied_command("import time; print('up', flush=True); time.sleep(60)")
    up = subprocess.Popen(program, pass_fds=[alive], stdout=subprocess.PIPE).stdout.readline()
    os.kill(os.getpid(), 9)
os.close(alive)
os.waitpid(starter, 0)
begun = time.monotonic()
os.read(watch, 1)
print(time.monotonic() - begun < 1)
"""
    assert said_by(code) == ["True"]


def test_without_a_porter_the_answer_is_a_sentence(tmp_path: Path) -> None:
    code = f"""{_HIRED}
os.kill(hired._process, 9)
os.waitpid(hired._process, 0)
tried(lambda: hired.ask("read", {{}}))
"""
    assert said_by(code, tmp_path) == ["the kernel's helper process has ended. Restart the kernel."]
