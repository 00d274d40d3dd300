"""Functions that a waiting thread has left, and enters again where it waited.

The guest has one stack, so a thread that waits must leave its functions before another one can go
on. It leaves them by an exception. Later a new call of each function is moved by a tracer to the
same line, with the same variables, and the wait is made anew.

That is exact only if the exception meets no code that reacts to it, the line has done nothing
before it waited, and no loop's iterator, context manager or inner function is lost. Functions are
left in no other case.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_WITHOUT_EFFECT = {
    *("EXTENDED_ARG", "NOP", "NOT_TAKEN", "PUSH_NULL", "COPY", "SWAP", "BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE"),
    *("UNARY_NOT", "DICT_MERGE", "LIST_EXTEND", "CALL_INTRINSIC_1", "FORMAT_SIMPLE"),
}
_WAITS = {"sleep", "wait", "get", "put", "acquire", "join", "result"}
_OF_HANDLERS = {"PUSH_EXC_INFO", "CHECK_EXC_MATCH", "COPY", "POP_EXCEPT"}


class Place(NamedTuple):
    """The line where a function goes on, and its variables."""

    code: CodeType
    line: int
    values: dict[str, Any]
    is_after_wait: bool
    is_in_loop: bool  # in one that may have no end


class _Left(BaseException):
    """Ends the trial of a jump."""


def find_places(frame: FrameType | None, *, is_sleep: bool) -> list[Place] | None:
    """Returns where the functions from `frame` outwards to `enter` go on, the outermost first.

    Args:
        frame: The frame that has called the function that waits.
        is_sleep: The wait need not be made anew, if its line has nothing more to do.

    Returns:
        None if one of the functions can't be entered again.
    """
    places: list[Place] = []
    while frame is not None and frame.f_code is not enter.__code__:
        code, at = frame.f_code, frame.f_lasti
        after = line_after(code, at) if is_sleep else None
        line = after or line_of_call(code, at)
        values = {name: frame.f_locals[name] for name in code.co_varnames if name in frame.f_locals}
        if line is None or any(name not in values for name in _arguments(code)):
            return None
        is_in_loop = any(at in each for each in while_loops(code))
        places.insert(0, Place(code, line, values, after is not None, is_in_loop))
        frame, is_sleep = frame.f_back, False
    return places


def enter(call: Callable[[], Any], places: list[Place]) -> Any:
    """Makes a call, whose functions go on at their places."""
    left, before = places.copy(), sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not left or frame.f_code is not left[0].code:
            return None
        if event == "line":
            place = left.pop(0)
            _move(frame, place.line, place.values)
            if not left:
                sys.settrace(before)
        return trace

    if left:
        sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)


def _move(frame: FrameType, line: int, values: dict[str, Any]) -> None:
    for name in frame.f_code.co_varnames:
        frame.f_locals[name] = values.get(name)
    frame.f_lineno = line  # type: ignore[misc]


def _arguments(code: CodeType) -> tuple[str, ...]:
    number = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[: number + (code.co_flags & _VARIABLE).bit_count()]


@functools.lru_cache(maxsize=1024)
def line_of_call(code: CodeType, at: int) -> int | None:
    """Returns the line that makes the call at an instruction anew, or None if that is not exact."""
    if not _can_be_left(code, at):
        return None
    earlier: list[Any] = [each for each in dis.get_instructions(code) if each.offset <= at]
    for each in reversed(earlier):
        if each.offset < at and not _is_without_effect(each):
            return None
        if each.starts_line and _can_enter(code, each):
            return int(each.line_number)
    return None


@functools.lru_cache(maxsize=1024)
def line_after(code: CodeType, at: int) -> int | None:
    """Returns the next line, if the one of the call at an instruction has nothing more to do."""
    instructions: dict[int, Any] = {each.offset: each for each in dis.get_instructions(code)}
    following = iter([each for each in instructions.values() if each.offset > at])
    if not _can_be_left(code, at) or next(following).opname != "POP_TOP":
        return None
    each = next(following)
    if each.opname in ("JUMP_BACKWARD", "JUMP_FORWARD"):
        each = instructions[each.jump_target]
    return int(each.line_number) if each.starts_line and _can_enter(code, each) else None


@functools.lru_cache(maxsize=1024)
def lets_others_run(code: CodeType) -> bool:
    """Returns whether each loop that may have no end waits where its function can be left."""
    instructions: list[Any] = list(dis.get_instructions(code))
    waits = [
        call.offset
        for each in instructions
        for call in instructions
        if each.argval in _WAITS and call.opname.startswith("CALL")
        if each.offset < call.offset and each.line_number == call.line_number
        if line_of_call(code, call.offset) or line_after(code, call.offset)
    ]
    return all(any(at in each for at in waits) for each in while_loops(code))


def raise_outside_of_handlers(frame: FrameType | None, problem: type[BaseException]) -> None:
    """Raises an exception in the functions from `frame` to `enter`, where none of them catches it."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not _handlers(frame.f_code, frame.f_lasti):
            raise problem
        return trace

    while frame is not None and frame.f_code is not enter.__code__:
        frame.f_trace, frame = trace, frame.f_back
    sys.settrace(lambda *_: None)


def while_loops(code: CodeType) -> Iterator[range]:
    """Yields the offsets of each loop that is not one of an iterator."""
    instructions: dict[int, Any] = {each.offset: each for each in dis.get_instructions(code)}
    for each in instructions.values():
        if each.opname == "JUMP_BACKWARD" and instructions[each.jump_target].opname != "FOR_ITER":
            yield range(each.jump_target, each.offset)


def _is_without_effect(instruction: Any) -> bool:
    name = instruction.opname
    if name.startswith(("LOAD_", "BUILD_")):
        return name != "LOAD_FAST_AND_CLEAR"
    return name in _WITHOUT_EFFECT


def _can_be_left(code: CodeType, at: int) -> bool:
    """Returns whether an exception leaves a function without any effect, unless it is expected."""
    if code.co_flags & _GENERATORS or not code.co_flags & inspect.CO_OPTIMIZED or code.co_cellvars:
        return False
    instructions: list[Any] = list(dis.get_instructions(code))
    index = {each.offset: number for number, each in enumerate(instructions)}
    while handlers := _handlers(code, at):
        number = index[handlers[0]]
        while (each := instructions[number]).opname != "RERAISE":
            if each.opname == "POP_JUMP_IF_FALSE":
                number = index[each.jump_target]
                continue
            if each.argval == "BaseException":
                return False
            if each.opname not in _OF_HANDLERS and not _is_without_effect(each):
                return False
            number += 1
        at = each.offset
    return True


def _handlers(code: CodeType, at: int) -> list[int]:
    """Returns the offset of the code that handles an exception at an instruction, if there is any."""
    ranges = vars(dis)["_parse_exception_table"](code)
    return [each.target for each in ranges if each.start <= at < each.end]


def _can_enter(code: CodeType, instruction: Any) -> bool:
    """Tries whether a jump to an instruction's line, from the beginning, leads there."""
    bare = code.replace(
        co_argcount=0,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~_VARIABLE,
    )
    landed: list[int] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is bare and event == "line":
            _move(frame, instruction.line_number, {})
            landed.append(frame.f_lasti)
            raise _Left
        return trace if frame.f_code is bare else None

    trial = FunctionType(bare, {}, closure=tuple(CellType() for _ in code.co_freevars))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        trial()
    except (_Left, ValueError, NameError):
        pass
    finally:
        sys.settrace(before)
    return landed == [instruction.offset]
