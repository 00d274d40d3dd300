"""Comms under ordinary CPython: the messages that widgets send, and how they handle messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Serve = Callable[..., list[Any]]
Cell = Callable[..., dict[str, Any]]

SLIDER = "import ipywidgets as w\ns = w.IntSlider(value=3, model_id='s1')"
PARENT = {"msg_id": "m7", "msg_type": "comm_msg"}


def update(comm_id: str, **state: Any) -> dict[str, Any]:
    data = {"method": "update", "state": state, "buffer_paths": []}
    return {"op": "comm", "kind": "msg", "comm_id": comm_id, "data": data, "parent": PARENT}


def states(turn: Any) -> list[tuple[str, dict[str, Any]]]:
    """Each update that was sent: the comm's id, and the state in it."""
    return [(f["comm_id"], f["data"]["state"]) for f in turn.sent("comm_msg")]


def test_a_change_in_a_callback_goes_out_and_is_not_sent_back(serve: Serve) -> None:
    _, moved = serve(
        f"{SLIDER}\nt = w.IntText(model_id='t1')\nw.link((s, 'value'), (t, 'value'))",
        update("s1", value=9),
    )
    assert ("t1", {"value": 9}) in states(moved)


def test_an_output_widget_captures_by_the_id_of_the_request(serve: Serve, make_cell: Cell) -> None:
    _, cell, moved = serve(
        "import ipywidgets as w\no = w.Output(model_id='o1'); s = w.IntSlider(model_id='s1')\n"
        "@o.capture()\ndef show(change): print(change.new)\ns.observe(show, 'value')",
        make_cell("with o: print('x')", parent={"msg_id": "m5", "msg_type": "execute_request"}),
        update("s1", value=2),
    )
    ids = [state["msg_id"] for one, state in states(cell) if one == "o1"]
    assert ids == ["m5", ""]
    assert [s["msg_id"] for one, s in states(moved) if one == "o1"] == ["m7", ""]


def test_a_target_of_the_users_own_hears_the_front_end(serve: Serve) -> None:
    opened = {"op": "comm", "kind": "open", "comm_id": "x1", "target_name": "mine"}
    _, first, second = serve(
        "import comm\nheard = []\ndef took(c, m):\n    heard.append(m['content']['data'])\n"
        "    c.on_msg(lambda m: (heard.append(m['content']['data']), c.send({'back': 1})))\n"
        "comm.get_comm_manager().register_target('mine', took)",
        opened | {"data": {"a": 1}},
        opened | {"kind": "msg", "data": {"b": 2}},
    )
    assert not first.frames
    assert [f["data"] for f in second.sent("comm_msg")] == [{"back": 1}]


def test_libraries_find_what_they_look_for_in_a_kernel(serve: Serve, make_cell: Cell) -> None:
    ask = (
        "ip = get_ipython(); k = ip.kernel\n"
        "ip.has_trait('kernel'), k.get_parent()['header']['msg_id'], ip.parent_header['msg_id'],"
        " 'IPKernelApp' in ip.config, hasattr(k, 'session'), k.comm_manager.comms"
    )
    [turn] = serve(make_cell(ask, parent={"msg_id": "m1", "msg_type": "execute_request"}))
    assert turn.text == "(True, 'm1', 'm1', True, False, {})"


def test_a_callback_that_is_interrupted_shows_it(serve: Serve) -> None:
    watch = "\ndef stop(c): raise KeyboardInterrupt\ns.observe(stop, 'value')"
    _, moved = serve(SLIDER + watch, update("s1", value=9))
    assert [error["ename"] for error in moved.sent("error")] == ["KeyboardInterrupt"]


# -- while a cell awaits

CHANGE = """
import asyncio
async def change(widget):
    future = asyncio.get_running_loop().create_future()
    def got(c):
        future.set_result(c.new); widget.unobserve(got, 'value')
    widget.observe(got, 'value')
    return await future
"""
FRONT_END = {"msg_id": "m1", "msg_type": "execute_request"}


def test_cells_that_await_hear_messages_sleeping_ones_none(serve: Serve, make_cell: Cell) -> None:
    queued = [update("s1", value=5), update("s1", value=6)]
    ask = "got = [await change(s), await change(s)]; got, get_ipython().get_parent()['msg_id']"
    _, turn = serve(SLIDER + CHANGE, make_cell(ask, parent=FRONT_END, queued=queued))
    assert turn.text == "([5, 6], 'm1')"
    ops = [f["op"] for f in turn.frames if f["op"].startswith("comm_") or f["op"] == "result"]
    assert ops[:3] == ["comm_next", "comm_msg", "comm_done"]
    sleep = make_cell("import time; time.sleep(0.2); s.value", parent=FRONT_END)
    _, turn = serve(SLIDER, sleep | {"queued": [update("s1", value=5)]})
    assert turn.text == "3"
    assert not turn.sent("comm_next")


def test_an_await_that_only_a_widget_could_end_waits_where_there_is_a_page(
    serve: Serve, make_cell: Cell
) -> None:
    _, alone = serve(SLIDER + CHANGE, "await change(s)")
    assert alone.reply["ename"] == "NothingToWaitFor"
    [without] = serve(make_cell(CHANGE + "await asyncio.Future()", parent=FRONT_END))
    assert without.reply["ename"] == "NothingToWaitFor"


# -- after memory was restored elsewhere


def test_widgets_that_the_front_end_has_closed_are_opened_again_parts_first(serve: Serve) -> None:
    box = "import ipywidgets as w\nbox = w.VBox(model_id='box')\n"
    box += "box.children = [w.IntSlider(value=4, model_id='late')]"
    _, told, moved = serve(box, {"op": "comms", "open": []}, update("late", value=5))
    opened = [f["comm_id"] for f in told.sent("comm_open")]
    assert opened.index("late") < opened.index("box")
    assert len(opened) == len(set(opened)) == 5
    assert not told.sent("comm_close")
    assert "jupyter.widget.control" in told.reply["targets"]
    assert [f["data"]["state"] for f in moved.sent("comm_msg")] == [{"value": 5}]


def test_other_comms_that_the_front_end_has_closed_end_here_too(serve: Serve) -> None:
    _, told, asked = serve(
        "import comm\nended = []\nc = comm.create_comm('t', comm_id='t1')\n"
        "c.on_close(lambda m: ended.append(1))",
        {"op": "comms", "open": []},
        "ended, 't1' in comm.get_comm_manager().comms",
    )
    assert told.reply["comms"] == {}
    assert not told.frames
    assert asked.text == "([1], False)"


def test_a_widget_that_cant_give_its_state_keeps_none_from_theirs(serve: Serve) -> None:
    fail = "\nbad = w.IntSlider(model_id='b1'); bad.get_state = lambda *a, **k: {}['x']\n"
    _, told = serve(
        f"{SLIDER}{fail}last = w.IntText(value=8, model_id='t1')",
        {"op": "comms", "open": ["s1", "b1", "t1"]},
    )
    sent = {one: state["value"] for one, state in states(told) if "value" in state}
    assert sent == {"s1": 3, "t1": 8}
