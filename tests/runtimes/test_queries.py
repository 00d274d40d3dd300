"""Completion, inspection, completeness and history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Serve = Callable[..., list[Any]]


def complete(code: str) -> dict[str, Any]:
    return {"op": "complete", "code": code, "cursor_pos": len(code)}


def test_names_complete_in_order_and_magics_are_no_arguments(serve: Serve) -> None:
    _, names, attributes = serve("rainbow = 'abc'", complete("rainb"), complete("rainbow.upp"))
    assert names.reply["matches"] == ["rainbow"]
    assert attributes.reply["matches"] == ["upper"]
    assert attributes.reply["cursor_start"] == len("rainbow.")
    _, turn = serve("class A: Zeta = alpha = _x = beta = 1\na = A()", complete("a."))
    assert turn.reply["matches"][:3] == ["alpha", "beta", "Zeta"]
    _, private = serve("class A: Zeta = alpha = _x = beta = 1\na = A()", complete("a._"))
    assert private.reply["matches"][0] == "_x"
    texts = ["open('", 'read("a", "', "x = 1  # ", "!cat ", "x = 'a' + '"]
    beside = ["f'{", "print('a', ", "%timeit ", "'a' + "]
    _, *turns = serve("rainbow = 1", *(complete(f"{each}rainb") for each in (*texts, *beside)))
    assert [turn.reply["matches"] for turn in turns] == [[]] * 5 + [["rainbow"]] * 4
    inside, begun, first = serve(complete("print("), complete("x = %timei"), complete("timei"))
    assert not [match for match in inside.reply["matches"] if match.startswith("%")]
    assert begun.reply["matches"] == first.reply["matches"] == ["%timeit", "%%timeit"]


_CLASS = """
import json
class Car:
    wheels = 4
    def drive(self, far, fast=2): "..."
    @staticmethod
    def honk(loud): "..."
    @classmethod
    def build(cls, plan): "..."
    @property
    def speed(self): raise SystemExit
car = Car()
"""


def kinds(turn: Any) -> dict[str, tuple[str, str]]:
    rows = turn.reply["metadata"]["_jupyter_types_experimental"]
    return {row["text"]: (row["type"], row["signature"]) for row in rows}


MATCHES = [
    ("car.", "wheels", "instance", ""),
    ("car.", "drive", "function", "(far, fast=2)"),
    ("Car.", "drive", "function", "(self, far, fast=2)"),
    ("car.", "honk", "function", "(loud)"),
    ("car.", "build", "function", "(plan)"),
    ("car.", "speed", "property", ""),
    ("json.JSONE", "JSONEncoder", "class", ""),
    ("json.deco", "decoder", "module", ""),
    ("json.lo", "loads", "function", None),
    ("len", "len", "function", "(obj, /)"),
    ("x = whil", "while", "keyword", ""),
    ("Ca", "Car", "class", ""),
    ("import jso", "json", "module", ""),
    ("from json import load", "loads", "function", None),
    ("car.drive(fas", "fast=", "param", ""),
    ("%timei", "%timeit", "magic", ""),
]


def test_matches_have_their_kind_and_signature(serve: Serve) -> None:
    _, *turns = serve(_CLASS, *(complete(code) for code, *_ in MATCHES))
    for turn, (code, name, kind, signature) in zip(turns, MATCHES, strict=True):
        described = kinds(turn)[name]
        assert described[0] == kind, code
        assert signature is None or described[1] == signature, code


UNRUN = {
    "import json\njson.JSONE": "JSONEncoder",
    "import os.path as p\np.joi": "join",
    "from collections import (\n    Counter,\n)\nCounter('a').most": "most_common",
    "def f():\n    import json\n    json.JSONE": "JSONEncoder",
    "def f():\n    car.driv": "drive",
    "class A:\n    def m(self):\n        return car.driv": "drive",
    "with x:\n    car.driv": "drive",
    "def f(first, *, second=2):\n    sec": "second",
    "def f(a: list):\n    return a.app": "append",
    "def f():\n    here = 'a'\n    for each in here:\n        here.upp": "upper",
    "class A:\n    def m(self):\n        self.far = 1\n    def n(self):\n        self.fa": "far",
    "%time\ntext = 'a'\ndef f():\n    text.upp": "upper",
    "(\n    car\n    .driv": "drive",
}


def test_a_cell_completes_before_it_ran_and_runs_nothing_then(serve: Serve) -> None:
    _, *turns = serve(_CLASS, *(complete(code) for code in UNRUN))
    for turn, (code, name) in zip(turns, UNRUN.items(), strict=True):
        assert name in turn.reply["matches"], code
        assert turn.reply["cursor_end"] == len(code), code
    _, outside, unknown = serve("x = 1", complete("def f():\n    inner = 1\ninn"), complete("inn"))
    assert outside.reply["matches"] == unknown.reply["matches"] == []
    code = "import this, antigravity\ndef f(x=ran.append(1)):\n    ran.append(2)\n    x."
    _, _, turn = serve(
        "import sys; ran = []", complete(code), "ran, {'this', 'antigravity'} & sys.modules.keys()"
    )
    assert turn.text == "([], set())"


@pytest.mark.parametrize("code", ["d.", "d?"])
def test_a_hostile_object_completes_to_nothing(serve: Serve, code: str) -> None:
    hostile = "class D:\n    def __dir__(self): raise SystemExit\nd = D()"
    [_, turn, after] = serve(hostile, complete(code), "1")
    assert turn.reply["status"] == "ok"
    assert after.text == "1"


def inspect(code: str) -> dict[str, Any]:
    return {
        "op": "inspect", "code": code, "cursor_pos": len(code), "detail_level": 0,
        "omit_sections": [],
    }  # fmt: skip


def test_a_known_name_is_found_and_completeness_has_an_indent(serve: Serve) -> None:
    known, unknown = serve(inspect("len"), inspect("nonesuch"))
    assert known.reply["found"]
    assert list(known.reply["data"]) == ["text/plain"]  # HTML has headings, which fill a tooltip
    assert unknown.reply == {"status": "ok", "found": False, "data": {}, "metadata": {}}
    replies = [
        turn.reply
        for turn in serve(*({"op": "is_complete", "code": c} for c in ("1", "if 1:", "1 1")))
    ]
    assert replies == [
        {"status": "complete"},
        {"status": "incomplete", "indent": "    "},
        {"status": "invalid"},
    ]


@pytest.mark.parametrize(
    ("request_", "inputs"),
    [
        ({"hist_access_type": "tail", "n": 1}, ["y = 2"]),
        ({"hist_access_type": "range", "session": 0, "start": 1, "stop": 2}, ["x = 1"]),
        ({"hist_access_type": "search", "pattern": "y*", "n": 5}, ["y = 2"]),
        ({"hist_access_type": "nonsense"}, []),
    ],
)
def test_history_is_of_a_session(serve: Serve, request_: dict[str, Any], inputs: list[str]) -> None:
    turns = serve("x = 1", "y = 2", {"op": "history", "raw": True, "output": False, **request_})
    assert [entry[2] for entry in turns[-1].reply["history"]] == inputs
