"""Functions that a waiting thread leaves, and enters again where it waited.

The guest has one stack, so a thread that waits must leave its functions before another one can go
on. It leaves them by an exception. Later a tracer moves a new call of each function to the same
line, with the same variables, and the wait is made anew.

That is exact if no code reacts to the exception, the line has neither done nor read anything before
it waited, and no iterator, context manager or inner function of the call is lost. Other functions
are not left.
"""

from __future__ import annotations

import contextvars
import dis
import functools
import inspect
import sys
from collections.abc import Callable
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_BEGINNING = 0  # the line of a function that goes on from its beginning
_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_WITHOUT_EFFECT = {
    *("EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME", "PUSH_NULL", "COPY", "SWAP", "BINARY_OP"),
    *("COMPARE_OP", "UNARY_NEGATIVE", "UNARY_NOT", "DICT_MERGE", "LIST_EXTEND"),
    *("CALL_INTRINSIC_1", "FORMAT_SIMPLE"),
}
_OF_HANDLERS = {"PUSH_EXC_INFO", "CHECK_EXC_MATCH", "COPY", "POP_EXCEPT"}
_WAITS = {"sleep", "wait", "get", "put", "acquire", "join", "result"}


class Place(NamedTuple):
    """The line where a function goes on, and its variables."""

    code: CodeType
    line: int
    values: dict[str, Any]
    is_after_wait: bool
    is_in_loop: bool  # in one that may have no end


class _Left(BaseException):
    """Ends the trial of a jump."""


def find_places(waits: FrameType, *, is_sleep: bool) -> list[Place] | None:
    """Returns where a function that waits, and its callers up to `enter`, go on; these come first.

    Args:
        waits: The frame of the function that waits.
        is_sleep: The wait need not be made anew, if its line has nothing more to do.

    Returns:
        None if one of the functions can't be entered again.
    """
    frame, called = waits.f_back, waits.f_code
    given = {name: waits.f_locals[name] for name in _arguments(called)}
    places = [Place(called, _BEGINNING, given, is_after_wait=False, is_in_loop=False)]
    while frame is not None and frame.f_code is not enter.__code__:
        code, at = frame.f_code, frame.f_lasti
        after = _line_after(code, at) if is_sleep else None
        line = _line_of_call(code, at) if after is None else after
        values = {name: frame.f_locals[name] for name in code.co_varnames if name in frame.f_locals}
        if line is None or not (_calls(frame, called) and values.keys() >= set(_arguments(code))):
            return None
        is_in_loop = any(at in each for each in _while_loops(code)) and not _is_own(code)
        if after is not None:
            places.clear()
        places.insert(0, Place(code, line, values, after is not None, is_in_loop))
        frame, called, is_sleep = frame.f_back, code, False
    return places


def enter(call: Callable[[], Any], places: list[Place]) -> Any:
    """Makes a call, whose functions go on at their places, which are forgotten then."""
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not places or frame.f_code is not places[0].code:
            return None
        if event != "line":
            return trace
        place = places.pop(0)
        _move(frame, place.line, place.values)
        if not places:
            sys.settrace(before)
        return _trace_nothing

    if places:
        sys.settrace(trace)
    try:
        return call()
    finally:
        if sys.gettrace() is not before:
            sys.settrace(before)


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(__file__.removesuffix("parked_frames.py"))


def _trace_nothing(*_: Any) -> None:
    pass


def _move(frame: FrameType, line: int, values: dict[str, Any]) -> None:
    for name in frame.f_code.co_varnames:
        frame.f_locals[name] = values.get(name)
    if line != _BEGINNING:
        frame.f_lineno = line  # type: ignore[misc]


def raise_outside_of_handlers(frame: FrameType | None, problem: type[BaseException]) -> None:
    """Raises an exception in the functions from `frame` to `enter` where none catches it."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not _handlers(frame.f_code, frame.f_lasti):
            raise problem
        return trace

    while frame is not None and frame.f_code is not enter.__code__:
        frame.f_trace, frame = trace, frame.f_back
    sys.settrace(_trace_nothing)


def plain_function(called: Any) -> Any:
    """Returns the function that a bound method or a `functools.partial` calls."""
    while isinstance(called, functools.partial):
        is_run = isinstance(getattr(called.func, "__self__", None), contextvars.Context)
        called = called.args[0] if is_run and called.args else called.func
    return getattr(called, "__func__", called)


def _arguments(code: CodeType) -> tuple[str, ...]:
    number = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[: number + (code.co_flags & _VARIABLE).bit_count()]


@functools.lru_cache(maxsize=256)
def _instructions(code: CodeType) -> dict[int, Any]:
    return {each.offset: each for each in dis.get_instructions(code)}


@functools.lru_cache(maxsize=1024)
def _line_of_call(code: CodeType, at: int) -> int | None:
    """Returns the line that makes the call at an instruction anew, or None if that is not exact."""
    if not _can_be_left(code, at):
        return None
    following, is_argument = _instructions(code)[at], True
    for each in reversed([each for each in _instructions(code).values() if each.offset < at]):
        is_argument = is_argument and not _loads_called(each)
        if not (_is_without_effect(each) if is_argument else _is_kept(each, following)):
            return None
        if each.opname == "RESUME":
            return _BEGINNING
        if each.starts_line and _can_enter(code, each):
            return int(each.line_number)
        following = each
    return None


@functools.lru_cache(maxsize=1024)
def _line_after(code: CodeType, at: int) -> int | None:
    """Returns the next line, if the one of the call at an instruction has nothing more to do."""
    following = iter([each for each in _instructions(code).values() if each.offset > at])
    if not _can_be_left(code, at) or next(following).opname != "POP_TOP":
        return None
    each = next(following)
    if each.opname in ("JUMP_BACKWARD", "JUMP_FORWARD"):
        each = _instructions(code)[each.jump_target]
    return int(each.line_number) if each.starts_line and _can_enter(code, each) else None


def _calls(frame: FrameType, called: CodeType) -> bool:
    """Returns whether a function has called `called` itself, and no C code has."""
    name, is_attribute = _called_name(frame.f_code, frame.f_lasti)
    if is_attribute:
        return name == called.co_name
    function = plain_function(frame.f_locals.get(name, frame.f_globals.get(name)))
    return getattr(function, "__code__", None) is called


@functools.lru_cache(maxsize=1024)
def _called_name(code: CodeType, at: int) -> tuple[str, bool]:
    """Returns the name that the call at an instruction loads, and whether it is an attribute's."""
    before = [each for each in _instructions(code).values() if each.offset < at]
    inner = 0  # calls among the arguments
    for number, each in reversed([*enumerate(before)]):
        if each.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
            inner += 1
        elif _loads_called(each) and inner:
            inner -= 1
        elif each.opname == "LOAD_SPECIAL":  # a `with` statement enters
            return "acquire", True
        elif each.opname == "PUSH_NULL":
            return str(before[number - 1].argval), False
        elif _loads_called(each):
            return each.argval, each.opname != "LOAD_GLOBAL"
    return "", False


def lets_others_run(function: Any, owner: Any) -> bool:
    """Returns whether each turn of a loop that may have no end waits where it can be left.

    Args:
        function: The function.
        owner: The object whose method it is, or another one.
    """
    loops = _while_loops(function.__code__)
    return all(
        any(
            _waits_at(function, owner, at) and not _is_skipped(function.__code__, at, loop)
            for at in loop
        )
        for loop in loops
    )


def _waits_at(function: Any, owner: Any, at: int) -> bool:
    code = function.__code__
    if at not in _instructions(code) or (_line_of_call(code, at) or _line_after(code, at)) is None:
        return False
    name, is_attribute = _called_name(code, at)
    called = getattr(type(owner), name, None) if is_attribute else function.__globals__.get(name)
    names = getattr(getattr(called, "__code__", None), "co_names", ())
    return not _WAITS.isdisjoint([name, *names])


def _is_skipped(code: CodeType, at: int, loop: range) -> bool:
    """Returns whether a turn of a loop may jump over an instruction."""
    ends = [each.stop for each in _while_loops(code) if each.start == loop.start and at in each]
    jumps = [each for each in _instructions(code).values() if loop.start <= each.offset < at]
    return any(each.jump_target and at < each.jump_target <= min(ends) for each in jumps)


@functools.lru_cache(maxsize=256)
def _while_loops(code: CodeType) -> list[range]:
    """Returns the offsets of each loop that is not one of an iterator."""
    at = _instructions(code)
    jumps = [each for each in at.values() if each.opname == "JUMP_BACKWARD"]
    loops = [each for each in jumps if at[each.jump_target].opname != "FOR_ITER"]
    return [range(each.jump_target, each.offset) for each in loops]


def _loads_called(instruction: Any) -> bool:
    return instruction.opname in ("LOAD_SPECIAL", "PUSH_NULL") or "NULL" in instruction.argrepr


def _is_kept(instruction: Any, following: Any) -> bool:
    """Returns whether a value that was loaded before a call can't be another one later."""
    return (
        _loads_called(instruction)
        or instruction.opname.startswith(("LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT"))
        or instruction.opname in ("EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME", "COPY", "SWAP")
        or following.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR", "PUSH_NULL", "COPY")
    )


def _is_without_effect(instruction: Any) -> bool:
    name: str = instruction.opname
    if name.startswith(("LOAD_", "BUILD_")):
        return name != "LOAD_FAST_AND_CLEAR"
    return name in _WITHOUT_EFFECT


def _can_be_left(code: CodeType, at: int) -> bool:
    """Returns whether an unexpected exception of the call at an instruction has no other effect."""
    if code.co_flags & _GENERATORS or not code.co_flags & inspect.CO_OPTIMIZED or code.co_cellvars:
        return False
    instructions = list(_instructions(code).values())
    index = {each.offset: number for number, each in enumerate(instructions)}
    if not instructions[index[at]].opname.startswith("CALL"):  # such as that of a property
        return False
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
    """Returns the offset of the code, if any, that handles an exception at an instruction."""
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
