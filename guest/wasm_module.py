"""A WebAssembly module as bytes, whose single instructions and data can be replaced.

Functions are found by their names (the custom section `name`), and every edit names the bytes that
it expects: a module of another build is refused, never half patched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from guest.assembler import unsigned

START = -1
"""The place in a function before its first instruction, after the types of its local variables."""

_HEADER = b"\0asm\1\0\0\0"
_CUSTOM, _TYPES, _IMPORTS, _FUNCTIONS, _CODE, _DATA = 0, 1, 2, 3, 10, 11
_FUNCTION_NAMES = 1
_I32_CONST, _END = 0x41, 0x0B
_FUNCTION_KIND = 0


class ModuleError(Exception):
    """A module is not the one that a patch was written for; the text names the difference."""


@dataclass(frozen=True)
class Edit:
    """A replacement of instructions in one function.

    Attributes:
        function: Its name, or its index if several have the name.
        at: The place of the instructions, in bytes from the beginning of the function's body;
            `START` for an insertion before the first instruction.
        old: The bytes that stand there; none for an insertion.
        new: The bytes that replace them.
        why: The edit's effect for users.
    """

    function: str | int
    at: int
    old: bytes
    new: bytes
    why: str


@dataclass(frozen=True)
class Function:
    """A function that is added to the module; `WasmModule.new_index` returns its index.

    Attributes:
        like: The name of a function of the same type.
        variables: The types of its local variables beside the parameters, each of one byte.
        code: Its instructions, without the `end` behind them.
        why: Its purpose.
        body: Its whole body instead, if it is a copy of another function's.
    """

    like: str
    variables: bytes
    code: bytes
    why: str
    body: bytes = b""


@dataclass(frozen=True)
class DataEdit:
    """A replacement of bytes in the initial memory.

    Attributes:
        address: The address of the bytes in the guest's memory.
        old: The bytes that lie there.
        new: The bytes that replace them, of the same number.
        why: The edit's effect for users.
    """

    address: int
    old: bytes
    new: bytes
    why: str


@dataclass(frozen=True)
class _Span:
    """A place in the module's bytes: `header` begins with the size, `start` is behind it."""

    header: int
    start: int
    end: int


class WasmModule:
    """A module of one memory whose imports are functions.

    Raises:
        ModuleError: it is not such a module, or has no names.
    """

    def __init__(self, data: bytes) -> None:
        if not data.startswith(_HEADER):
            raise ModuleError("this is not a WebAssembly module of version 1")
        self._data = data
        self._sections: dict[int, _Span] = {}
        self._names: dict[str, list[int]] = defaultdict(list)  # indexes, with imports first
        self._name_section = _Span(len(data), len(data), len(data))
        position = len(_HEADER)
        while position < len(data):
            size, start = self._unsigned(position + 1)
            span = _Span(position, start, start + size)
            if data[position] == _CUSTOM:
                self._read_names(span)
            else:
                self._sections[data[position]] = span
            position = span.end
        self._bodies = list(self._each_body())

    def body(self, function: str) -> bytes:
        """Returns a function's body: the types of its local variables, and its instructions.

        Raises:
            ModuleError: there is no such function, or there are several.
        """
        span = self._bodies[self._number(function)]
        return self._data[span.start : span.end]

    def functions_like(self, pattern: str) -> list[str]:
        """Returns the names of the functions that a regular expression matches as a whole."""
        return sorted(filter(re.compile(pattern).fullmatch, self._names))

    def index(self, function: str) -> int:
        """Returns a function's index, by which it is called."""
        return self._number(function) + self._imported

    def new_index(self, number: int) -> int:
        """Returns the index of an added function, by its place among the added ones."""
        return self._imported + len(self._bodies) + number

    def bodies_of(self, function: str) -> list[int]:
        """Returns the indexes of all functions of a name; Cython's modules share names."""
        return list(self._names.get(function, []))

    def body_at(self, index: int) -> bytes:
        """Returns the body of a function by its index."""
        span = self._bodies[index - self._imported]
        return self._data[span.start : span.end]

    def initial_data(self, address: int, size: int) -> bytes:
        """Returns bytes of the initial memory; they are 0 outside of the module's data."""
        held = bytearray(size)
        for start, span in self._data_segments():
            for at in range(
                max(address, start), min(address + size, start + span.end - span.start)
            ):
                held[at - address] = self._data[span.start + at - start]
        return bytes(held)

    def further_locals(self, function: str | int, kinds: bytes, why: str) -> tuple[int, list[Edit]]:
        """Returns the index of the first new local variable, and the edits that declare them all.

        Args:
            function: The function's name.
            kinds: Their types, each of one byte.
            why: The edit's effect for users.
        """
        number = self._number(function)
        span = self._bodies[number]
        groups, position = self._unsigned(span.start)
        index = self._parameters(self._type(number))
        for _ in range(groups):
            count, position = self._unsigned(position)
            index, position = index + count, position + 1
        more = Edit(function, 0, unsigned(groups), unsigned(groups + len(kinds)), why)
        declared = b"".join(unsigned(1) + bytes([kind]) for kind in kinds)
        return index, [more, Edit(function, START, b"", declared, why)]

    def _type(self, number: int) -> int:
        """The number of a function's type."""
        wanted, position = 0, self._unsigned(self._sections[_FUNCTIONS].start)[1]
        for _ in range(number + 1):
            wanted, position = self._unsigned(position)
        return wanted

    def _parameters(self, wanted: int) -> int:
        """The number of parameters of functions of a type."""
        count, position = 0, self._unsigned(self._sections[_TYPES].start)[1]
        for _ in range(wanted + 1):
            count, start = self._unsigned(position + 1)
            results, position = self._unsigned(start + count)
            position += results
        return count

    def patched(
        self,
        edits: Iterable[Edit],
        data_edits: Iterable[DataEdit] = (),
        functions: Sequence[Function] = (),
    ) -> bytes:
        """Returns the module's bytes with all edits made, and without the functions' names.

        Nothing reads the names when the guest runs, and compiled code would hold them twice.

        Raises:
            ModuleError: an edit did not find the bytes that it expects.
        """
        by_function: dict[int, list[Edit]] = defaultdict(list)
        for edit in edits:
            by_function[self._number(edit.function)].append(edit)
        code = self._sections[_CODE]
        count, last = self._unsigned(code.start)
        parts = [unsigned(count + len(functions))]
        for number in sorted(by_function):
            span = self._bodies[number]
            body = self._edited(number, by_function[number])
            parts += [self._data[last : span.header], unsigned(len(body)), body]
            last = span.end
        parts.append(self._data[last : code.end])
        for function in functions:
            own = _declared(function.variables) + function.code + bytes([_END])
            body = function.body or own
            parts += [unsigned(len(body)), body]
        rest = self._with_data(code.end, data_edits)
        size = unsigned(sum(map(len, parts)))
        before = self._with_types(functions)
        return b"".join([before, bytes([_CODE]), size, *parts, rest])

    def _with_types(self, functions: Sequence[Function]) -> bytes:
        """Returns the bytes before the code, with the types of added functions."""
        code = self._sections[_CODE]
        if not functions:
            return self._data[: code.header]
        section = self._sections[_FUNCTIONS]
        count, start = self._unsigned(section.start)
        types = b"".join(unsigned(self._type(self._number(each.like))) for each in functions)
        content = unsigned(count + len(functions)) + self._data[start : section.end] + types
        return b"".join(
            [
                self._data[: section.header],
                bytes([_FUNCTIONS]),
                unsigned(len(content)),
                content,
                self._data[section.end : code.header],
            ]
        )

    def _number(self, function: str | int) -> int:
        """The place of a function among the bodies; imported functions have none."""
        if isinstance(function, int):
            return function - self._imported
        found = self._names.get(function, [])
        if len(found) != 1:
            many = "several functions" if found else "no function"
            raise ModuleError(f"the module has {many} of the name {function}")
        return found[0] - self._imported

    def _edited(self, number: int, edits: list[Edit]) -> bytes:
        span = self._bodies[number]
        body = self._data[span.start : span.end]
        placed = [(self._place(span, edit), edit) for edit in edits]
        parts, last = [], 0
        for at, edit in sorted(placed, key=lambda pair: pair[0]):
            if at < last:
                raise ModuleError(f"two edits of {edit.function} overlap at {at}")
            if not body.startswith(edit.old, at):
                raise ModuleError(_missed(edit, body))
            parts += [body[last:at], edit.new]
            last = at + len(edit.old)
        return b"".join([*parts, body[last:]])

    def _place(self, span: _Span, edit: Edit) -> int:
        return self._first_instruction(span) - span.start if edit.at == START else edit.at

    def _first_instruction(self, span: _Span) -> int:
        groups, position = self._unsigned(span.start)
        for _ in range(groups):
            position = self._unsigned(position)[1] + 1  # the number of variables, and their type
        return position

    def _with_data(self, start: int, edits: Iterable[DataEdit]) -> bytes:
        """Returns the bytes from `start` on, with the edits made and without names."""
        rest = bytearray(self._data[start:])
        for edit in edits:
            if len(edit.new) != len(edit.old):
                raise ModuleError(f"the data at {edit.address} must become as many bytes")
            at = self._place_of_data(edit) - start
            held = bytes(rest[at : at + len(edit.old)])
            if held != edit.old:
                raise ModuleError(
                    f"the data at {edit.address} is {held.hex(' ')}, and {edit.old.hex(' ')} "
                    f"was expected there ({edit.why})"
                )
            rest[at : at + len(edit.old)] = edit.new
        names = self._name_section  # behind the data, as the specification has it
        del rest[names.header - start : names.end - start]
        return bytes(rest)

    def _place_of_data(self, edit: DataEdit) -> int:
        for address, span in self._data_segments():
            if address <= edit.address and edit.address + len(edit.old) <= (
                address + span.end - span.start
            ):
                return span.start + edit.address - address
        raise ModuleError(f"no initial data lies at {edit.address} ({edit.why})")

    def _data_segments(self) -> Iterator[tuple[int, _Span]]:
        """Yields the addresses and places of the initial data."""
        count, position = self._unsigned(self._sections[_DATA].start)
        for _ in range(count):
            header, address = position, None
            passive, position = self._unsigned(position)
            if not passive:
                if self._data[position] != _I32_CONST:
                    raise ModuleError("the address of a piece of data is not a number")
                address, position = self._signed(position + 1)
                if self._data[position] != _END:
                    raise ModuleError("the address of a piece of data is not a number")
                position += 1
            size, position = self._unsigned(position)
            if address is not None:
                yield address, _Span(header, position, position + size)
            position += size

    def _each_body(self) -> Iterator[_Span]:
        count, position = self._unsigned(self._sections[_CODE].start)
        for _ in range(count):
            size, start = self._unsigned(position)
            yield _Span(position, start, start + size)
            position = start + size

    @property
    def _imported(self) -> int:
        """The number of imported functions, which have the first indexes."""
        count, position = self._unsigned(self._sections[_IMPORTS].start)
        for _ in range(count):
            for _ in ("module", "field"):
                size, position = self._unsigned(position)
                position += size
            if self._data[position] != _FUNCTION_KIND:
                raise ModuleError("the module imports something that is not a function")
            position = self._unsigned(position + 1)[1]
        return count

    def _read_names(self, section: _Span) -> None:
        size, position = self._unsigned(section.start)
        if self._data[position : position + size] != b"name":
            return
        position += size
        self._name_section = section
        while position < section.end:
            kind = self._data[position]
            size, start = self._unsigned(position + 1)
            if kind == _FUNCTION_NAMES:
                self._read_function_names(start)
            position = start + size

    def _read_function_names(self, position: int) -> None:
        count, position = self._unsigned(position)
        for _ in range(count):
            index, position = self._unsigned(position)
            size, position = self._unsigned(position)
            self._names[self._data[position : position + size].decode()].append(index)
            position += size

    def _unsigned(self, position: int) -> tuple[int, int]:
        """Reads an unsigned number; returns it and the position behind it."""
        number = shift = 0
        while True:
            byte = self._data[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number, position

    def _signed(self, position: int) -> tuple[int, int]:
        """Reads a signed number; returns it and the position behind it."""
        number, end = self._unsigned(position)
        bits = 7 * (end - position)
        return number - (1 << bits) if number >> (bits - 1) else number, end


def _declared(variables: bytes) -> bytes:
    """Declares local variables, by their types."""
    return unsigned(len(variables)) + b"".join(b"\1" + bytes([kind]) for kind in variables)


def _missed(edit: Edit, body: bytes) -> str:
    """Says that an edit did not find its bytes, and names other places of them in the function."""
    places: list[str] = []
    at = body.find(edit.old)
    while at >= 0 and len(places) < 20:
        places.append(str(at))
        at = body.find(edit.old, at + 1)
    elsewhere = f"They stand at {', '.join(places)}." if places else "They stand nowhere in it."
    held = body[edit.at : edit.at + len(edit.old)].hex(" ")
    return (
        f"{edit.function} holds {held} at {edit.at}, and {edit.old.hex(' ')} was expected there "
        f"({edit.why}). {elsewhere}"
    )
