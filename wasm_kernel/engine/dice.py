"""SQLite's dice: the generator behind `random()` in SQL, whose state lies in the guest's memory.

It is part of a base image, so it would fall alike in every session; and SQLite in a guest, which
has no `/dev/urandom`, would seed it with the time in seconds. No call of SQLite's throws it anew
from Python, so the host does. Its place is the same for every instance of one artifact and is found
once, when the base image is built, by a look before and a look after a number is drawn.

Source of the layout: `sqlite3Prng` in SQLite's random.c, since 3.42: 16 words of ChaCha20's state
(the constant, 8 of key, 1 that counts, 3 of nonce), 64 bytes of output, and how many of those are
left.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from wasm_kernel.engine.reach import Reach

_CONSTANT = b"expand 32-byte k"
_STATE, _LEFT = 64, 128
_DRAWN = 8  # bytes of one `random()`

CALIBRATION = (
    "import _host, sqlite3\n"
    "_draw = sqlite3.connect(':memory:').execute\n"
    "_draw('select random()').fetchone()\n"
    "_host.call(b'before')\n"
    "_draw('select random()').fetchone()\n"
    "_host.call(b'after')\n"
)


def places(before: bytes, after: bytes) -> list[int]:
    """Where the dice can lie: the state is as it was, and there are as many bytes less as were
    drawn.
    """
    found, at = [], before.find(_CONSTANT)
    while at >= 0 and at + _LEFT < min(len(before), len(after)):
        same = before[at : at + _LEFT] == after[at : at + _LEFT]
        if same and before[at + _LEFT] - after[at + _LEFT] == _DRAWN:
            found.append(at)
        at = before.find(_CONSTANT, at + 1)
    return found


def throw(reach: Reach, places: Sequence[int]) -> None:
    """Throw the dice anew, between two turns."""
    for at in places:
        state = _CONSTANT + os.urandom(32) + bytes(4) + os.urandom(12)
        reach.write(at, state.ljust(_STATE, b"\0"))
        reach.write(at + _LEFT, b"\0")
