"""Tunes the base image's memory, so that a cell writes to few of its pages.

Each page that a cell writes to has to be copied, tracked and saved. Three things keep their number
small: new objects lie side by side, code that changes while it runs lies side by side, and objects
of the image have no reference count to write.
"""

from __future__ import annotations

import base64
import gc
import json
import sys
from array import array
from itertools import chain, compress, repeat
from operator import is_
from types import CodeType, FrameType, FunctionType
from typing import Any

from IPython.core.history import HistoryAccessor, HistoryManager

from wasm_kernel_agent.host import FrameChannel

_LARGEST, _SMALLEST, _STEP = 16_384, 16, 8  # bytes; larger holes are few
_FRESH = 32_768  # bytes side by side: a piece this large is not a hole
_SLOTS = 65_536
_HEADER = b"".__sizeof__()

Filling = list[bytes | None]

filled_for_good: list[Filling] = []
"""Fillings of holes that sessions never find."""
_ROUNDS = 24  # practice turns, as CPython adapts code step by step
_START = {
    "op": "start",  # as a session begins; the session repeats whatever this does
    "env": {},
    "execution_count": 1,
    "folder": "/app",
}
_COMMS = {"op": "comms", "open": None}
_CELL = {
    "op": "execute",
    "code": "get_ipython().display_formatter.format("
    "__import__('pandas').DataFrame({'a': [1, 2], 'b': ['x', 'y']})) and None",
    "silent": False,
    "store_history": False,  # leaves no trace; code that stores history is named below
    "allow_stdin": False,
    "user_expressions": {},
    "cell_id": None,
    "parent": {},
    "memory_bytes": 2**31,
    "advice": {},
}
_STORING = (HistoryManager, HistoryAccessor)

Codes = dict[int, CodeType]
_ADDRESSES = 250_000  # the addresses in one frame
_AT_ONCE = 500  # objects whose referents are in memory together: a processor's cache holds them


def fill_holes() -> Filling:
    """Fills the holes that booting leaves in the memory, as long as the result is kept.

    The memory that a boot frees is scattered over the whole image. The C library's allocator, which
    CPython uses here for all objects, hands it out again first: two thousand small objects of a
    cell lay on five hundred pages. With the holes filled for good they lie side by side. Only the
    boot turn may call this.
    """
    gc.collect()
    kept: Filling = [None] * _SLOTS  # made at once: a list that grows would take holes, too
    at, size = 0, _LARGEST
    while size >= _SMALLEST:
        at = _fill_size(kept, size, at)
        size = size - _STEP if size <= 1024 else size * 7 // 8 // _STEP * _STEP
    return kept


def _fill_size(kept: Filling, size: int, at: int) -> int:
    """Fills every hole for objects of one size; gives back those that lie in fresh memory."""
    begun, before = at, 0
    while (at - begun) * size < _FRESH and at < _SLOTS:
        one = bytes(max(size - _HEADER, 2))
        if not 0 < id(one) - before <= size + 2 * _STEP:
            begun = at
        before = id(one)
        kept[at] = one
        at += 1
    kept[begun:at] = [None] * (at - begun)
    return begun


def gather_code(agent: Any) -> None:
    """Moves the code that every cell runs to fresh memory, side by side.

    CPython writes into code while it runs: an instruction remembers the types that it met, and
    counts down to its next check (PEP 659). Scattered over the image, the functions that run a cell
    made an empty cell write to a hundred and thirty pages. A practice turn tells which functions
    these are; each gets a copy of its code, and the copies lie in one place. Only the boot turn may
    call this, with its holes filled.
    """
    _practise(agent)
    used = _used(agent)
    copies = {key: _copied(code, used) for key, code in used.items()}
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
    """Begins a session, wakes it and runs a cell that shows a table; the host does not see the
    frames.
    """
    for request in (_START, _START | {"fresh": False}, _COMMS, _CELL):
        _serve(agent, json.dumps(request).encode())


def _serve(agent: Any, request: bytes) -> None:
    channel, sent = agent.channel, list[bytes]()

    def answer(data: bytes) -> bytes:
        sent.append(data)
        return request if len(sent) == 1 else b"{}"

    real, channel._call = channel._call, answer
    try:
        agent.turn()
    finally:
        channel._call = real
    if len(sent) != 2 or b'"status":"ok"' not in sent[1]:
        raise RuntimeError(f"the practice turn failed: {sent[1:]!r}")


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


def _addresses_of_all() -> set[int]:
    """Returns the addresses of all objects that can be reached from the collector's.

    There are a million, so nothing here is a loop in Python.
    """
    fresh = gc.get_objects()
    seen = set(map(id, fresh))
    while fresh:
        later: list[object] = []
        for at in range(0, len(fresh), _AT_ONCE):
            part = fresh[at : at + _AT_ONCE]
            codes = compress(part, map(is_, map(type, part), repeat(CodeType)))
            referents = gc.get_referents(*part)
            referents.extend(chain.from_iterable(chain.from_iterable(map(_parts_of_code, codes))))
            by_address = dict(zip(map(id, referents), referents, strict=True))
            new = by_address.keys() - seen
            seen |= new
            later.extend(map(by_address.__getitem__, new))
        fresh = later
    return seen


def _parts_of_code(code: CodeType) -> tuple[tuple[object, ...], ...]:
    """Returns the objects that code refers to: the collector does not look into code."""
    texts = (code.co_filename, code.co_name, code.co_qualname, code.co_linetable)
    variables = (code.co_varnames, code.co_cellvars, code.co_freevars)
    whole = (code.co_consts, code.co_names, code.co_exceptiontable)
    return (texts, whole, *variables)


def send_immortals(channel: FrameChannel) -> None:
    """Tells the host the addresses of the image's objects, which never die.

    Every use of an object writes its reference count, so a cell that uses a little of IPython would
    write to hundreds of the image's pages. Objects of the image live as long as the guest anyhow:
    the host marks them immortal (PEP 683) in memory, and their counts are never written again. Only
    the boot turn may call this.
    """
    gc.collect()
    addresses = array("I", _addresses_of_all())
    for at in range(0, len(addresses), _ADDRESSES):
        chunk = addresses[at : at + _ADDRESSES].tobytes()
        channel.send({"op": "immortal", "addresses": base64.b64encode(chunk).decode()})
