"""ATTACKS 22-24, 26-27, 29: a cell's outputs are bounded, and are text that can be carried."""

from __future__ import annotations

import json

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faces import error_of
from tests.faults import faulty
from tests.peak import MB
from tests.sampled import sampled

RSS = 400 * MB  # bytes by which the host may grow


@pytest.mark.parametrize(
    "code",
    [
        "import os\nline = b'x' * 10**6\nfor fd in [1, 2] * 200: os.write(fd, line)",
        "import sys\nfor i in range(4_500): print(i, 'x' * 300); print('x' * 300, file=sys.stderr)",
    ],
)
def test_case_22_endless_text_is_cut_with_one_notice(victim: Victim, code: str) -> None:
    peak = victim.peak()
    result = victim.run(code)
    for text, setting in ((result.stdout, "stdout_bytes"), (result.stderr, "stderr_bytes")):
        assert len(text) < 1.2 * (1 << 20)
        assert text.count(setting) == 1
    assert peak.grown < RSS


@pytest.mark.parametrize("shown", ["display(1)", "clear_output()"])
def test_case_22_endless_displays_are_bounded_and_can_be_interrupted(
    victim: Victim, shown: str
) -> None:
    peak = victim.peak()
    code = f"from IPython.display import clear_output\nfor i in range(10**6): {shown}"
    result = victim.run(code, interrupt="dropped")
    assert error_of(result).startswith("KeyboardInterrupt:")
    assert len(result.outputs) <= 1002
    assert len(result.stderr) < 1.2 * (1 << 20)
    assert peak.grown < RSS


def test_case_22_a_cap_on_displays_names_its_setting_once(victim: Victim) -> None:
    result = victim.run("for i in range(1200): display(i)")
    assert len(result.outputs) == 1000
    assert "display_count" in result.stderr
    assert len(result.stderr) < 1000


def test_case_22_an_error_flood_is_bounded(fresh_victim_of: Making) -> None:
    show = "get_ipython()._showtraceback(ValueError, ValueError('x'), ['y' * 10**5])"
    with faulty(execution__limits__ERROR_BYTES=1 << 20):
        victim = fresh_victim_of()
        victim.says("1")
        peak = victim.peak()
        assert victim.run(f"for _ in range(14): {show}").stderr.count("display_bytes") == 1
        assert peak.grown < RSS


def test_case_22_the_whole_text_goes_to_a_file_if_asked_for(fresh_victim_of: Making) -> None:
    keeping = fresh_victim_of(text_file_bytes=64 << 20, cell_timeout=120.0)
    result = keeping.run("for i in range(3_000): print('line', i, 'x' * 400)")
    assert "/app/output-1-stdout.txt" in result.stdout
    lines = (keeping.app / "output-1-stdout.txt").read_text().splitlines()
    assert len(lines) == 3_000
    assert lines[-1].startswith("line 2999 ")
    keeping.lives()


TEXTS = {
    r"import os; os.write(1, b'a\xffb');": "a\ufffdb",
    r"import os; os.write(1, b'\xe2'); os.write(1, b'\x82'); os.write(1, b'\xac');": "€",
    r"import sys; sys.stdout.buffer.write(b'\xf0\x9f'); sys.stdout.flush();": "\ufffd",
    r"print('a\0b\x07');": "a\0b\x07\n",
}


def test_case_23_bytes_become_text(victim: Victim) -> None:
    for code, text in TEXTS.items():
        assert victim.run(code).stdout == text


def test_case_23_a_lone_surrogate_can_be_run_printed_and_sent(victim: Victim) -> None:
    victim.run("x = '\ud800'")  # is an error or runs
    result = victim.run(r"print('a\ud800b'); 'c\udfffd'")
    result.stdout.encode()
    for output in result.outputs:
        str(output.data).encode()


def test_case_23_a_cell_of_megabytes_runs(victim: Victim) -> None:
    assert victim.says(f"big = {'x' * 3_000_000!r}; print(len(big)); big = None") == "3000000"


BUNDLES = [
    "{1: 'x', None: 'y', b'z': 'z', 'text/plain': 'ok'}",
    "{'image/png': b'\\x89PNG', 'text/plain': 'ok'}",
    "{'application/json': float('nan'), 'text/plain': 'ok'}",
    "{'application/json': object(), 'text/plain': 'ok'}",
    "(lambda l: (l.append(l), {'application/json': l, 'text/plain': 'ok'})[1])([])",
    "{'text/html': 5, 'text/plain': 'ok'}",
    "{'application/x-unknown': 'x', 'text/plain': 'ok'}",
    "{'application/json': eval('[' * 80 + ']' * 80), 'text/plain': 'ok'}",
    "{'application/json': __import__('numpy').ones(3), 'text/plain': 'ok'}",
    "{'x/' + 'y' * 10**6: 'x', 'text/plain': 'ok'}",
    "5",
    "{'text/plain': 'ok', 'text/\\ud800': 'x\\ud800'}",
]


def test_case_24_an_odd_bundle_is_carried_or_dropped(victim: Victim) -> None:
    for bundle in BUNDLES:
        result = victim.run(f"display({bundle}, raw=True)")
        for output in result.outputs:
            json.dumps(dict(output.data), allow_nan=False).encode()
            json.dumps(dict(output.metadata), allow_nan=False).encode()


def test_case_24_an_image_of_500_mb_is_refused(victim_of: Making) -> None:
    large = victim_of(memory_bytes=2048 << 20, display_bytes=256 << 20)
    peak = large.peak()
    result = large.run("display({'image/png': 'x' * (500 << 20)}, raw=True)")
    assert sum(len(str(output.data)) for output in result.outputs) < 1 << 20
    assert peak.grown < 2 * 2048 * MB
    large.lives()


BODIES = [
    "raise ValueError",
    "return 5",
    "raise KeyboardInterrupt",
    "while True: pass",
    "return '\\x1b]52;c;eA==\\x07'",
    "import sys; sys.setrecursionlimit(10**9); return repr(self)",
]


@pytest.mark.parametrize("body", sampled({body: body for body in BODIES}, 2))
def test_case_24_a_hostile_repr_costs_its_cell_at_most(victim_of: Making, body: str) -> None:
    brief = victim_of(cell_timeout=0.5)
    brief.run(f"class A:\n  def __repr__(self):\n    {body}\nA()")
    brief.lives()


def test_case_24_a_hostile_dir_or_repr_costs_a_question_at_most(victim_of: Making) -> None:
    slow = victim_of(query_seconds=0.3)
    slow.says("class A:\n  def __dir__(self):\n    while True: pass\n  __repr__ = __dir__\na = A()")
    inspect = {"op": "inspect", "code": "a", "cursor_pos": 1, "detail_level": 0}
    for request in (
        {"op": "complete", "code": "a.", "cursor_pos": 2},
        {**inspect, "omit_sections": []},
    ):
        slow.sandbox.query(request).exception(15)
        slow.lives()


PAYLOADS = [
    "get_ipython().set_next_input('x' * (70 << 20))",
    (
        "for _ in range(4_000): get_ipython().payload_manager.write_payload("
        "{'source': 'page', 'data': {'text/plain': 'x' * 5000}}, single=False)"
    ),
]


def test_case_27_payloads_are_capped(victim: Victim) -> None:
    for code in PAYLOADS:
        assert len(json.dumps(dict(victim.run(code).reply))) < 80 << 20
