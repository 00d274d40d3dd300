"""The calls that make, move and remove names."""

from __future__ import annotations

import os
import stat

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.changes import Changes
from wasm_kernel.engine.files.names import TooDeep, is_hidden, too_deep
from wasm_kernel.engine.files.opened import Place, Table
from wasm_kernel.engine.files.paths import Paths
from wasm_kernel.engine.files.quota import Quota, key_of
from wasm_kernel.engine.files.refused import Refused
from wasm_kernel.engine.folders.outline import Outline, outline
from wasm_kernel.engine.shadow import Call, Shadow
from wasm_kernel.engine.versions.versions import Change, Versions

_Status = os.stat_result | None


class Edits:
    """The calls of one guest. Only the guest's thread uses it."""

    def __init__(
        self, paths: Paths, table: Table, changes: Changes, quota: Quota, versions: Versions
    ) -> None:
        self._paths = paths
        self._table = table
        self._changes = changes
        self._quota = quota
        self._versions = versions

    def shadows(self) -> dict[str, Shadow]:
        """The calls, by WASI's name."""
        return {
            "path_create_directory": self._create_folder,
            "path_remove_directory": self._remove_folder,
            "path_unlink_file": self._unlink,
            "path_link": self._link,
            "path_symlink": self._symlink,
            "path_rename": self._rename,
        }

    def _create_folder(self, call: Call) -> int:
        place = self._paths.place(call, 0, 1)
        self._admit(place)
        self._versions.make(place.path)
        answer = call.forward()
        if answer == abi.SUCCESS:
            self._came(place, 1)
        return answer

    def _remove_folder(self, call: Call) -> int:
        place = self._paths.place(call, 0, 1)
        before = place.status()
        self._versions.touch(place.path, before, Change.END)
        answer = call.forward()
        if answer == abi.SUCCESS:
            self._came(place, -1)
            self._table.unnamed(place, before)
        return answer

    def _unlink(self, call: Call) -> int:
        place = self._paths.place(call, 0, 1)
        before = place.status()
        loose = self._keep(place, before)
        answer = call.forward()
        if answer == abi.SUCCESS:
            self._gone(place, before, loose)
        elif loose:
            self._versions.loose.remove(loose)
        return answer

    def _link(self, call: Call) -> int:
        old = self._paths.place(call, 0, 2, follow=bool(call.args[1] & abi.LOOKUP_FOLLOW))
        new = self._paths.place(call, 4, 5)
        status = old.status()
        size = 0 if status is None or old.preopen.counted else _length(status)
        self._admit(new, size)
        self._versions.make(new.path)
        answer = call.forward()
        if answer == abi.SUCCESS and status is not None:
            self._came(new, 1, size)
            self._changes.linked(key_of(status))
            self._changes.touch(new.path, None)
        return answer

    def _symlink(self, call: Call) -> int:
        target = self._paths.text(call.args[0], call.args[1])
        if any(is_hidden(part) for part in target.split("/")):
            raise Refused(abi.ENOENT)
        place = self._paths.place(call, 2, 3)
        self._admit(place)
        self._versions.make(place.path)
        answer = call.forward()
        if answer == abi.SUCCESS and (status := place.status()) is not None:
            self._came(place, 1)
            self._changes.made(place.path, key_of(status))
        return answer

    def _rename(self, call: Call) -> int:
        old, new = self._paths.place(call, 0, 1), self._paths.place(call, 3, 4)
        moved, replaced = old.status(), new.status()
        inside = self._outline(old, new, moved)
        if moved is not None and not old.preopen.counted:
            self._admit(new, inside.size, inside.count)
        same = replaced is not None and moved is not None and key_of(replaced) == key_of(moved)
        loose = "" if same else self._keep_moved(old, new, moved, replaced, inside)
        answer = call.forward()
        if answer != abi.SUCCESS or moved is None or same:
            if loose:
                self._versions.loose.remove(loose)
            return answer  # where both are names of one file, nothing happens
        if replaced is not None:
            self._gone(new, replaced, loose)
        if old.preopen.counted is not new.preopen.counted:
            self._came(old, -inside.count, -inside.size)
            self._came(new, inside.count, inside.size)
        self._tell(old, new, moved, inside)
        self._table.moved(old, new)
        return answer

    def _outline(self, old: Place, new: Place, moved: _Status) -> Outline:
        """What is renamed; a folder's content may not end up too deep."""
        if moved is None or old.parts is None or new.parts is None:
            return Outline()
        if not stat.S_ISDIR(moved.st_mode):
            return Outline(size=_length(moved))
        try:
            inside = outline(old.host)
        except OSError:
            raise Refused(abi.EACCES) from None
        if inside.longest and too_deep(new.preopen.host, new.parts, inside.longest + 1):
            raise TooDeep
        return inside

    def _tell(self, old: Place, new: Place, moved: os.stat_result, inside: Outline) -> None:
        """Note each file that has another path now."""
        if not stat.S_ISDIR(moved.st_mode):
            self._changes.touch(old.path, key_of(moved))
            self._changes.touch(new.path, None)
            return
        for name, key in inside.names.items():
            if old.path is not None:
                self._changes.touch(f"{old.path}/{name}", key)
            if new.path is not None:
                self._changes.touch(f"{new.path}/{name}", None)

    def _keep(self, place: Place, before: _Status) -> str:
        """What stands at a place is about to lose its name; what it is called then, if open."""
        self._versions.touch(place.path, before, Change.END)
        if before is None or not stat.S_ISREG(before.st_mode) or not self._versions.keeps:
            return ""
        opened = place.preopen.writable and self._table.of(place, before)
        return self._versions.loose.catch(place.host) if opened else ""

    def _keep_moved(
        self, old: Place, new: Place, moved: _Status, replaced: _Status, inside: Outline
    ) -> str:
        """As `_keep`, of what a rename is about to replace, and of all that it moves."""
        if moved is None or not self._versions.keeps:
            return ""
        for name in ("", *sorted((*inside.names, *inside.folders), reverse=True)):
            here, there = (f"{place.path}/{name}".rstrip("/") for place in (old, new))
            if old.path is not None:
                self._versions.touch_there(here, Change.MOVE)
            if new.path is not None and name:
                self._versions.touch(there, None, Change.END)
        return self._keep(new, replaced)

    def _gone(self, place: Place, before: _Status, loose: str = "") -> None:
        """A name was there and is not any more, or another file has it."""
        if before is None:
            return
        if stat.S_ISDIR(before.st_mode):
            self._came(place, -1)
        else:
            self._changes.touch(place.path, key_of(before))
            if place.preopen.counted:
                self._quota.unnamed(before)
        self._table.unnamed(place, before, loose)

    def _admit(self, place: Place, size: int = 0, files: int = 1) -> None:
        if place.preopen.counted:
            self._quota.admit(files, size)

    def _came(self, place: Place, files: int, size: int = 0) -> None:
        if place.preopen.counted:
            self._quota.came(files, size)


def _length(status: os.stat_result) -> int:
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
