"""Has the code that every cell runs lie side by side.

CPython writes into code while it runs: an instruction remembers what it met, and counts down to
when it is looked at anew (PEP 659). The functions that run a cell lay scattered over the whole
image, so a cell that did nothing wrote to a hundred and thirty pages of it for that alone, each of
which has to be copied, tracked and saved. Here a practice turn tells which functions these are;
each gets a copy of its code, and the copies lie in one place.
"""

from __future__ import annotations

import gc
import json
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any

from IPython.core.history import HistoryAccessor, HistoryManager

_ROUNDS = 24  # until the copies have found what there is to find
_REQUEST = {
    "op": "execute",
    "code": "pass",
    "silent": False,
    "store_history": False,  # so that it leaves no trace; what stores it is named below
    "allow_stdin": False,
    "user_expressions": {},
    "cell_id": None,
    "parent": {},
}
_STORING = (HistoryManager, HistoryAccessor)

Codes = dict[int, CodeType]


def settle(agent: Any) -> None:
    """Move the code of a turn to fresh memory. Only the boot turn may, with its holes filled."""
    _practise(agent)
    used = _used(agent)
    copies = {one: _copied(code, used) for one, code in used.items()}
    gc.unfreeze()  # the artifact itself was frozen with modules in it
    functions = [one for one in gc.get_objects() if type(one) is FunctionType]
    for function in functions:
        copy = copies.get(id(function.__code__))
        if copy is not None:
            function.__code__ = copy
    del functions, copies, used
    for _ in range(_ROUNDS):
        _practise(agent)
    agent.shell.last_execution_result = None


def _practise(agent: Any) -> None:
    """A turn with a cell that does nothing; the host does not hear of it."""
    door, request, said = agent.door, json.dumps(_REQUEST).encode(), []

    def answer(data: bytes) -> bytes:
        said.append(data)
        return request if len(said) == 1 else b"{}"

    real, door._call = door._call, answer
    try:
        agent.turn()
    finally:
        door._call = real
    if len(said) != 2 or b'"status":"ok"' not in said[1]:
        raise RuntimeError(f"the practice turn failed: {said[1:]!r}")


def _used(agent: Any) -> Codes:
    """The code that a turn runs, by identity: equal code of two functions is not the same."""
    used: Codes = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            used[id(frame.f_code)] = frame.f_code

    sys.setprofile(note)
    try:
        _practise(agent)
    finally:
        sys.setprofile(None)
    for kind in _STORING:
        for one in vars(kind).values():
            if type(one) is FunctionType:
                used[id(one.__code__)] = one.__code__
    return used


def _copied(code: CodeType, used: Codes) -> CodeType:
    """A copy of code, with copies of what it defines when it runs."""
    inner = (
        _copied(one, used) if isinstance(one, CodeType) and id(one) in used else one
        for one in code.co_consts
    )
    return code.replace(co_consts=tuple(inner))
