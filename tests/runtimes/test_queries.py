"""Completion, inspection, completeness and history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Serve = Callable[..., list[Any]]


def complete(code: str) -> dict[str, Any]:
    return {"op": "complete", "code": code, "cursor_pos": len(code)}


def test_names_and_attributes_of_live_objects_complete(serve: Serve) -> None:
    _, names, attributes = serve("rainbow = 'abc'", complete("rainb"), complete("rainbow.upp"))
    assert names.reply["matches"] == ["rainbow"]
    assert [match.lstrip(".") for match in attributes.reply["matches"]] == ["upper"]
    assert attributes.reply["metadata"]["_jupyter_types_experimental"]


def test_magics_complete(serve: Serve) -> None:
    [turn] = serve(complete("%timei"))
    assert turn.reply["matches"] == ["%timeit", "%%timeit"]


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


def test_a_known_name_is_found(serve: Serve) -> None:
    known, unknown = serve(inspect("len"), inspect("nonesuch"))
    assert known.reply["found"]
    assert "text/html" in known.reply["data"]
    assert unknown.reply == {"status": "ok", "found": False, "data": {}, "metadata": {}}


def test_completeness_has_an_indent(serve: Serve) -> None:
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
def test_history_is_this_sessions(
    serve: Serve, request_: dict[str, Any], inputs: list[str]
) -> None:
    turns = serve("x = 1", "y = 2", {"op": "history", "raw": True, "output": False, **request_})
    assert [entry[2] for entry in turns[-1].reply["history"]] == inputs
