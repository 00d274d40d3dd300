"""Functions that a waiting thread leaves, and enters again where it waited.

The guest has one stack, so a thread that waits must leave its functions before another one can go
on. It leaves them by an exception. Later a tracer moves a new call of each function to the same
line, with the same variables, and the thread waits again.

A function is left only if that makes no difference: no code reacts to the exception, the line has
neither done nor read anything before the wait, and no iterator, context manager or inner function
of the call is lost.
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

from wasm_kernel_agent import looked_up

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_BEGINNING = 0  # the line of a function that goes on from its beginning
_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_WITHOUT_EFFECT = {
    *("EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME", "PUSH_NULL", "COPY", "SWAP", "BINARY_OP"),
    *("COMPARE_OP", "UNARY_NEGATIVE", "UNARY_NOT", "DICT_MERGE", "LIST_EXTEND"),
    *("CALL_INTRINSIC_1", "FORMAT_SIMPLE"),
}
_OF_HANDLERS = {"PUSH_EXC_INFO", "CHECK_EXC_MATCH", "COPY", "POP_EXCEPT"}
_OTHER = (
    "a thread that waited begins its line anew in the sandbox, but a name, an attribute or a "
    "function that the line uses was replaced in between. Read it into a local variable before."
)
_WAITS = {"sleep", "wait", "get", "put", "acquire", "join", "result"}


class Place(NamedTuple):
    """The line where a function goes on, and its variables."""

    code: CodeType
    line: int
    values: dict[str, Any]
    is_after_wait: bool
    is_in_loop: bool  # in a loop that may have no end
    begin: int = 0  # the offset of the line
    at: int = 0  # the offset of its call
    called: tuple[Any, ...] = ()  # the values that the line reads for its call


class _Left(BaseException):
    """Ends a trial jump."""


def find_places(waits: FrameType, *, is_sleep: bool) -> list[Place] | None:
    """Returns where a waiting function and its callers up to `enter` go on, the outermost first.

    Args:
        waits: The frame of the function that waits.
        is_sleep: The function need not wait again, if its line has nothing more to do.

    Returns:
        None if one of the functions can't be entered again.
    """
    frame: Any = waits.f_back
    called = waits.f_code
    given = {name: waits.f_locals[name] for name in _arguments(called)}
    places = [Place(called, _BEGINNING, given, is_after_wait=False, is_in_loop=False)]
    if sys.gettrace() or sys.getprofile():
        return None
    while frame.f_code is not enter.__code__:
        place = _place(frame, called, is_sleep=is_sleep)
        if place is None:
            return None
        if place.is_after_wait:
            places.clear()
        places.insert(0, place)
        frame, called, is_sleep = frame.f_back, frame.f_code, False
    first = plain_function(frame.f_locals["call"])
    return places if getattr(first, "__code__", None) is called else None


def _place(frame: FrameType, called: CodeType, *, is_sleep: bool) -> Place | None:
    code, at = frame.f_code, frame.f_lasti
    after = _line_after(code, at) if is_sleep else None
    begins = (0, after) if after is not None else _line_of_call(code, at)
    values = {name: frame.f_locals[name] for name in code.co_varnames if name in frame.f_locals}
    if begins is None or not values.keys() >= set(_arguments(code)):
        return None
    told = looked_up.told(code)
    if told is None or not told <= values.keys() or _is_caught(frame, at):
        return None
    found = _lookups(frame, begins[0], at) if after is None else []
    if found is None or not _calls(frame, called, found):
        return None
    is_in_loop = any(at in each for each in _while_loops(code)) and not _is_own(code)
    is_after = after is not None
    return Place(code, begins[1], values, is_after, is_in_loop, begins[0], at, tuple(found))


def _lookups(frame: FrameType, begin: int, at: int) -> list[Any] | None:
    """Returns the values that a line loads up to a call's function; None if they may change."""
    line = [each for each in _instructions(frame.f_code).values() if begin <= each.offset < at]
    number = max((number for number, each in enumerate(line) if _loads_called(each)), default=-1)
    return looked_up.values(frame, line, number + 1)


def enter(call: Callable[[], Any], places: list[Place]) -> Any:
    """Makes a call whose functions go on at their places. The places are used up."""
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not places or frame.f_code is not places[0].code:
            return None
        if event != "line":
            return trace
        place = places.pop(0)
        _move(frame, place.line, place.values)
        found = _lookups(frame, place.begin, place.at) if place.called else []
        is_same = found is not None and all(map(looked_up.is_same, place.called, found))
        if not is_same or (found and not _calls(frame, places[0].code, found)):
            places.clear()
            raise RuntimeError(_OTHER)
        if not places:
            sys.settrace(before)
        return _trace_nothing

    if places and plain_function(call).__code__ is not places[0].code:
        raise RuntimeError(_OTHER)
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
    """Raises an exception in the functions up to `enter`, at lines that do not catch it."""

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
def _line_of_call(code: CodeType, at: int) -> tuple[int, int] | None:
    """Returns the offset and number of a call's line; None if the line can't be run again."""
    if not _can_be_left(code, at):
        return None
    following, is_argument = _instructions(code)[at], True
    for each in reversed([each for each in _instructions(code).values() if each.offset < at]):
        is_argument = is_argument and not _loads_called(each)
        if not (_is_without_effect(each) if is_argument else _is_kept(each, following)):
            return None
        if each.opname == "RESUME":
            return 0, _BEGINNING
        if each.starts_line and _can_enter(code, each):
            return each.offset, int(each.line_number)
        following = each
    return None


@functools.lru_cache(maxsize=1024)
def _line_after(code: CodeType, at: int) -> int | None:
    """Returns the line after the one of a call, if that line does nothing after the call."""
    following = iter([each for each in _instructions(code).values() if each.offset > at])
    if not _can_be_left(code, at) or next(following).opname != "POP_TOP":
        return None
    each = next(following)
    if each.opname in ("JUMP_BACKWARD", "JUMP_FORWARD"):
        each = _instructions(code)[each.jump_target]
    return int(each.line_number) if each.starts_line and _can_enter(code, each) else None


def _calls(frame: FrameType, called: CodeType, found: list[Any]) -> bool:
    """Returns whether a function called `called` directly, and not through C code."""
    name, is_attribute = _called_name(frame.f_code, frame.f_lasti)
    if is_attribute and (not found or name == "__enter__"):
        return called.co_name == ("acquire" if found else name)
    function = found[-1] if found else frame.f_locals.get(name, frame.f_globals.get(name))
    return getattr(plain_function(function), "__code__", None) is called


@functools.lru_cache(maxsize=1024)
def _called_name(code: CodeType, at: int) -> tuple[str, bool]:
    """Returns the name of an instruction's function, and whether it is an attribute."""
    before = [each for each in _instructions(code).values() if each.offset < at]
    inner = 0  # calls among the arguments
    for number, each in reversed([*enumerate(before)]):
        if each.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
            inner += 1
        elif _loads_called(each) and inner:
            inner -= 1
        elif each.opname == "LOAD_SPECIAL":
            return "__enter__", True
        elif each.opname == "PUSH_NULL":
            return str(before[number - 1].argval), False
        elif _loads_called(each):
            return each.argval, each.opname != "LOAD_GLOBAL"
    return "", False


def lets_others_run(function: Any, owner: Any) -> bool:
    """Returns whether a function's `while` loops all wait, in each turn, where it can be left.

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
    if at not in _instructions(code) or not _instructions(code)[at].opname.startswith("CALL"):
        return False
    name, is_attribute = _called_name(code, at)
    called = getattr(type(owner), name, None) if is_attribute else function.__globals__.get(name)
    names = getattr(getattr(called, "__code__", None), "co_names", ())
    is_wait = not _WAITS.isdisjoint([name, *names])
    return is_wait and (_line_of_call(code, at) or _line_after(code, at)) is not None


def _is_skipped(code: CodeType, at: int, loop: range) -> bool:
    """Returns whether a turn of a loop may jump over an instruction."""
    ends = [each.stop for each in _while_loops(code) if each.start == loop.start and at in each]
    jumps = [each for each in _instructions(code).values() if loop.start <= each.offset < at]
    return any(each.jump_target and at < each.jump_target <= min(ends) for each in jumps)


@functools.lru_cache(maxsize=256)
def _while_loops(code: CodeType) -> list[range]:
    """Returns the offsets of each loop without an iterator."""
    at = _instructions(code)
    jumps = [each for each in at.values() if each.opname == "JUMP_BACKWARD"]
    loops = [each for each in jumps if at[each.jump_target].opname != "FOR_ITER"]
    return [range(each.jump_target, each.offset) for each in loops]


def _loads_called(instruction: Any) -> bool:
    return instruction.opname in ("LOAD_SPECIAL", "PUSH_NULL") or "NULL" in instruction.argrepr


def _is_kept(instruction: Any, following: Any) -> bool:
    """Returns whether a value that was loaded before a call stays the same."""
    return (
        _loads_called(instruction)
        or instruction.opname.startswith(("LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT"))
        or instruction.opname in ("EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME", "COPY", "SWAP")
        or (instruction.opname.startswith("LOAD_") and _looks_up_more(following))
    )


def _looks_up_more(following: Any) -> bool:
    return following.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR", "LOAD_DEREF", "PUSH_NULL")


def _is_without_effect(instruction: Any) -> bool:
    name: str = instruction.opname
    if name.startswith(("LOAD_", "BUILD_")):
        return name != "LOAD_FAST_AND_CLEAR"
    return name in _WITHOUT_EFFECT


def _can_be_left(code: CodeType, at: int) -> bool:
    """Returns whether an exception in an instruction's call only ends the function."""
    if code.co_flags & _GENERATORS or not code.co_flags & inspect.CO_OPTIMIZED or code.co_cellvars:
        return False
    is_call = _instructions(code)[at].opname.startswith("CALL")  # a property would also call code
    return is_call and _handler_loads(code, at) is not None


def _is_caught(frame: FrameType, at: int) -> bool:
    """Returns whether a handler may catch the exception that leaves a function."""
    return looked_up.may_catch(frame, _handler_loads(frame.f_code, at) or [])


@functools.lru_cache(maxsize=1024)
def _handler_loads(code: CodeType, at: int) -> list[Any] | None:
    """Returns the instructions of handlers that load classes, if they have no others."""
    instructions = list(_instructions(code).values())
    index = {each.offset: number for number, each in enumerate(instructions)}
    loads = []
    while handlers := _handlers(code, at):
        number = index[handlers[0]]
        while (each := instructions[number]).opname != "RERAISE":
            if each.opname == "POP_JUMP_IF_FALSE":
                number = index[each.jump_target]
                continue
            if each.opname not in _OF_HANDLERS and not _is_without_effect(each):
                return None
            loads += [each] if each.opname.startswith("LOAD_") else []
            number += 1
        at = each.offset
    return loads


def _handlers(code: CodeType, at: int) -> list[int]:
    """Returns the offset of the code, if any, that handles an exception at an instruction."""
    ranges = vars(dis)["_parse_exception_table"](code)
    return [each.target for each in ranges if each.start <= at < each.end]


def _can_enter(code: CodeType, instruction: Any) -> bool:
    """Returns whether a trial jump from the beginning reaches an instruction's line."""
    bare = code.replace(
        co_argcount=0,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~_VARIABLE,
        co_exceptiontable=b"",  # no handler may run
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
    except (_Left, ValueError):
        pass
    finally:
        sys.settrace(before)
    return landed == [instruction.offset]
