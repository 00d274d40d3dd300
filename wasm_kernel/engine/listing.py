"""`fd_readdir` on the workspace's root, with the hidden names left out.

The buffer is filled again from the last entry read wherever leaving one out made room: a buffer
that is not full means the end of the folder to the guest. Source of the layout: WASI's `dirent`,
24 bytes (next u64, inode u64, name length u32, type u8), then the name; the last one may be cut
off. Half a name may be half a hidden one, so a cut-off entry keeps its length and nothing else:
readers ask for it again.
"""

from __future__ import annotations

from wasm_kernel.engine import abi
from wasm_kernel.engine.names import is_hidden
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call

_HEADER = 24


def fill(reach: Reach, call: Call) -> int:
    """Answer the guest's `fd_readdir`; WASI's error number."""
    _, buffer, room, cookie, out = call.args
    kept = b""
    while True:
        call.replace(2, room - len(kept))
        call.replace_long(3, cookie)
        answer = call.forward()
        if answer != abi.SUCCESS:
            return answer
        got = reach.read(buffer, reach.read_word(out))
        shown, tail, cookie, hidden = split(got, cookie)
        kept += shown
        if not hidden or len(got) + len(kept) - len(shown) < room:
            kept += _blank(tail)
            break
    reach.write(buffer, kept)
    reach.write_word(out, len(kept))
    return abi.SUCCESS


def split(data: bytes, cookie: int) -> tuple[bytes, bytes, int, bool]:
    """The whole entries that may be seen, the cut-off one at the end, the cookie after the last
    whole one, and whether one was left out.
    """
    at, shown, hidden = 0, b"", False
    while at + _HEADER <= len(data):
        end = at + _HEADER + int.from_bytes(data[at + 16 : at + 20], "little")
        if end > len(data):
            break
        cookie = int.from_bytes(data[at : at + 8], "little")
        if is_hidden(data[at + _HEADER : end].decode("utf-8", "replace")):
            hidden = True
        else:
            shown += data[at:end]
        at = end
    return shown, data[at:], cookie, hidden


def _blank(tail: bytes) -> bytes:
    """A cut-off entry of the same length, with no more of it than its place and name length."""
    return (tail[:8] + bytes(8) + tail[16:20] + bytes(len(tail)))[: len(tail)]
