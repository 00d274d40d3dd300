"""Code of threads: a function as a generator, which is left while it waits.

The generator does what the function does, instruction by instruction. In addition, each call asks
`called` first, and if that gives another generator, the call is a `yield from`; and a `while` loop
may yield between two turns. Added instructions stand at the code's end. Jumps lead there and back,
so that all others stay as they are.

Only calls by Python functions can be left: not those by generators, nor by compiled code, such as
the call of a key of `sorted`.
"""

from __future__ import annotations

import builtins
import contextvars
import dis
import functools
import inspect
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator
from types import BuiltinMethodType, CodeType, FunctionType, MethodType
from typing import Any

_Instruction = tuple[str, int]
_OTHER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OPERANDS = {"CALL": 1, "CALL_KW": 2, "CALL_FUNCTION_EX": 3}  # operands other than the arguments
_LIBRARY = inspect.ismodule.__code__.co_filename.removesuffix("inspect.py")
_LEFT = tuple(  # the library's functions that wait, or call functions that may wait
    _LIBRARY + name
    for name in (
        *("asyncio/", "concurrent/", "contextlib.py", "functools.py", "joblib/", "logging/"),
        *("multiprocessing/", "queue.py", "sched.py", "threading.py", "tqdm/", "unittest/"),
    )
)
_CACHES = vars(dis)["_inline_cache_entries"]
_UNIT = 2  # bytes of an instruction, and of each cache behind it
_JUMP = 2  # units of a jump, which leads over 0xFFFF units
_LONGEST = 0x3000  # bytes of code, which grow to eight times as many at most
_DEEPEST = 20  # functions that call each other, and are followed
_MOST_CODES = 2000  # codes that are kept for later cells
_METHODS = {name for each in (list, dict, set, str, bytes, deque) for name in dir(each)}
_METHODS -= {"get", "join"}  # in the library; those of queues and threads wait
_is_one_of_many = itertools.cycle([*[False] * 255, True]).__next__  # a quick count of turns


class _Place:
    """A call in code; `function` is the last one that was called here as it is.

    It is a constant of the code, so it has a hash: tracebacks count codes.
    """

    __slots__ = ("function",)

    def __init__(self) -> None:
        self.function: Any = None


_waits: dict[Any, Callable[..., Generator[Any]]] = {}
_codes: dict[int, tuple[CodeType, CodeType | None]] = {}  # by the identity of the first
_places: list[_Place] = []


def install(
    waits: dict[Any, Callable[..., Generator[Any]]], is_turn_over: Callable[[], bool]
) -> None:
    """Says where threads yield.

    Args:
        waits: Functions that wait, and the functions of generators that threads call instead.
        is_turn_over: Returns whether a thread yields at the next turn of a `while` loop.
    """
    _waits.update(waits)
    _Code.is_turn_over = staticmethod(is_turn_over)


def forget_functions() -> None:
    """Forgets functions, which a later cell may drop, replace or change."""
    _of_module.cache_clear()
    for place in _places:
        place.function = None
    for number in [number for number, (_, made) in _codes.items() if made is None]:
        del _codes[number]
    if len(_codes) > _MOST_CODES:
        _codes.clear()
        _places.clear()


def called(function: Any) -> Any:
    """Returns the function of generators that a thread calls in place of `function`.

    That is `function` itself if it is not to be left.
    """
    kind = type(function)
    if kind is FunctionType:
        return _generator_function(function) if function.__closure__ else _of_module(function)
    if kind is BuiltinMethodType:
        is_run = type(function.__self__) is contextvars.Context and function.__name__ == "run"
        return functools.partial(in_context, function.__self__) if is_run else function
    if kind is MethodType or kind is functools.partial:
        inner = function.__func__ if kind is MethodType else function.func
    else:
        owners = (vars(each) for each in kind.__mro__ if "__call__" in vars(each))
        inner = next(owners, {"__call__": None})["__call__"]
        if type(inner) is not FunctionType:  # an object that is called in another way
            return function
    if (found := called(inner)) is inner:
        return function
    if kind is functools.partial:
        return functools.partial(found, *function.args, **function.keywords)
    return MethodType(found, function.__self__ if kind is MethodType else function)


def _called_at(place: _Place, function: Any) -> Any:
    """Returns as `called` does; notes at its `place` a function that is called as it is."""
    found = called(function)
    if found is function:
        place.function = function
    return found


def in_context(
    context: contextvars.Context, function: Any, /, *args: Any, **kwargs: Any
) -> Generator[Any, None, Any]:
    """Calls a function in a context, as `Context.run` does."""
    found = called(function)
    if found is function:
        return context.run(function, *args, **kwargs)
    frames = _frames(found(*args, **kwargs))
    while True:
        try:
            wait = context.run(next, frames)
        except StopIteration as ended:
            return ended.value
        yield wait


def _frames(called: Generator[Any]) -> Generator[Any, None, Any]:
    """Runs a generator; StopIteration of its own code is no end, as for all generators."""
    return (yield from called)


@functools.lru_cache(maxsize=1024)
def _of_module(function: Any) -> Any:
    return _waits.get(function) or _generator_function(function)


def _generator_function(function: Any, depth: int = 0) -> Any:
    code = function.__code__
    if id(code) not in _codes:
        _codes[id(code)] = code, None  # a function that calls itself alone does not wait
        _codes[id(code)] = code, _generator_code(code, function.__globals__, depth)
    found = _codes[id(code)][1]
    if found is None:
        return function
    given = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    made = FunctionType(found, *given)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _generator_code(code: CodeType, names: dict[str, Any], depth: int) -> CodeType | None:
    """Returns the code of a generator, or None if it is not to be left."""
    is_library = code.co_filename.startswith(_LIBRARY)
    if is_library and not code.co_filename.startswith(_LEFT):
        return None
    if code.co_flags & _OTHER or len(code.co_code) > _LONGEST:
        return None
    made = _Code(code, names, depth, is_library=is_library)
    return made.as_generator() if made.may_be_left() else None


def _may_wait(function: Any, names: dict[str, Any], depth: int) -> bool:
    """Returns whether a function may wait; so may one of another module, or many calls away."""
    if type(function) is not FunctionType:
        return type(function) not in (BuiltinMethodType, type)
    is_near = function.__globals__ is names or function.__code__.co_filename.startswith(_LIBRARY)
    if function in _waits or depth == _DEEPEST or not is_near:
        return True
    return _generator_function(function, depth + 1) is not function


class _Code:
    """The code of a function, to which instructions are added."""

    is_turn_over: Callable[[], bool]  # whether the running thread yields

    def __init__(
        self, code: CodeType, names: dict[str, Any], depth: int, *, is_library: bool
    ) -> None:
        self._code, self._names, self._depth = code, names, depth
        # the library has locks that were made before ours, and end the guest if they are waited for
        self._is_library = is_library
        self._instructions = [*dis.get_instructions(code)]
        self._bytes = bytearray(code.co_code)
        self._constants = [*code.co_consts]
        self._handlers = [*vars(dis)["_parse_exception_table"](code)]
        self._positions = [*code.co_positions()]
        self._lines = bytearray(code.co_linetable)
        lines = [line for line, *_ in self._positions if line is not None]
        self._line = lines[-1] if lines else code.co_firstlineno

    def as_generator(self) -> CodeType:
        """Returns the code of a generator."""
        for each in self._instructions:
            if each.opname in _OPERANDS:
                self._leave_at(each)
            elif self._is_end_of_while(each):
                self._yield_at(each)
        begin = _assembled([("RETURN_GENERATOR", 0), ("POP_TOP", 0)])
        return self._code.replace(
            co_code=bytes(begin + self._bytes),
            co_consts=tuple(self._constants),
            co_names=(*self._code.co_names, "function"),
            co_linetable=_location(len(begin), None, 0) + bytes(self._lines),
            co_exceptiontable=b"".join(_handler(each, len(begin)) for each in self._handlers),
            co_stacksize=self._code.co_stacksize + 4,
            co_flags=self._code.co_flags | inspect.CO_GENERATOR,
        )

    def may_be_left(self) -> bool:
        """Returns whether the function has a `while` loop, or calls functions that may wait."""
        return any(
            self._is_end_of_while(each) or self._loads_function(each) for each in self._instructions
        )

    def _loads_function(self, instruction: Any) -> bool:
        kind, name = instruction.opname, instruction.argval
        if kind == "LOAD_GLOBAL":
            found = self._names.get(name, vars(builtins).get(name))
            return "NULL" in instruction.argrepr and _may_wait(found, self._names, self._depth)
        if kind == "LOAD_ATTR":
            is_plain = name in _METHODS and self._is_library
            return "NULL" in instruction.argrepr and not is_plain
        return kind in ("PUSH_NULL", "LOAD_SPECIAL", "LOAD_SUPER_ATTR")

    def _is_end_of_while(self, instruction: Any) -> bool:
        is_end = instruction.opname == "JUMP_BACKWARD" and not self._is_library
        return is_end and self._code.co_code[instruction.jump_target] != dis.opmap["FOR_ITER"]

    def _leave_at(self, call: Any) -> None:
        """Adds the instructions of a call."""
        size = _OPERANDS[call.opname] + (call.arg or 0)
        direct = [(call.opname, call.arg or 0)]
        yields = [
            *[("SWAP", size + 2), ("POP_TOP", 0), *direct, ("GET_ITER", 3), self._load(None)],
            *[("SEND", 4), ("YIELD_VALUE", 1), ("RESUME", 2), ("JUMP_BACKWARD_NO_INTERRUPT", 6)],
            ("END_SEND", 0),
        ]
        place = _Place()
        _places.append(place)
        asks = [
            *[self._load(functools.partial(_called_at, place)), ("PUSH_NULL", 0)],
            *[("COPY", size + 3), ("CALL", 1), ("COPY", 1), ("COPY", size + 3), ("IS_OP", 0)],
            ("POP_JUMP_IF_TRUE", _units(yields) + _JUMP),
        ]
        looks = [
            *[self._load(place), ("LOAD_ATTR", len(self._code.co_names) << 1)],  # its function
            *[("COPY", size + 2), ("IS_OP", 0)],
            ("POP_JUMP_IF_TRUE", _units(asks + yields) + _JUMP + 1),
        ]
        end = call.offset + _units(direct) * _UNIT
        self._jump_from(call)
        self._add([*looks, *asks, *yields], call, end)
        self._add([("POP_TOP", 0), *direct], call, end)

    def _yield_at(self, jump: Any) -> None:
        """Adds the instructions between two turns of a `while` loop."""
        turn = range(jump.jump_target, jump.offset)
        calls = any(each.offset in turn and each.opname in _OPERANDS for each in self._instructions)
        yields = [self._load(None), ("YIELD_VALUE", 0), ("RESUME", 1), ("POP_TOP", 0)]
        for function in (self.is_turn_over,) if calls else (self.is_turn_over, _is_one_of_many):
            asks = [self._load(function), ("PUSH_NULL", 0), ("CALL", 0)]
            yields = [*asks, ("POP_JUMP_IF_FALSE", _units(yields)), *yields]
        self._jump_from(jump)
        self._add(yields, jump, jump.jump_target)

    def _load(self, value: Any) -> _Instruction:
        self._constants.append(value)
        return "LOAD_CONST", len(self._constants) - 1

    def _jump_from(self, instruction: Any) -> None:
        """Replaces an instruction by a jump to the end."""
        start, at = instruction.start_offset, instruction.offset
        self._bytes[start:at] = _assembled([("NOP", 0)]) * ((at - start) // _UNIT)
        distance = len(self._bytes) - at - _JUMP * _UNIT
        self._bytes[at : at + _JUMP * _UNIT] = _far("JUMP_FORWARD", distance)

    def _add(self, instructions: list[_Instruction], of: Any, target: int) -> None:
        """Adds instructions that belong to another one, and a jump to `target`."""
        begin = len(self._bytes)
        self._bytes += _assembled(instructions)
        distance = len(self._bytes) + _JUMP * _UNIT - target
        self._bytes += _far("JUMP_BACKWARD_NO_INTERRUPT", distance)
        handlers = [each for each in self._handlers if each.start <= of.offset < each.end]
        self._handlers += [each._replace(start=begin, end=len(self._bytes)) for each in handlers]
        position = self._positions[of.offset // _UNIT]
        self._lines += _location(len(self._bytes) - begin, position, self._line)
        self._line = position[0] or self._line


def _assembled(instructions: list[_Instruction]) -> bytes:
    made = bytearray()
    for name, argument in instructions:
        if argument > 0xFF:
            made += bytes([dis.EXTENDED_ARG, argument >> 8])
        made += bytes([dis.opmap[name], argument & 0xFF])
        made += bytes(_UNIT * _CACHES.get(name, 0))
    return bytes(made)


def _units(instructions: list[_Instruction]) -> int:
    return len(_assembled(instructions)) // _UNIT


def _far(name: str, distance: int) -> bytes:
    """Returns a jump over a number of bytes, which always has two units."""
    high, low = divmod(distance // _UNIT, 0x100)
    return bytes([dis.EXTENDED_ARG, high & 0xFF, dis.opmap[name], low])


def _location(size: int, position: Any, last_line: int) -> bytes:
    """Returns the entries of a table of lines for bytes of code (Objects/locations.md)."""
    made = b""
    for begin in range(0, size, 8 * _UNIT):
        units = min(size - begin, 8 * _UNIT) // _UNIT
        if position is None or None in position:
            made += bytes([0x80 | 15 << 3 | units - 1])
            continue
        line, end_line, column, end_column = position
        delta, last_line = line - last_line, line
        numbers = (abs(delta) << 1 | (delta < 0), end_line - line, column + 1, end_column + 1)
        made += bytes([0x80 | 14 << 3 | units - 1])
        made += b"".join(bytes(_digits(each)) for each in numbers)
    return made


def _digits(number: int) -> Iterator[int]:
    """Yields six bits of a number at a time, from the lowest on."""
    while number > 0x3F:
        yield 0x40 | number & 0x3F
        number >>= 6
    yield number


def _handler(entry: Any, moved: int) -> bytes:
    """Returns an entry of a table of exceptions, for code that was moved."""
    sizes = entry.start + moved, entry.end - entry.start, entry.target + moved
    numbers = [*(size // _UNIT for size in sizes), entry.depth << 1 | entry.lasti]
    made = bytearray()
    for number in numbers:
        low, *rest = (each & 0x3F for each in _digits(number))
        made += bytes([*(0x40 | each for each in reversed(rest)), low]) if rest else bytes([low])
    made[0] |= 0x80
    return bytes(made)
