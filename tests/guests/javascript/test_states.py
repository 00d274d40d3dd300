"""Undo, forks and new processes: a cell leaves everything in the guest's memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import wasm_kernel
from tests.faces import fall_asleep, wait_for
from tests.guests.javascript.conftest import Opening, shown, value
from wasm_kernel import BaseSandbox
from wasm_kernel.service.sandbox import Sandbox

STATE = """
function counter() { let n = 0; return () => ++n }
const next = counter(); next()
function* numbers() { let i = 0; for (;;) yield i++ }
const generator = numbers(); generator.next()
const map = new Map([[{ key: 1 }, [1, 2]]])
const typed = new Float64Array([1.5, 2.5]), view = new Uint8Array(typed.buffer)
let settle; const pending = new Promise(done => { settle = done })
const woken = pending.then(v => { globalThis.heard = v })
const weak = new WeakMap([[map, 'held']])
"""
LOOK = (
    "[next(), generator.next().value, [...map][0][1], typed[1], view.length, weak.get(map), "
    "typeof heard].join()"
)
SEEN = "'2,1,1,2,2.5,16,held,undefined'"


def test_undo_brings_back_closures_generators_and_pending_promises(javascript: BaseSandbox) -> None:
    javascript.execute(STATE)
    assert value(javascript, LOOK) == SEEN
    javascript.execute("typed[1] = 9; map.clear(); settle('yes'); await woken")
    assert value(javascript, "[heard, map.size].join()") == "'yes,0'"
    javascript.execute("%undo 3")
    assert value(javascript, LOOK) == SEEN
    assert value(javascript, "settle(3); await woken; heard") == "3"


def test_a_state_is_found_again_by_another_guest(opened: Opening) -> None:
    first = opened()
    first.execute(STATE)
    first.close()
    assert value(opened(resume="always"), LOOK) == SEEN


def test_a_state_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    with wasm_kernel.create_sandbox("javascript", tmp_path / "app") as sandbox:  # in a worker
        assert isinstance(sandbox, Sandbox)
        assert sandbox.execute(STATE).success
        wait_for(lambda: not sandbox.busy)
        fall_asleep(sandbox)  # everything is on disk
        assert sandbox.execute("1").success
        cell = sandbox.submit("await new Promise(done => setTimeout(done, 60_000))")
        wait_for(lambda: cell.running() or sandbox.busy)
        worker = sandbox.worker.worker
        assert worker is not None
        os.kill(worker.process, signal.SIGKILL)
        assert not cell.result(60).success
        assert shown(sandbox.execute(LOOK)) == SEEN


def test_forks_go_their_own_ways_with_numbers_of_their_own(opened: Opening) -> None:
    parent = opened()
    parent.execute(STATE)
    draw = "[Math.random(), Math.random(), crypto.randomUUID()].join()"
    fork, other = parent.fork(2)
    (same,) = parent.fork(deterministic=True)
    with fork, other, same:
        assert value(same, "Math.random()") == value(parent, "Math.random()")
        assert len({value(sandbox, draw) for sandbox in (parent, fork, other)}) == 3
        assert value(fork, LOOK) == SEEN


def test_new_sessions_draw_other_numbers(opened: Opening) -> None:
    drawn = {value(opened(str(number)), "Math.random()") for number in range(3)}
    assert len(drawn) == 3
