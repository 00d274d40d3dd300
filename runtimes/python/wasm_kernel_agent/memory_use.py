"""The note on a failed allocation: the variables that fill the memory."""

from __future__ import annotations

import itertools
import opcode
import sys
import types
from typing import Any

from wasm_kernel_agent import hints, variables

_OBJECTS_MOST = 5_000  # the objects of a variable that are counted, as memory is short
_NAMED_MOST = 3
_NAMED_LEAST = 8 * 2**20  # the least bytes of a variable that is named
_NOT_THE_VARIABLES = (type, types.ModuleType, types.FunctionType, types.FrameType)


def explain(error: BaseException, trace: types.TracebackType | None, shell: Any) -> None:
    """Adds the memory's size, and the variables that fill it, to a `MemoryError` of the system."""
    if not isinstance(error, MemoryError) or _is_raised(trace) or "too complex" in str(error):
        return  # the parser raises one at nested source, whatever memory is free
    size = f" of {shell.memory_bytes / 2**20:,.0f} MiB" if shell.memory_bytes else ""
    text = f"this needs more than is free of the sandbox's memory{size}."
    found = _largest(shell)
    if found:
        named = ", ".join(f"{name} ({size / 2**20:,.0f} MiB)" for name, size in found)
        text += f" Variables that fill it: {named}."
    text = f"{text} Delete what you no longer need. {hints.advice['memory']}".rstrip()
    if error.args:
        error.add_note(f"[wasm-kernel] {text[0].upper()}{text[1:]}")
    else:
        error.args = (text,)


def _is_raised(trace: types.TracebackType | None) -> bool:
    """Returns whether a `raise` of Python code began the error, and not a failed allocation."""
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code.co_code
    return opcode.opname[code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _largest(shell: Any) -> list[tuple[str, int]]:
    """Returns the largest variables with their sizes in bytes, as far as those are known."""
    hidden = shell.user_ns_hidden
    sizes = [
        (name, _size(value))
        for name, value in [*shell.user_ns.items()]
        if name == "Out" or not (name in hidden or name.startswith("_"))
    ]
    sizes.sort(key=lambda found: -found[1])
    return [found for found in sizes[:_NAMED_MOST] if found[1] >= _NAMED_LEAST]


def _size(value: Any) -> int:
    """Returns how many bytes an object takes with its content, of which only a part is counted."""
    total, seen, waiting = 0, set[int](), [value]
    while waiting and len(seen) < _OBJECTS_MOST:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _NOT_THE_VARIABLES):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each, 0)
        waiting += itertools.islice(variables.held_by(each, type(each)), _OBJECTS_MOST)
    return total
