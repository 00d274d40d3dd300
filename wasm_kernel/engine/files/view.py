"""What the guest sees of the disk: wasmtime's own file calls, looked at on their way.

wasmtime keeps a guest inside its preopened folders. On top of that, each call that names a path is
read here: names that do not exist for the guest are answered with ENOENT, paths below a mount are
led to it, what changed in the workspace is noted (`changes.py`), and what would go beyond the quota
is refused (`quota.py`).

Between the look and wasmtime's own act nothing of the guest runs (it has one thread). Another
process that swaps a link at that moment could show the guest one of the hidden names; it could not
lead it out of its folders, which wasmtime holds by descriptor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.changes import Changes
from wasm_kernel.engine.files.edits import Edits
from wasm_kernel.engine.files.growth import Growth
from wasm_kernel.engine.files.listing import forwarded, listing_of
from wasm_kernel.engine.files.modes import drop, excess
from wasm_kernel.engine.files.opened import Opened, Place, Table, host_path
from wasm_kernel.engine.files.paths import Outside, Paths
from wasm_kernel.engine.files.preopens import FIRST_DESCRIPTOR, Preopens
from wasm_kernel.engine.files.quota import Quota, key_of
from wasm_kernel.engine.files.refused import Refused
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call, Shadow
from wasm_kernel.engine.versions.versions import Change, Versions

_LOOKS = ("path_filestat_get", "path_filestat_set_times", "path_readlink")
_WRITES = abi.O_CREAT | abi.O_TRUNC  # either opens for writing, whatever the rights say
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


class Files:
    """The file calls of one instance. Only the guest's thread uses it."""

    def __init__(
        self,
        preopens: Preopens,
        reach: Reach,
        tell: Callable[[int, int], int],
        changes: Changes,
        *,
        quota: Quota,
        versions: Versions,
        open_files: int,
    ) -> None:
        self.versions = versions
        self._reach = reach
        self._changes = changes
        self._quota = quota
        self._open_files = open_files
        self._table = Table(preopens)
        self._paths = Paths(preopens, reach, self._table)
        self._edits = Edits(self._paths, self._table, changes, quota, versions)
        self._growth = Growth(self._table, reach, tell, changes, quota=quota, versions=versions)

    def use_scratch(self, at: int) -> None:
        """Guest memory that belongs to the host lies at `at`; it begins with a dot."""
        self._paths.dot = at
        self._growth.scratch = at + 8

    def begin(self) -> None:
        """A turn begins."""
        self._quota.begin()

    @property
    def limit(self) -> str:
        """The name of the quota's limit that this turn has met, empty for none."""
        return self._quota.limit

    def shadows(self) -> dict[str, Shadow]:
        """The calls, by WASI's name."""
        plain: dict[str, Callable[[Call], int]] = {
            "fd_close": self._close,
            "fd_renumber": self._renumber,
            "fd_readdir": self._list,
            "path_open": self._open,
            "path_filestat_get": self._look(flags=1, path=2),
            "path_filestat_set_times": self._look(flags=1, path=2),
            "path_readlink": self._look(),
            **self._growth.shadows(),
            **self._edits.shadows(),
        }
        return {name: _guarded(name, shadow) for name, shadow in plain.items()}

    def opened(self) -> dict[int, Opened]:
        """What the guest has open besides its folders, by descriptor."""
        return self._table.opened()

    def adopt(self, fd: int, opened: Opened) -> None:
        """The host opened a file for the guest under this descriptor."""
        self._table.by_number[fd] = opened
        status = Place(opened.preopen, opened.parts).status()
        if status is not None:
            self._know(opened, status)
        opened.gone = bool(opened.loose)
        if opened.held is not None:
            opened.held.nameless = opened.gone

    def _look(self, *, flags: int | None = None, path: int = 1) -> Shadow:
        def shadow(call: Call) -> int:
            follow = flags is not None and bool(call.args[flags] & abi.LOOKUP_FOLLOW)
            place = self._paths.place(call, 0, path, follow=follow)
            return _found(place, call.forward())

        return shadow

    def _open(self, call: Call) -> int:
        if len(self._table) >= self._open_files:
            raise Refused(abi.EMFILE)
        _, flags, _, _, how, rights, inheriting, fdflags, out = call.args
        place = self._paths.place(call, 0, 2, follow=bool(flags & abi.LOOKUP_FOLLOW))
        before = place.status()
        if before is not None and stat.S_IFMT(before.st_mode) not in _KINDS:
            raise Refused(abi.ENOTSUP)  # a pipe would hold the host until somebody writes to it
        makes = before is None and how & abi.O_CREAT and place.preopen.counted
        if makes:
            self._quota.admit(1)
        if how & (abi.O_CREAT if before is None else abi.O_TRUNC):
            self.versions.touch(place.path, before, Change.WRITE)
        answer = call.forward()
        if answer != abi.SUCCESS:
            return answer if how & abi.O_CREAT else _found(place, answer)
        opened = Opened(
            place.preopen, place.parts, how & abi.O_DIRECTORY, rights, inheriting, fdflags
        )
        self._table.by_number[self._reach.read_word(out)] = opened
        self._note(opened, place, before, how)
        return answer

    def _note(self, opened: Opened, place: Place, before: os.stat_result | None, how: int) -> None:
        """A file was opened: what is known of it, and what that changed."""
        status = before
        if before is None:
            status = place.status()
            if status is None:
                return
            if opened.preopen.counted:
                self._quota.came(1)
            self._changes.made(place.path, key_of(status))
        assert status is not None
        self._know(opened, status)
        if before is None:
            return
        bits = excess(opened.preopen, before.st_mode)
        if bits and (how & _WRITES or opened.rights & abi.RIGHT_WRITE):
            drop(place.host, before, bits)
        if how & abi.O_TRUNC:
            self._growth.emptied(opened)

    def _know(self, opened: Opened, status: os.stat_result) -> None:
        opened.key = key_of(status)
        if opened.preopen.counted:
            opened.held = self._quota.opened(status)
        if status.st_nlink > 1:
            self._changes.linked(opened.key)

    def _close(self, call: Call) -> int:
        fd = call.args[0]
        if fd < FIRST_DESCRIPTOR:
            return abi.SUCCESS  # the guest's streams stay: the next cell needs them
        if self._table.is_fixed(fd):
            return abi.EBADF  # and so do its folders
        answer = call.forward()
        if answer == abi.SUCCESS:
            self._closed(fd)
        return answer

    def _closed(self, fd: int) -> None:
        opened = self._table.by_number.pop(fd, None)
        if opened is None:
            return
        if opened.held is not None:
            self._quota.closed(opened.held)
        if opened.loose in self.versions.loose.fresh and not self._table.calls(opened.loose):
            self.versions.loose.remove(opened.loose)

    def _renumber(self, call: Call) -> int:
        old, new = call.args
        if self._table.is_fixed(old) or self._table.is_fixed(new):
            return abi.EBADF
        answer = call.forward()
        if answer == abi.SUCCESS and old != new:
            self._closed(new)
            self._table.by_number[new] = self._table.by_number.pop(old)
        return answer

    def _list(self, call: Call) -> int:
        opened = self._table.by_number.get(call.args[0])
        if opened is None or opened.parts is None or opened.gone or opened.preopen.bundled:
            return forwarded(self._reach, call)
        hiding = opened.preopen.tracked and not opened.parts
        if opened.listing is None or not call.args[3]:
            path = host_path(opened.preopen, opened.parts)
            opened.listing = listing_of(path, opened.key, hiding=hiding)
        if opened.listing is not None:
            return opened.listing.serve(self._reach, call)
        return abi.EIO if hiding else forwarded(self._reach, call)


def _guarded(name: str, shadow: Shadow) -> Shadow:
    """A shadow whose refusals are answers.

    Outside of the guest's folders nothing is found. wasmtime forbids such a path instead, but
    programs expect a missing file to be missing.
    """

    def guarded(call: Call) -> int:
        try:
            return shadow(call)
        except Outside as outside:
            looks = name in _LOOKS or (name == "path_open" and not call.args[4] & abi.O_CREAT)
            return abi.ENOENT if looks else outside.errno
        except Refused as refused:
            return refused.errno

    return guarded


def _found(place: Place, answer: int) -> int:
    """The answer to a look-up in a bundled folder, where wasmtime is the one to forbid."""
    outside = place.parts is None and answer == abi.EPERM
    return abi.ENOENT if outside else answer
