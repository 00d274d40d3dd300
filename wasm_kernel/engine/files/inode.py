"""The number that wasmtime shows a guest for a file: a hash of its device and its own number.

A listing tells these numbers, too, and programs compare them. Source: `MetadataHashValue` in
wasmtime's `crates/wasi/src/filesystem.rs`: Rust's default hasher, which is SipHash-1-3 with keys of
zero, over the two numbers of 64 bits each, least significant byte first.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1
_LENGTH = 16 << 56  # 16 bytes were hashed

State = tuple[int, int, int, int]
# "somepseudorandomlygeneratedbytes", as SipHash begins with keys of zero
_BEGIN: State = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def _round(a: int, b: int, c: int, d: int) -> State:
    a = (a + b) & _MASK
    b = ((b << 13 | b >> 51) & _MASK) ^ a
    a = (a << 32 | a >> 32) & _MASK
    c = (c + d) & _MASK
    d = ((d << 16 | d >> 48) & _MASK) ^ c
    a = (a + d) & _MASK
    d = ((d << 21 | d >> 43) & _MASK) ^ a
    c = (c + b) & _MASK
    b = ((b << 17 | b >> 47) & _MASK) ^ c
    c = (c << 32 | c >> 32) & _MASK
    return a, b, c, d


def _absorb(state: State, word: int) -> State:
    a, b, c, d = state
    a, b, c, d = _round(a, b, c, d ^ word)
    return a ^ word, b, c, d


@lru_cache(maxsize=16)
def _begun(device: int) -> State:
    return _absorb(_BEGIN, device & _MASK)


def guest_inode(device: int, number: int) -> int:
    """What the guest's `stat` shows as the inode of a file.

    Args:
        device: The host's `st_dev`.
        number: The host's `st_ino`.
    """
    a, b, c, d = _absorb(_absorb(_begun(device), number), _LENGTH)
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d
