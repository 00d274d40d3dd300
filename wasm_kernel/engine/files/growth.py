"""The calls that make a file longer or shorter: write, truncate, allocate.

A write that has room for a part of itself writes that part, as on a full disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.changes import Changes
from wasm_kernel.engine.files.opened import Opened, Table
from wasm_kernel.engine.files.quota import Full, Quota
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call, Shadow
from wasm_kernel.engine.versions.versions import Versions

_IOVEC = struct.Struct("<II")

Tell = Callable[[int, int], int]
"""The position of a descriptor; the second argument is guest memory for the answer."""


class Growth:
    """The calls of one guest. Only the guest's thread uses it.

    `scratch` is the address of eight bytes of guest memory that belong to the host; before they are
    known, no file can be written.
    """

    def __init__(
        self,
        table: Table,
        reach: Reach,
        tell: Tell,
        changes: Changes,
        *,
        quota: Quota,
        versions: Versions,
    ) -> None:
        self._table = table
        self._versions = versions
        self._reach = reach
        self._tell = tell
        self._changes = changes
        self._quota = quota
        self.scratch = 0

    def shadows(self) -> dict[str, Shadow]:
        """The calls, by WASI's name."""
        return {
            "fd_write": self._write,
            "fd_pwrite": self._write_at,
            "fd_filestat_set_size": self._set_size,
            "fd_allocate": self._allocate,
            "fd_fdstat_set_flags": self._set_flags,
        }

    def emptied(self, opened: Opened) -> None:
        """A file was cut to nothing when it was opened."""
        self._changed(opened, 0)

    def _write(self, call: Call) -> int:
        opened = self._table.by_number.get(call.args[0])
        if opened is None:
            return call.forward()
        if not self.scratch:
            return abi.EIO
        if opened.held is None or opened.fdflags & abi.FD_APPEND:
            return self._put(call, opened, None, call.args[3])
        start = self._tell(call.args[0], self.scratch)
        return self._put(call, opened, start, call.args[3])

    def _write_at(self, call: Call) -> int:
        opened = self._table.by_number.get(call.args[0])
        if opened is None:
            return call.forward()
        if not self.scratch:
            return abi.EIO
        at_end = opened.fdflags & abi.FD_APPEND  # even then, on Linux
        return self._put(call, opened, None if at_end else call.args[3], call.args[4])

    def _put(self, call: Call, opened: Opened, start: int | None, out: int) -> int:
        """Write at `start`, or at the end, as much as there is room for."""
        held = opened.held
        size = held.size if held is not None else 0
        start = size if start is None else start
        if held is not None:
            self._make_room(call, start, size)
        self._keep(opened)
        answer = call.forward()
        if answer == abi.SUCCESS and (written := self._reach.read_word(out)):
            self._changed(opened, max(size, start + written))
        return answer

    def _make_room(self, call: Call, start: int, size: int) -> None:
        buffers = self._reach.buffers(call.args[1], call.args[2])
        length = sum(length for _, length in buffers)
        needed = start + length - size
        if needed <= 0 or not length:
            return
        room = self._quota.room(needed)
        if room == needed:
            return
        length -= needed - room
        if length <= 0:
            raise Full
        at, first = next(buffer for buffer in buffers if buffer[1])
        self._reach.write(self.scratch, _IOVEC.pack(at, min(first, length)))
        call.replace(1, self.scratch)
        call.replace(2, 1)

    def _set_size(self, call: Call) -> int:
        return self._resize(call, call.args[1])

    def _allocate(self, call: Call) -> int:
        opened = self._table.by_number.get(call.args[0])
        now = opened.held.size if opened is not None and opened.held is not None else 0
        return self._resize(call, max(now, call.args[1] + call.args[2]))

    def _resize(self, call: Call, size: int) -> int:
        opened = self._table.by_number.get(call.args[0])
        if opened is None:
            return call.forward()
        more = size - opened.held.size if opened.held is not None else 0
        if more > 0 and self._quota.room(more) < more:
            raise Full
        self._keep(opened)
        answer = call.forward()
        if answer == abi.SUCCESS:
            self._changed(opened, size)
        return answer

    def _set_flags(self, call: Call) -> int:
        opened = self._table.by_number.get(call.args[0])
        answer = call.forward()
        if answer == abi.SUCCESS and opened is not None:
            opened.fdflags = call.args[1]
        return answer

    def _keep(self, opened: Opened) -> None:
        """A file is about to change."""
        if opened.key is not None:
            self._versions.write(opened.loose or opened.path, opened.key)

    def _changed(self, opened: Opened, size: int) -> None:
        """A file's content changed, and it is so long now."""
        if opened.held is not None:
            self._quota.resized(opened.held, size)
        if opened.key is not None:
            self._changes.wrote(opened.path, opened.key)
