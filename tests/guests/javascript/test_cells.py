"""Cells of JavaScript and TypeScript: their values, their output, their errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import wasm_kernel
from tests.attacks.conftest import Victim
from tests.faces import error_of, fall_asleep, says, traceback_of, wait_for
from tests.guests.javascript.conftest import Opening, problem, shown, value
from wasm_kernel import BaseSandbox
from wasm_kernel.service.sandbox import Sandbox

VALUES = {
    "let a = 1; const b = 2; a + b": "3",
    "const { x, y: [z] } = { x: 1, y: [2] }; x + z": "3",
    "await Promise.resolve(7)": "7",
    "undefined": "",
    "const r = /[/]`/g.source; r": "'[/]`'",
    "await new Promise(done => setTimeout(() => done('late'), 5))": "'late'",
}


def test_the_last_value_is_shown_with_types_and_if_it_lies(javascript: BaseSandbox) -> None:
    assert {code: value(javascript, code) for code in VALUES} == VALUES
    assert {code: value(javascript, code) for code in TYPED} == TYPED
    for code in LYING:
        assert 0 < len(shown(javascript.execute(code))) < 500_000, code


TYPED = {
    "interface P { x: number }\nconst p: P = { x: 1 }; p.x": "1",
    "enum Color { Red, Green = 'g' }; Color.Green": "'g'",
    "function id<T>(v: T): T { return v as T }\nid<number>(3)": "3",
    "class Q { constructor(private n: number) {} get() { return this.n } }; new Q(8).get()": "8",
}


def test_declarations_may_be_repeated_and_are_seen_in_later_cells(javascript: BaseSandbox) -> None:
    for number in (1, 2):
        javascript.execute(f"const c = {number}; let l = {number}; class K {{ n = {number} }}")
        javascript.execute(f"function f() {{ return {number} }}")
        assert (
            value(javascript, "[c, l, new K().n, f()].join()") == f"'{','.join([str(number)] * 4)}'"
        )
    javascript.execute("let l")
    assert value(javascript, "typeof l") == "'undefined'"


def test_prints_rejections_and_timeouts_are_heard_in_order(javascript: BaseSandbox) -> None:
    result = javascript.execute(
        "console.log('a', { b: [1] }); console.error('%d!', 3); console.log()"
    )
    assert (result.stdout, result.stderr) == ("a { b: [ 1 ] }\n\n", "3!\n")
    result = javascript.execute("for (let i = 0; i < 1e4; i++) Promise.reject(i); 1")
    assert (result.success, result.stderr.count("\n")) == (True, 11)
    assert problem(javascript, "Promise.reject(2); throw 3") == "Uncaught: 3"
    code = "setTimeout(() => console.log('fired'), 5); setInterval(() => {}, 1000); 1"
    assert says(javascript, code) == "fired"


def test_errors_name_cells_and_lines_as_typed_also_in_typescript(javascript: BaseSandbox) -> None:
    javascript.execute("\n\nfunction thrower(n) {\n  throw new RangeError('no ' + n)\n}")
    number = javascript.next_count
    result = javascript.execute("// one\n\nthrower(1)")
    assert error_of(result) == "RangeError: no 1"
    assert [line.strip() for line in traceback_of(result)[-2:]] == [
        f"at thrower (In[{number - 1}]:4:32)",
        f"at In[{number}]:3:1",
    ]
    number = javascript.next_count
    code = (
        "interface One {\n  a: number\n}\ntype Two = {\n  b: string\n}\n"
        "function f<T>(v: T): T {\n\n  if (!v) throw new Error('x')\n  return v\n}\n\nf<number>(0)"
    )
    traceback = traceback_of(javascript.execute(code))
    assert [line.split("In")[1].rsplit(":", 1)[0] for line in traceback[-2:]] == [
        f"[{number}]:9",
        f"[{number}]:13",
    ]


def test_a_cell_is_stopped_while_its_types_are_taken_out(javascript: BaseSandbox) -> None:
    javascript.execute("var kept = 7")
    code = "type A = [" + "string, " * 50_000 + "]"
    assert error_of(javascript.execute(code, timeout_seconds=0.2)).startswith("CellTimeout:")
    assert value(javascript, "kept") == "7"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("nothing.x", "ReferenceError: nothing is not defined"),
        ("Object.prototype.failed = true; nothing", "ReferenceError: nothing is not defined"),
        (
            "delete Array.prototype[Symbol.iterator]; nothing",
            "ReferenceError: nothing is not defined",
        ),
        ("require('fs').readFileSync('\\ud800')", "Error: EILSEQ: not a name"),
        (
            "({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': 5 }) })",
            "Error: The value was not shown: the content of 'text/html' is not text",
        ),
        (
            "let x9 = 1\n!pip install x",
            "SyntaxError: Expected a semicolon or an implicit semicolon after",
        ),
        ("!ls", "ReferenceError: ls is not defined. There is no shell here"),
        ("let x9 = 1\n%undo", "ReferenceError: undo is not defined. Commands such as %undo stand"),
        ("setTimeout(() => { throw new Error('timer') }, 1)", "Error: timer"),
        ("await new Promise(() => {})", "Error: The cell awaits a promise that nothing is left"),
        ("await fetch('https://example.org')", "TypeError: fetch is not available: cells have no"),
    ],
)
def test_errors(javascript: BaseSandbox, code: str, text: str) -> None:
    assert problem(javascript, code).startswith(text)
    assert value(javascript, "'goes on'") == "'goes on'"


@pytest.mark.parametrize(
    ("code", "text", "place"),
    [
        ("let a = 1\nlet b = (\n", "Expected `)` but found the end of the text", "2:10"),
        ("let ä = '😀'; if (ä {\n}", "Expected `)` but found `{`", "1:21"),
        ("f(x => 1,\n  /* a ( */ y z)", "Expected `,` or `)` but found `Identifier`", "2:15"),
        (
            "type A = 1\nfunction f<T>(x: T { return x }",
            "Expected `,` or `)` but found `{`",
            "2:20",
        ),
        ("%policy\nexport const x: string =", "Unexpected end of the text", "2:25"),
    ],
)
def test_syntax_errors_say_where(javascript: BaseSandbox, code: str, text: str, place: str) -> None:
    result = javascript.execute(code)
    assert error_of(result) == f"SyntaxError: {text}"
    assert traceback_of(result)[-1].endswith(f"]:{place}")
    line = code.split("\n")[int(place.partition(":")[0]) - 1]
    assert line in traceback_of(result)[1]


def test_a_syntax_error_is_one_after_a_cell_has_broken_the_agent(javascript: BaseSandbox) -> None:
    javascript.execute("Array.prototype.map = null")
    assert problem(javascript, "'x' + ;") == "SyntaxError: Unexpected token"
    javascript.execute("%undo")


COMMANDS = {
    "%pip install x": "%npm install NAME brings packages of JavaScript",
    "%timeit 1": "console.time(NAME)",
    "%prune_sessions --older-than 1h": "Here, the program that runs this session removes old",
    "%nonsense": "There is no command %nonsense here. There are %checkpoint, ",
}


def test_a_command_that_is_not_there_says_what_is(javascript: BaseSandbox) -> None:
    for code, text in COMMANDS.items():
        said = problem(javascript, code)
        assert said.startswith("UsageError: ")
        assert text in said


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "async function f() { throw new RangeError('lost') }\nf(); 1",
            "RangeError: lost\n    at f",
        ),
        ("Promise.resolve().then(() => { throw 'text' }); 1", "'text'\n"),
        ("await Promise.allSettled([Promise.reject(1)]); await import('./x').catch(() => 1)", ""),
        ("Promise.reject(5)", ""),  # shown as the value of the cell
    ],
)
def test_rejected_promises_are_told(javascript: BaseSandbox, code: str, told: str) -> None:
    result = javascript.execute(code)
    assert result.success, result.error
    assert result.stderr.startswith(told and f"Uncaught (in promise) {told}")
    assert bool(result.stderr) == bool(told)
    assert javascript.execute("1").stderr == ""


@pytest.mark.parametrize(
    "code",
    [
        "for (;;) { try { for (;;); } catch { } finally { } }",
        "/(a+)+$/.test('a'.repeat(40) + 'b')",
        "await new Promise(done => setTimeout(done, 60_000))",
    ],
)
def test_an_interrupt_ends_the_cell_and_nothing_else(javascript: BaseSandbox, code: str) -> None:
    javascript.execute("var kept = [1]")
    result = Victim(javascript).run(f"kept.push(2); console.log('on'); {code}", interrupt="on")
    assert error_of(result) == "KeyboardInterrupt: "
    assert value(javascript, "kept") == "[ 1, 2 ]"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("let p = {}; for (let i = 0; i < 1e4; i++) p = new Proxy(p, {}); p.x", "RangeError"),
        ("'x'.repeat(2 ** 30)", "RangeError"),
    ],
)
def test_code_that_goes_too_deep_raises_an_error_like_others(
    javascript: BaseSandbox, code: str, error: str
) -> None:
    javascript.execute("var before = 1")
    assert problem(javascript, code).startswith(error)
    assert value(javascript, "before") == "1"


def test_memory_that_is_not_there_is_an_error_like_others(opened: Opening) -> None:
    sandbox = opened(memory_bytes=512 * 2**20)
    sandbox.execute("var kept = 1")
    error = problem(sandbox, "const a = []; for (;;) a.push(new Uint8Array(1e8))")
    assert error.startswith("OutOfMemory: ")
    assert value(sandbox, "new Uint8Array(10**8).length - 1e8 + kept") == "1"
    assert "out of memory" in problem(sandbox, "kept += 1; new Uint8Array(2 ** 30)")
    assert value(sandbox, "kept") == "2"


def test_fuel_is_counted_in_cells_and_for_their_types(opened: Opening) -> None:
    sandbox = opened(fuel_budget=5 * 10**8)
    sandbox.execute("var kept = 1")
    assert problem(sandbox, "for (;;);").startswith("OutOfFuel: ")
    plain, typed = (sandbox.execute(f"let a{kind} = 1").fuel_consumed for kind in ("", ": number"))
    assert plain is not None
    assert typed is not None
    assert 0 < 2 * plain < typed
    assert value(sandbox, "kept") == "1"


def test_the_limit_of_time_is_a_typed_error(opened: Opening) -> None:
    sandbox = opened()
    sandbox.execute("var kept = 1")
    for code in ("for (;;);", "await new Promise(done => setTimeout(done, 9e5))"):
        assert error_of(sandbox.execute(code, timeout_seconds=0.2)).startswith("CellTimeout:")
    assert value(sandbox, "kept") == "1"


LYING = [
    "new Proxy({}, { get() { throw 1 }, ownKeys() { throw 2 }, getPrototypeOf() { throw 3 } })",
    "const c = {}; c.c = c; c.m = new Map([[c, c]]); c",
    "let deep = {}; for (let i = 0; i < 1e5; i++) deep = { deep }; deep",
    "Array.from({ length: 1e4 }, () => 'x'.repeat(100))",
    "new Array(2 ** 32 - 1)",
    "new Float64Array(1e7)",
    "const e = new AggregateError([]); e.errors = [e, e]; e.cause = e; e",
]


def test_no_getter_runs_to_show_a_value_or_an_error(javascript: BaseSandbox) -> None:
    code = """
    var ran = []
    const spied = (value, ...names) => {
      for (const name of names) Object.defineProperty(value, name, { get() { ran.push(name) } })
      return value
    }
    console.log([
      spied(new Uint8Array(2), 'length'), spied(/x/gi, 'flags', 'source'), spied({}, 'a'),
      spied(new Map(), 'size'), spied(new Date(0), 'getTime'), spied(() => 1, 'name'),
      spied(new Error('shown'), 'cause', 'errors', 'stack', 'name'),
    ])
    throw spied(new Error(), 'message', 'stack', 'name', 'cause')
    """
    result = javascript.execute(code)
    assert "Uint8Array(2) [ 0, 0 ]" in result.stdout
    assert "/x/gi" in result.stdout
    assert value(javascript, "ran") == "[]"


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


def test_a_state_is_found_again_and_new_sessions_draw_other_numbers(opened: Opening) -> None:
    first = opened()
    first.execute(STATE)
    first.close()
    assert value(opened(resume="always"), LOOK) == SEEN
    drawn = {value(opened(str(number)), "Math.random()") for number in range(3)}
    assert len(drawn) == 3


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
