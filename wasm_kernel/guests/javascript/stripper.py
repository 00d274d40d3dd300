"""Taking types out of TypeScript, in a second guest that is made anew for each text.

The text is hostile, and so is the guest once it has read the text. The guest gets no file and no
channel; its memory, fuel and time are those of the waiting cell. Its result is only evaluated
inside of the sandbox.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import OutputStreams
from wasm_kernel.errors import GuestCrashed, GuestExited, StackExhausted
from wasm_kernel.guests.base import GuestSetup

_OK, _UNCHANGED = 0, 1
_TYPESCRIPT = 1 | 1 << 8  # the source is TypeScript; take the types out
_NAME = b"cell.ts"
_STRANGER = "\ue000"  # a character that no text may have outside of strings and comments
_MET_IT = re.compile(rf"Invalid Character `{_STRANGER}`|(?:(?!; ).)* but found `Unknown`")


class TypeScriptError(Exception):
    """A text is not TypeScript; `str()` says why."""


def strip(source: str, compiled: Compiled, setup: GuestSetup, cell: Instance) -> str:
    """Returns a text of a guest without its types; comments in front of statements stay.

    The fuel and the time are those of the waiting cell. Raises `TypeScriptError` if the text can't
    be parsed, `GuestStopped` if time or fuel are over.
    """
    options = InstanceOptions(setup.memory_bytes)
    instance = Instance(compiled, (), options, setup.clock, OutputStreams())
    try:
        with instance.turn(cell.fuel_left):
            return _stripped(instance, source.encode("utf-8", "replace"))
    except (StackExhausted, GuestExited):
        raise TypeScriptError("it is nested too deeply") from None
    except GuestCrashed:
        raise TypeScriptError("it is too large or nested too deeply") from None
    finally:
        cell.lower_fuel(instance.fuel_left)
        instance.close()


def first_unexpected(source: str, ends: Sequence[int], strip: Callable[[str], str]) -> int:
    """Returns the number of tokens in front of the first one that is not valid TypeScript.

    That is all of them if the text ends too early. The parser names the error and not its place. So
    the parser gets beginnings of the text, each followed by a character that is always wrong; if it
    complains of that character, the beginning is valid. `ends` are the ends of the tokens, in units
    of UTF-16; `strip` raises `TypeScriptError` with the parser's words.
    """
    units = source.encode("utf-16-le", "surrogatepass")

    def is_wrong(end: int) -> bool:
        begun = units[: 2 * end].decode("utf-16-le", "replace")
        return not any(_reaches_stranger(begun + more, strip) for more in ("", " 0", " x"))

    return bisect_left(ends, True, key=is_wrong)


def _reaches_stranger(text: str, strip: Callable[[str], str]) -> bool:
    try:
        strip(f"{text} {_STRANGER}")
    except TypeScriptError as problem:
        return _MET_IT.match(str(problem)) is not None
    return False


def _stripped(instance: Instance, source: bytes) -> str:
    memory, call = instance.memory, instance.call
    places = []
    for data in (_NAME, source):
        at = call("qjst_alloc", len(data))
        if at == 0:
            raise TypeScriptError("it is too large")
        memory.write(at, data)
        places += [at, len(data)]
    status = call("qjst_transform", *places, _TYPESCRIPT)
    if status == _UNCHANGED:
        return source.decode()
    kind = "result" if status == _OK else "error"
    length, at = call(f"qjst_{kind}_len"), call(f"qjst_{kind}_ptr")
    text = memory.read(at, length).decode("utf-8", "replace")
    if status != _OK:
        raise TypeScriptError(text.partition("cell.ts: ")[2] or text)
    return text
