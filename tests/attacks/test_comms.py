"""ATTACKS 17, 18, 19, 22, 24 on comms: the page gets only allowed messages; the host survives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faults import faulty
from tests.listening import Page
from tests.peak import MB
from tests.sampled import sampled
from wasm_kernel import FrameError
from wasm_kernel.result import CommKind, CommMessage

RSS = 768 * MB  # bytes for guest and host together; the guest alone may have as much
SECONDS = 30
FORGE = "import _host, json\ndef send(**f): return json.loads(_host.call(json.dumps(f).encode()))\n"


def move(victim: Victim, value: Any, comm_id: str = "s1") -> Page:
    page = Page()
    data = {"method": "update", "state": {"value": value}, "buffer_paths": []}
    victim.sandbox.comm(CommMessage("msg", comm_id, data), listener=page).result(SECONDS)
    return page


FLOODS = {  # by cells, the texts that they print when the test should interrupt them
    "messages": ("c = create_comm('t')\nfor i in range(10**6): c.send({'i': i})", "dropped"),
    "comms": ("for i in range(10**6): create_comm('t')", "dropped"),
    "targets": (
        "for i in range(10**6): get_comm_manager().register_target(f't{i}', print)",
        "refused",
    ),
    "buffers": (
        "c = create_comm('t'); b = bytes(30 << 20)\nwhile True: c.send({}, buffers=[b])",
        "dropped",
    ),
    "widgets": ("import ipywidgets as w\nwhile True: w.IntSlider()", "dropped"),
}


@pytest.mark.parametrize(("code", "word"), sampled(FLOODS, 5))
def test_case_22_a_flood_is_bounded_and_ended(victim_of: Making, code: str, word: str) -> None:
    flooded = victim_of(comm_count=5000, comm_bytes=64 << 20)
    page, peak = Page(), flooded.peak()
    start = "from comm import create_comm, get_comm_manager\nprint('begun')\n"
    result = flooded.run(start + code, interrupt=word, listener=page)
    assert len(page.said) <= 5000
    assert sum(len(b) for m in page.said for b in m.buffers) <= 64 << 20
    assert page.text.count("the rest is dropped") <= 1
    assert len(result.stderr) < 1000
    assert peak.grown < RSS
    flooded.lives()


def test_case_22_a_number_of_comms_may_be_open(fresh_victim_of: Making) -> None:
    with faulty(execution__comms__COMMS_MOST=500):
        many, page = fresh_victim_of(), Page()
        code = "from comm import create_comm\nkeep = [create_comm('t') for _ in range(600)]"
        many.run(code, listener=page)
        assert len(page.said) == 500
        assert len(many.sandbox.comms().result(SECONDS)) <= 500
        many.lives()


def test_case_22_a_flood_in_a_callback_ends_with_it(victim_of: Making) -> None:
    flooded = victim_of(comm_count=1000, comm_seconds=0.7)
    flooded.says(
        "import ipywidgets as w; s = w.IntSlider(model_id='s1'); t = w.IntText()\n"
        "def flood(c):\n    i = 0\n    while True: i += 1; t.value = i; print(i)\n"
        "s.observe(flood, 'value')"
    )
    page = move(flooded, 5)
    assert len(page.said) <= 1000
    assert "comm_seconds" in page.text
    assert "stdout" not in flooded.says("print(s.value)")


FORGED = {
    "another comm": "print(send(op='comm_msg', comm_id='not mine', data={}))",
    "no id": "print(send(op='comm_open', target_name='t', data={}))",
    "a strange id": "print(send(op='comm_open', comm_id='\\x1b[2J', target_name='t'))",
    "data is text": "print(send(op='comm_msg', comm_id='c', data='x'))",
    "deep data": 'print(_host.call(b\'{"op":"comm_msg","comm_id":"c","data":{"a":\''
    " + b'[' * 10**5 + b']' * 10**5 + b'}}'))",
    "a request": "print(send(op='comm', kind='msg', comm_id='c', data={}))",
    "an answer": "print(send(op='comms', open=[]))",
    "buffers": "print(send(op='comm_open', comm_id='c', target_name='t', buffers=['!']))",
    "a parent": "print(send(op='comm_open', comm_id='c', target_name='t', parent={'msg_id': 'x'}))",
}


def test_case_18_a_forged_frame_or_opening_speaks_for_its_own_cell_alone(victim: Victim) -> None:
    for name, code in FORGED.items():
        page = Page()
        result = victim.run(FORGE + code, listener=page)
        assert "refused" in result.stdout or all(m.comm_id == "c" for m in page.said), name
    first, second = Page(), Page()
    victim.run(FORGE + "send(op='comm_open', comm_id='f1', target_name='t')", listener=first)
    assert [message.kind for message in first.said] == ["open"]
    victim.run("1", listener=second)
    assert not second.said
    assert move(victim, 1, "f1").text == "No such comm: f1\n"


BROKEN = {
    "no manager": "import comm; comm.get_comm_manager = None",
    "manager emptied": "vars(get_ipython().kernel.comm_manager).clear()",
    "comms are not a dict": "get_ipython().kernel.comm_manager.comms = 5",
    "handlers raise": "type(get_ipython().kernel.comm_manager).comm_msg = lambda *a: 1 / 0",
    "handlers exit": "import os; s.comm.on_msg(lambda m: os._exit(3))",
    "state never ends": "def f(*a, **k):\n  while True: pass\ntype(s).send_state = f",
    "state is odd": "type(s).send_state = lambda *a: s.comm.send({'x': [[]]}, buffers=[b''])",
}


@pytest.mark.parametrize("code", sampled(BROKEN, 3))
def test_case_17_broken_comms_cost_widgets_at_most(victim_of: Making, code: str) -> None:
    broken = victim_of(comm_seconds=0.5)
    broken.says("import ipywidgets as w; s = w.IntSlider(model_id='s1'); mine = 17")
    broken.run(code)
    move(broken, 5)
    broken.run("%undo")
    broken.run("import os; os._exit(1)")
    move(broken, 6)
    assert broken.says("print(mine)") == "17"
    broken.lives()


CARRIED = {
    "bytes": "b'x'",
    "a set": "{1, 2}",
    "a surrogate": "'\\ud800'",
    "nan": "float('nan')",
    "an odd key": "{1: 2, None: 3}",
}
NOT_CARRIED = {
    "an object": "object()",
    "itself": "(lambda x: (x.append(x), x)[1])([])",
    "deep": "eval('[' * 70 + ']' * 70)",
    "70 MB": "'x' * (70 << 20)",
}


def sent(victim: Victim, value: str) -> tuple[list[CommKind], str]:
    """The messages that a page gets when a cell sends this value, and what the cell prints."""
    page, peak = Page(), victim.peak()
    code = f"c = create_comm('t', comm_id='odd')\nc.send({{'x': {value}}})\nc.close()"
    result = victim.run(f"from comm import create_comm\n{code}", listener=page)
    assert peak.grown < 2 * RSS
    kinds = [message.kind for message in page.said]
    victim.run("c.close()")
    return kinds, result.stderr + (result.error.ename if result.error else "")


def test_case_24_odd_data_is_carried_or_told_in_its_cell(victim: Victim) -> None:
    for name, value in CARRIED.items():
        assert sent(victim, value) == (["open", "msg", "close"], ""), name
    for name, value in NOT_CARRIED.items():
        kinds, told = sent(victim, value)
        assert "msg" not in kinds, name
        assert any(word in told for word in ("NotSendable", "FrameTooLarge", "refused")), name


def test_case_19_what_a_page_sends_harms_no_guest_however_deep_it_is(victim: Victim) -> None:
    victim.says("import ipywidgets as w; s = w.IntSlider(model_id='s1')")
    odd: list[dict[str, Any]] = [{"method": "update", "state": 5}, {"method": []}, {}]
    for data in (*odd, {"state": {"value": "x"}}):
        message = CommMessage("msg", "s1", data)
        victim.sandbox.comm(message, listener=Page()).result(SECONDS)
    assert victim.says("print(s.value)") == "0"
    victim.says("import ipywidgets as w; s = w.IntSlider(model_id='s1')")
    for depth in (100, 975, 985, 987, 5000):
        deep: Any = []
        for _ in range(depth):
            deep = [deep]
        with pytest.raises(FrameError, match="nested too deeply"):
            move(victim, deep)
        assert victim.says("print(s.value)") == "0"
