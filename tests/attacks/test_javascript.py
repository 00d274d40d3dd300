"""Hostile JavaScript: cells that use the agent's own functions to reach the host, or set traps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faces import process_of, put_back
from tests.peak import MB, Peak
from wasm_kernel import BaseSandbox, create_sandbox
from wasm_kernel.guests.javascript.modules import ModuleLoader, ModuleProblem

# Code can ask for a function on the stack: code that is called while the agent writes a frame finds
# the agent's `send`, and with it the channel to the host.
FIND_SEND = """
var send
Error.prepareStackTrace = (error, sites) => sites.map(site => site.getFunction())
const spy = { toJSON() { send = new Error().stack.find(f => f?.name === 'send'); return 1 } }
display.json({ spy })
Error.prepareStackTrace = undefined
"""


@pytest.fixture(scope="module")
def module_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSandbox]:
    folder = tmp_path_factory.mktemp("javascript")
    with create_sandbox("javascript", folder / "app", pip=True) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(module_sandbox: BaseSandbox) -> BaseSandbox:
    return put_back(module_sandbox)


def answers(sandbox: BaseSandbox, *frames: Any) -> list[dict[str, Any]]:
    """Returns the host's answers to frames that a cell sends by the agent's own function."""
    sandbox.execute(FIND_SEND)
    code = f"console.log(JSON.stringify({json.dumps(frames)}.map(frame => send(frame))))"
    result = sandbox.execute(code)
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_what_a_cell_forges_is_refused_or_reaches_no_further(sandbox: BaseSandbox) -> None:
    asked, commanded, shown = answers(
        sandbox,
        {"op": "next"},
        {"op": "command", "name": "npm", "line": "install lodash"},
        {"op": "result", "execution_count": 1, "data": {"text/plain": "forged"}},
    )
    assert "already handed over" in asked["refused"]
    assert "only done where it stands in the cell" in commanded["refused"]
    assert shown == {}  # the cell has shown an output, as by `display`
    assert all("refused" in answer for answer in answers(sandbox, *INVALID))
    assert sandbox.execute("1").success
    sandbox.execute(FIND_SEND)
    forged = {"op": "done", "reply": {"status": "ok", "execution_count": 10**6}}
    sandbox.execute(f"send({json.dumps(forged)}); console.log('after')")
    assert sandbox.execute("1 + 1").outputs[0].data["text/plain"] == "2"
    for text in ("let a: " + "(" * 9_000, "type A = " + "[" * 9_000, "let s: string = '\0'; <"):
        assert sandbox.execute(text).error is not None
    assert sandbox.execute("let n: number = 3; n").outputs[0].data["text/plain"] == "3"


INVALID: list[dict[str, Any]] = [
    {"op": "nothing"},
    {"op": 7},
    {},
    {"op": "immortal", "addresses": "AAAA"},
    {"op": "display", "data": {"text/plain": 5}},
    {"op": "display", "data": []},
    {"op": "command"},
    {"op": "comm_target", "name": "\x1b[0m"},
    {"op": "limit", "seconds": -1},
]


def test_the_agents_own_step_and_left_properties_harm_no_later_turn(sandbox: BaseSandbox) -> None:
    code = """
    let found
    Error.prepareStackTrace = (error, sites) => sites.map(site => site.getFunction())
    ;({ [Symbol.for('Jupyter.display')]() {
      found = new Error().stack.find(f => f?.name === 'step')
      Error.prepareStackTrace = undefined
      const events = ['begin', 'jobs', 'promise', 'stripped', 'interrupted']
      for (const event of events) found?.(event, event)
      return { 'text/plain': 'x' }
    } })
    """
    sandbox.execute(code)
    assert sandbox.execute("1 + 1").outputs[0].data["text/plain"] == "2"
    leave = """
    Object.defineProperty(Object.prototype, 'then', { get() { for (;;); }, configurable: true })
    """
    sandbox.execute(leave, timeout_seconds=0.5)
    assert sandbox.execute("({ a: 1 })").outputs[0].data["text/plain"] == "{ a: 1 }"


def test_nothing_of_the_agent_can_be_imported_or_named(sandbox: BaseSandbox) -> None:
    code = """
    const all = Object.getOwnPropertyNames(globalThis)
    const names = all.filter(name => name.startsWith('wasmKernel'))
    const tries = ['wasm-kernel:host', 'wasm-kernel:agent', './wasm-kernel:host', 'node:../host']
    const got = []
    for (const name of tries) await import(name).then(() => got.push(name), () => {})
    console.log(JSON.stringify([names, got]))
    """
    assert json.loads(sandbox.execute(code).stdout) == [[], []]


def test_the_host_looks_at_hostile_texts_once(sandbox: BaseSandbox) -> None:
    """No time-out reaches the host while it reads a module or answers a question about files."""
    code = """
    const fs = require('fs')
    fs.writeFileSync('lines.js', '\\n'.repeat(200_000))
    fs.writeFileSync('blanks.js', 'module.exports = {' + ' '.repeat(200_000))
    fs.writeFileSync('commas.js', 'module.exports = {' + ' ,'.repeat(100_000) + '}; export')
    for (const name of ['lines', 'blanks', 'commas']) await import(`./${name}.js`).catch(() => {})
    const long = '/app' + '/a'.repeat(50_000)
    const tries = [() => require(long), () => fs.readFileSync(long), () => process.chdir(long)]
    const told = tries.map(each => { try { each() } catch (problem) { return problem.message } })
    Array.prototype.toJSON = () => '['.repeat(70_000)
    try { fs.readFileSync('x') } catch (problem) { told.push(problem.message) }
    delete Array.prototype.toJSON
    told.map(text => text.slice(0, 20)).join()
    """
    (shown,) = sandbox.execute(code).outputs
    assert shown.data["text/plain"] == ("'The name of a module" + ",ENAMETOOLONG: file n" * 3 + "'")


def test_names_of_packages_take_little_of_the_host(sandbox: BaseSandbox) -> None:
    """Formerly, a manifest of 100 kB took 7 GB."""
    code = """
    const fs = require('fs')
    fs.mkdirSync('/app/node_modules/stars', { recursive: true })
    const stars = { exports: { './*': '*'.repeat(20_000) } }
    fs.writeFileSync('/app/node_modules/stars/package.json', JSON.stringify(stars))
    """
    assert sandbox.execute(code).success
    peak = Peak(process_of(sandbox))
    sandbox.execute("await import('stars/' + 'x'.repeat(4000)).catch(each => each.name)")
    assert peak.grown < 64 * MB


def test_a_search_for_a_package_ends_with_the_cell() -> None:
    """Formerly, one import in a deep folder took 45 seconds, whatever the time-out."""
    asked: list[str] = []

    def files() -> Any:
        asked.append("")
        raise FileNotFoundError

    loader = ModuleLoader({}, files, str, lambda: len(asked) > 2)
    with pytest.raises(ModuleProblem, match="stopped"):
        loader.resolve("/a" * 1000 + "/m.js", "nothing")
    assert len(asked) < 5


def test_a_broken_agent_costs_the_cell_alone(sandbox: BaseSandbox) -> None:
    sandbox.execute("var kept = 1")
    breaking = "Array.prototype.filter = () => [{ at: {} }]; setTimeout(() => {}, 1); await null"
    sandbox.execute(breaking, timeout_seconds=0.5)
    sandbox.execute("String.prototype.padEnd = () => ''; Array.prototype.push = () => 1")
    sandbox.restore("the beginning of a test")
    assert sandbox.execute("typeof kept").outputs[0].data["text/plain"] == "'undefined'"


@pytest.mark.parametrize(
    "code",
    [
        "Array.prototype.toJSON = () => { throw 1 }",
        "Object.defineProperty(Array.prototype, '0', { set() { throw 1 }, configurable: true })",
        "for (const key of Reflect.ownKeys(String.prototype)) delete String.prototype[key]",
    ],
)
def test_poisoned_prototypes_cost_no_cell_its_variables(sandbox: BaseSandbox, code: str) -> None:
    sandbox.execute("var kept = 1")
    assert sandbox.execute(f"kept = 2; {code}; undefined").success
    later = sandbox.execute("let shown = kept; shown")
    assert later.error is None or later.error.ename != "GuestCrashed"
    sandbox.execute("%undo 2")
    assert sandbox.execute("kept").outputs[0].data["text/plain"] == "1"


def test_no_private_path_is_told(sandbox: BaseSandbox, tmp_path: Path) -> None:
    code = "await import('./' + 'x'.repeat(3000)).catch(e => String(e))"
    told = sandbox.execute(f"{code}; require('fs').readdirSync('/tmp').join()")
    assert str(sandbox.workspace) not in str(told.outputs) + str(told.error)
