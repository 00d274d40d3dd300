"""Edits of a WebAssembly module: each finds what it expects, or no module is made."""

from __future__ import annotations

import pytest
from wasmtime import Engine, Func, FuncType, Instance, Memory, Module, Store, ValType, wat2wasm

from guest.assembler import I32_ADD, call, i32_const, local_get, local_set, signed, unsigned
from guest.wasm_module import START, DataEdit, Edit, Function, ModuleError, WasmModule

SOURCE = """
(module
  (import "host" "unused" (func (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 70000) "abcdef")
  (func $seven (export "seven") (param i32) (result i64) (local i64 i64) (local i32)
    i32.const 7
    i64.extend_i32_s)
  (func $same i32.const 1 drop)
  (func $eight (export "eight") (result i32) i32.const 8)
)
"""
SEVEN, EIGHT, MANY = i32_const(7), i32_const(8), i32_const(-70_000)


@pytest.fixture(scope="module")
def module() -> WasmModule:
    return WasmModule(bytes(wat2wasm(SOURCE)))


def test_what_was_edited_runs(module: WasmModule) -> None:
    edits = [
        Edit("eight", 1, EIGHT, MANY, "another number, in more bytes"),
        Edit("seven", START, b"", local_get(0) + b"\x1a", "an insertion"),
        Edit("seven", module.body("seven").index(SEVEN), SEVEN, SEVEN + SEVEN + I32_ADD, "a sum"),
    ]
    changed = module.patched(edits, [DataEdit(70_002, b"cd", b"XY", "two letters")])
    store = Store(Engine())
    nothing = Func(store, FuncType([ValType.i32()], []), lambda _: None)
    exports = Instance(store, Module(store.engine, changed), [nothing]).exports(store)
    seven, eight, memory = exports["seven"], exports["eight"], exports["memory"]
    assert isinstance(seven, Func) and isinstance(eight, Func) and isinstance(memory, Memory)
    assert seven(store, 0) == 14
    assert eight(store) == -70_000
    assert memory.read(store, 70_000, 70_006) == b"abXYef"
    assert b"eight" in changed and b"same" not in changed  # an export, and a name only
    assert WasmModule(changed).patched(()) == changed
    assert bytes(wat2wasm(SOURCE)).startswith(module.patched(()))  # names come last


def test_a_function_gets_a_further_local_variable(module: WasmModule) -> None:
    """`seven` has a parameter and three variables of its own."""
    index, declared = module.further_locals("seven", b"\x7d\x7f", "an f32 and an i32")
    assert index == 4
    keep = b"\x43" + bytes(4) + local_set(index)
    at = module.body("seven").index(SEVEN)
    changed = module.patched([*declared, Edit("seven", at, b"", keep, "a use")])
    Module(Engine(), changed)
    assert module.functions_like("se?ven|e.*") == ["eight", "seven"]


def test_a_function_is_added_and_called(module: WasmModule) -> None:
    index = module.new_index(0)
    doubled = local_get(0) + local_set(1) + i32_const(21) + i32_const(21) + I32_ADD + b"\xac"
    added = Function("seven", b"\x7f", doubled, "a function of the same type")
    copied = Function("eight", b"", b"", "a copy", module.body("eight"))
    edits = [
        Edit("seven", START, b"", local_get(0) + call(index) + b"\x0f", "calls the first"),
        Edit("eight", START, b"", call(index + 1) + i32_const(1) + I32_ADD + b"\x0f", "the second"),
    ]
    store = Store(Engine())
    changed = Module(store.engine, module.patched(edits, (), [added, copied]))
    nothing = Func(store, FuncType([ValType.i32()], []), lambda _: None)
    exports = Instance(store, changed, [nothing]).exports(store)
    seven, eight = exports["seven"], exports["eight"]
    assert isinstance(seven, Func) and isinstance(eight, Func)
    assert (seven(store, 0), eight(store)) == (42, 9)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Edit("eight", 2, EIGHT, MANY, "x"), r"eight holds 08 0b at 2, and 41 08 .* stand at 1\."),
        (Edit("eight", 1, SEVEN, MANY, "x"), r"and 41 07 was expected .* stand nowhere in it"),
        (Edit("nine", 1, EIGHT, MANY, "x"), r"no function of the name nine"),
        (Edit("seven", 99, SEVEN, MANY, "x"), r"seven holds  at 99"),
    ],
)
def test_an_edit_that_does_not_fit_says_where_its_bytes_are(
    module: WasmModule, edit: Edit, words: str
) -> None:
    with pytest.raises(ModuleError, match=words):
        module.patched([edit])


def test_edits_of_the_same_bytes_are_refused(module: WasmModule) -> None:
    edit = Edit("eight", 1, EIGHT, MANY, "x")
    with pytest.raises(ModuleError, match="overlap"):
        module.patched([edit, edit])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (DataEdit(70_000, b"b", b"c", "x"), r"the data at 70000 is 61, and 62 was expected"),
        (DataEdit(70_005, b"fg", b"xy", "x"), r"no initial data lies at 70005"),
        (DataEdit(70_000, b"a", b"xy", "x"), r"as many"),
    ],
)
def test_data_that_does_not_fit_is_refused(module: WasmModule, edit: DataEdit, words: str) -> None:
    with pytest.raises(ModuleError, match=words):
        module.patched((), [edit])


def test_numbers_are_encoded_as_the_specification_says() -> None:
    """The examples are the specification's, and those of the DWARF standard that it cites."""
    assert unsigned(624485) == bytes.fromhex("e58e26")
    assert unsigned(3, 5) == bytes.fromhex("8380808000")
    assert signed(-123456) == bytes.fromhex("c0bb78")
    assert [signed(n).hex() for n in (63, 64, -64, -65)] == ["3f", "c000", "40", "bf7f"]
