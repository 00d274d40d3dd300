"""Bytes of the WebAssembly instructions that patches are written in.

The encodings are those of the core specification, section 5.4. Only instructions that a patch uses
are here.
"""

from __future__ import annotations

import struct

ADDRESS_BYTES = 5
"""The linker writes each address of data with all five bytes, so that it can fill them in late."""

I32_EQ, I32_ADD, I32_AND, I32_OR = b"\x46", b"\x6a", b"\x71", b"\x72"
I32_EQZ, I32_GT_S, I64_GT_S, I64_MUL = b"\x45", b"\x4a", b"\x55", b"\x7e"
I32_SUB, I32_MUL, I32_GE_S, I32_GE_U = b"\x6b", b"\x6c", b"\x4e", b"\x4f"
I32_LT_U = b"\x49"
I32_NE, I32_LT_S, I32_SHL, I64_EXTEND_I32_S = b"\x47", b"\x48", b"\x74", b"\xac"
I32_WRAP_I64, I64_XOR, I64_NE, I64_LT_S = b"\xa7", b"\x85", b"\x52", b"\x53"
I64_AND = b"\x83"
I64_EXTEND_I32_U, I64_EXTEND32_S = b"\xad", b"\xc4"
F64_ABS, F64_SUB, F64_LT, F64_GE = b"\x99", b"\xa1", b"\x63", b"\x66"
F64_ADD, F64_EQ, F64_NE = b"\xa0", b"\x61", b"\x62"
F64_PROMOTE_F32, F32_DEMOTE_F64 = b"\xbb", b"\xb6"
I64_LOAD, I64_STORE = b"\x29\x00\x00", b"\x37\x00\x00"  # at an address of any alignment
MEMORY_COPY = b"\xfc\x0a\x00\x00"
SELECT = b"\x1b"
I32, I64, F64, V128 = b"\x7f", b"\x7e", b"\x7c", b"\x7b"  # types
BLOCK, LOOP, IF = b"\x02\x40", b"\x03\x40", b"\x04\x40"
ELSE, END, RETURN, DROP = b"\x05", b"\x0b", b"\x0f", b"\x1a"


def unsigned(number: int, width: int = 1) -> bytes:
    """Encodes an unsigned number (LEB128) in at least `width` bytes."""
    encoded = bytearray()
    while number > 0x7F or len(encoded) + 1 < width:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def signed(number: int) -> bytes:
    """Encodes a signed number (LEB128) in as few bytes as possible."""
    encoded = bytearray()
    while not -0x40 <= number <= 0x3F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number & 0x7F)
    return bytes(encoded)


def i32_const(number: int) -> bytes:
    """Pushes a number."""
    return b"\x41" + signed(number)


def i64_const(number: int) -> bytes:
    """Pushes a number of 64 bits."""
    return b"\x42" + signed(number)


def call(function: int) -> bytes:
    """Calls a function, by its index."""
    return b"\x10" + unsigned(function)


def br(depth: int) -> bytes:
    """Branches to the end of the block, or the start of the loop, `depth` blocks further out."""
    return b"\x0c" + unsigned(depth)


def br_if(depth: int) -> bytes:
    """Branches as `br` if the number on the stack is not 0."""
    return b"\x0d" + unsigned(depth)


def vector(number: int) -> bytes:
    """Encodes an instruction for vectors of 128 bits, by its number."""
    return b"\xfd" + unsigned(number)


def f64_const(number: float) -> bytes:
    """Pushes a number."""
    return b"\x44" + struct.pack("<d", number)


def f32_const(number: float) -> bytes:
    """Pushes a number."""
    return b"\x43" + struct.pack("<f", number)


def trunc_sat(*, is_wide: bool, is_double: bool, is_unsigned: bool) -> bytes:
    """Casts a float to an i32 or an i64; values out of range become the nearest, NaN becomes 0."""
    return b"\xfc" + unsigned(4 * is_wide + 2 * is_double + is_unsigned)


I32_TRUNC_SAT_F64_S = trunc_sat(is_wide=False, is_double=True, is_unsigned=False)
I64_TRUNC_SAT_F64_S = trunc_sat(is_wide=True, is_double=True, is_unsigned=False)


def local_set(index: int) -> bytes:
    """Pops a number from the stack into a local variable."""
    return b"\x21" + unsigned(index)


def local_tee(index: int) -> bytes:
    """Copies the number on the stack into a local variable."""
    return b"\x22" + unsigned(index)


def local_get(index: int) -> bytes:
    """Pushes a parameter or a local variable."""
    return b"\x20" + unsigned(index)


def i32_load(offset: int) -> bytes:
    """Pushes the 4 bytes at the address on the stack plus `offset`."""
    return b"\x28\x02" + unsigned(offset)


def i32_load_static(address: int) -> bytes:
    """Pushes the 4 bytes of a static variable; the base on the stack is 0."""
    return b"\x28\x02" + unsigned(address, ADDRESS_BYTES)


def i32_load_byte(offset: int) -> bytes:
    """Pushes the byte at the address on the stack plus `offset`, as an unsigned number."""
    return b"\x2d\x00" + unsigned(offset)


def i64_load_half(offset: int) -> bytes:
    """Pushes the 4 bytes at the address on the stack plus `offset`, as a signed i64."""
    return b"\x34\x00" + unsigned(offset)


def i32_const_address(address: int) -> bytes:
    """Pushes the address of a static variable, in all bytes that the linker reserved."""
    return b"\x41" + unsigned(address, ADDRESS_BYTES)


def global_get(index: int) -> bytes:
    """Pushes a global variable."""
    return b"\x23" + unsigned(index)


def global_set(index: int) -> bytes:
    """Pops a number from the stack into a global variable."""
    return b"\x24" + unsigned(index)


def i32_store(offset: int) -> bytes:
    """Stores 4 bytes at the address below them on the stack plus `offset`."""
    return b"\x36\x02" + unsigned(offset)


def i32_store_static(address: int) -> bytes:
    """Stores 4 bytes in a static variable; the base below them on the stack is 0."""
    return b"\x36\x02" + unsigned(address, ADDRESS_BYTES)


def i64_store(offset: int) -> bytes:
    """Stores 8 bytes at the address below them on the stack plus `offset`."""
    return b"\x37\x03" + unsigned(offset)


def i64_store_low_half(offset: int) -> bytes:
    """Stores the lower 4 bytes of an i64 (`i64.store32`)."""
    return b"\x3e\x02" + unsigned(offset)
