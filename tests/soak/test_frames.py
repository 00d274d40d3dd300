"""For some minutes, cells send nonsense frames of all kinds to the host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces import process_of
from tests.peak import MB, Peak
from tests.sampled import lasting
from wasm_kernel import Sandbox, create_sandbox
from wasm_kernel.policy import ExecutionPolicy

pytestmark = pytest.mark.soak

GROWTH = 600 * MB

FUZZ = """
import _host, json, random
dice = random.Random({seed})
ops = ['next', 'display', 'update_display', 'clear_output', 'result', 'error', 'limit', 'input',
       'done', 'terminate', 'command', 'immortal', 'boot', 'nothing', '', None, 5, []]
keys = ['op', 'data', 'metadata', 'transient', 'execution_count', 'ename', 'evalue', 'traceback',
        'prompt', 'password', 'seconds', 'fuel', 'wait', 'reply', 'line', 'name', 'cells']
def value(depth=0):
    kind = dice.randrange(13 if depth < 4 else 9)
    if kind == 0: return None
    if kind == 1: return dice.choice([True, False])
    if kind == 2: return dice.choice([0, -1, 2**31, 2**63, 2**70, 10**300])
    if kind == 3: return dice.choice([0.5, -1e308, 1e-300])
    if kind < 7: return dice.choice(['', 'x', 'text/plain', '\\x00', '\\ud800', '../../x', 'ok'])
    if kind == 7: return 'x' * dice.randrange(2000)
    if kind == 8: return dice.choice(['error', 'undo', 'restore', 'image/png', 'a/json'])
    if kind < 11: return [value(depth + 1) for _ in range(dice.randrange(4))]
    return {{dice.choice(keys + ['text/plain', 'a/json']): value(depth + 1)
            for _ in range(dice.randrange(5))}}
def frame():
    made = {{dice.choice(keys): value() for _ in range(dice.randrange(7))}}
    made['op'] = dice.choice(ops)
    if made['op'] in ('limit', 'input', 'terminate', 'done', 'command') and dice.random() < 0.9:
        made['op'] = 'display'
    data = json.dumps(made).encode()
    if dice.random() < 0.3:
        data = bytearray(data)
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(data))
            what = dice.randrange(3)
            if what == 0: data[at] = dice.randrange(256)
            elif what == 1: del data[at:at + dice.randrange(9)]
            else: data[at:at] = bytes(dice.randrange(256) for _ in range(dice.randrange(9)))
            if not data: break
    return bytes(data)
for _ in range(3000):
    try: json.loads(_host.call(frame()))
    except OSError: pass
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox with small limits."""
    policy = ExecutionPolicy(cell_timeout=20.0, display_count=500, display_bytes=1 << 20)
    made = create_sandbox(workspace=tmp_path / "app", policy=policy)
    made.start().result(600)
    yield made
    made.close()


def test_no_frame_hurts_the_host_or_another_cell(sandbox: Sandbox) -> None:
    sandbox.execute("mine = 1")
    peak = Peak(os.getpid(), process_of(sandbox))
    for seed in lasting(2):
        sandbox.execute(FUZZ.format(seed=seed))
        result = sandbox.execute(f"print({seed})")
        assert result.stdout.endswith(f"{seed}\n"), (seed, result.error)
        assert [output.kind for output in result.outputs] == []
    assert peak.grown < GROWTH
