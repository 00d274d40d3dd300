"""Two folders that the guest sees as one: the upper one is the guest's; the lower one, which is
never changed, shows through under paths that the upper one lacks.

All changes of the guest go into the upper folder under the same path, so a path of the overlay is
a path of the upper folder as well. A name of the lower folder that was deleted or renamed is
covered by an empty file in the upper one, `.wh.` and the name, as in OCI images and AUFS. A cover
stays when the name is used again: a new folder of that name begins empty. No name of the overlay
begins with `.wh.`, except for folders that the guest gave such a name through its workspace: they
cover nothing.

Of the lower folder only regular files and folders exist for the guest, and links that lead to one
of them through the overlay.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from wasm_kernel.engine import abi
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.wasi_files.listing import FolderEntry, read_folder
from wasm_kernel.wasi_files.path_walk import (
    Follow,
    GuestPath,
    HiddenName,
    Outside,
    PathWalk,
    link_text,
)
from wasm_kernel.wasi_files.preopens import (
    COVER,
    Parts,
    Preopen,
    Refused,
    is_cover,
    is_hidden_folder,
)

_NAME_MAX = 255  # bytes of a name on nearly every file system


class _Layer:
    """One of the two folders, walked along with the other as far as it has the same folders."""

    def __init__(self, preopen: Preopen) -> None:
        self.preopen = preopen
        self.missing = 0  # folders on the way that the other layer has and this one lacks
        self._walk = FolderWalk(preopen.folder.fd, to_list=False)

    @property
    def here(self) -> int | None:
        """A descriptor of the folder that the walk stands in; None if this layer lacks it."""
        return None if self.missing else self._walk.fd

    @property
    def deepest(self) -> int:
        """A descriptor of the deepest folder on the way that this layer has."""
        return self._walk.fd

    def enter(self, name: str, depth: int) -> str | None:
        """Goes down into a folder; returns an empty text if it succeeded.

        Returns the text of a link in its place, or None if it is missing. Raises `HiddenName` if
        the folder does not exist for the guest.
        """
        fd = self.here
        if fd is None:
            return None
        try:
            self._walk.enter(name)
        except FileNotFoundError:
            return None
        except OSError as problem:
            target = link_text(fd, name) if problem.errno in (errno.ENOTDIR, errno.ELOOP) else None
            if target is None:
                raise
            return target
        hidden = self.preopen.hidden
        if hidden.hides_folders and hidden.hides_folder(self._walk.fd, depth):
            self._walk.leave()
            raise HiddenName
        return ""

    def fill(self, name: str) -> None:
        """Goes down into a folder that this layer lacked before."""
        self._walk.enter(name)
        self.missing -= 1

    def leave(self) -> None:
        if self.missing:
            self.missing -= 1
        else:
            self._walk.leave()

    def status(self, name: str) -> os.stat_result | None:
        """Returns the status of an entry here, links not followed; None if there is none."""
        if self.here is None:
            return None
        try:
            return os.stat(name, dir_fd=self.here, follow_symlinks=False)
        except OSError:
            return None

    def close(self) -> None:
        self._walk.close()


class OverlayPath(GuestPath):
    """A place in an overlay. It lies in the upper folder, or in the lower one if only that has it.

    `beneath` is the status of the lower folder's file or folder there; None if it has none.
    """

    __slots__ = ("_overlay_walk", "beneath", "in_lower", "overlay")

    def __init__(
        self,
        walk: OverlayWalk,
        name: str,
        parts: Parts,
        beneath: os.stat_result | None,
        *,
        in_upper: bool,
        is_folder: bool,
    ) -> None:
        super().__init__(walk, name, parts, is_folder=is_folder)
        self._overlay_walk = walk
        self.overlay = walk.preopen
        self.beneath = beneath
        self.in_lower = not in_upper and beneath is not None
        if self.in_lower:
            self.preopen, self.folder = walk.lower

    def required_status(self) -> os.stat_result:
        """Returns the file's status. A folder of both layers has the later time of change."""
        if self.folder < 0:
            raise FileNotFoundError(errno.ENOENT, "the folder is not there")
        found = super().required_status()
        newest = self.beneath.st_mtime_ns if self.beneath is not None else 0
        if newest <= found.st_mtime_ns or not stat.S_ISDIR(found.st_mode):
            return found
        times = {"st_atime_ns": found.st_atime_ns, "st_ctime_ns": newest, "st_mtime_ns": newest}
        return os.stat_result(tuple(found), times)

    def lift(self, make: Callable[[int, str, str], None]) -> None:
        """Moves the place to the upper folder; `make` makes each folder missing on the way.

        `make` gets a descriptor of the folder above, the name, and the path.
        """
        self._overlay_walk.fill(make)
        self.preopen, self.folder, self.in_lower = self.overlay, self._overlay_walk.fd, False

    def check_cover(self) -> None:
        """Raises `Refused` if the lower folder's file here can't be covered.

        That is so if the name is too long for a cover, or a folder has the cover's name.
        """
        if self.beneath is None or self.name == ".":
            return
        name = COVER + self.name
        if len(os.fsencode(name)) > _NAME_MAX:
            raise Refused(abi.ENAMETOOLONG)
        if _is_folder(self._overlay_walk.upper_status(name)):
            raise Refused(abi.EEXIST)

    def entries(self, check_time: Callable[[], None]) -> Iterator[FolderEntry]:
        """Yields the folder's entries; calls `check_time` before it follows a link."""
        walk = OverlayWalk(self.overlay, self.parts)
        try:
            yield from walk.entries(check_time)
        finally:
            walk.close()


class OverlayWalk(PathWalk):
    """A walk along one path, in both folders at once; close it."""

    def __init__(self, overlay: Preopen, parts: Parts = ()) -> None:
        super().__init__(overlay)
        assert overlay.beneath is not None
        self._upper, self._lower = _Layer(overlay), _Layer(overlay.beneath)
        self._way: list[str] = []
        self._tries_links = False
        try:
            for depth, name in enumerate(parts):
                if self._enter(name, depth) is not None:
                    raise Refused(abi.ENOENT)  # a link took the folder's place
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """A descriptor of the upper layer's folder that the walk stands in; -1 if it lacks it."""
        here = self._upper.here
        return -1 if here is None else here

    def upper_status(self, name: str) -> os.stat_result | None:
        """Returns the status of an entry in the upper folder; None if there is none."""
        return self._upper.status(name)

    @property
    def lower(self) -> tuple[Preopen, int]:
        """The lower layer, and a descriptor of its folder that the walk stands in."""
        assert self._lower.here is not None
        return self._lower.preopen, self._lower.here

    @property
    def parts(self) -> Parts:
        """The names that led here."""
        return tuple(self._way)

    def close(self) -> None:
        """Closes the walk's folders. Safe to call twice."""
        self._upper.close()
        self._lower.close()

    def fill(self, make: Callable[[int, str, str], None]) -> None:
        """Makes the folders on the way that the upper layer lacks."""
        while self._upper.missing:
            at = len(self._way) - self._upper.missing
            make(self._upper.deepest, self._way[at], "/".join(self._way[: at + 1]))
            self._upper.fill(self._way[at])

    def entries(self, check_time: Callable[[], None]) -> Iterator[FolderEntry]:
        """Yields the entries, in either layer, of the folder that the walk stands in."""
        taken, depth = set[str](), len(self._way)
        if self._upper.here is not None:
            for entry in read_folder(self._upper.here, self.preopen.hidden, depth):
                if is_cover(entry.name) and entry.kind != abi.FOLDER_TYPE:
                    taken.add(entry.name.removeprefix(COVER))
                else:
                    taken.add(entry.name)
                    yield entry
        if self._lower.here is not None:
            for entry in read_folder(self._lower.here, self._lower.preopen.hidden, depth):
                if entry.name not in taken and self._is_shown(entry, check_time):
                    yield entry

    def _is_shown(self, entry: FolderEntry, check_time: Callable[[], None]) -> bool:
        if entry.kind == abi.LINK_TYPE:
            check_time()
            return self._leads_inside(entry.name)
        return entry.kind != abi.UNKNOWN_TYPE

    def _hides(self, depth: int, name: str) -> bool:
        if is_cover(name) and not _is_folder(self._upper.status(name)):
            return True
        return super()._hides(depth, name)

    def _place(self, name: str, *, is_folder: bool) -> GuestPath:
        if name == ".":
            lower, in_upper = self._lower.here, self._upper.here is not None
            beneath = None if lower is None else os.fstat(lower)
        else:
            in_upper = self._upper.status(name) is not None
            depth, hidden = len(self._way), self.preopen.hidden
            if in_upper and is_hidden_folder(hidden, self.fd, name, depth):
                raise HiddenName
            beneath = self._beneath(name)
        parts = self._parts_of(name)
        return OverlayPath(self, name, parts, beneath, in_upper=in_upper, is_folder=is_folder)

    def _enter(self, name: str, depth: int) -> str | None:
        shows = self._may_show(name, depth)
        above = self._upper.enter(name, depth)
        if above:
            return above
        beneath = None
        if shows:
            try:
                beneath = self._lower.enter(name, depth)
            except (OSError, Refused):
                if above is None:
                    raise
        if above is None:
            if beneath is None:
                raise FileNotFoundError(errno.ENOENT, "the folder is not there")
            if beneath:
                return beneath
            self._upper.missing += 1
        if beneath != "":
            self._lower.missing += 1
        self._way.append(name)
        return None

    def _link(self, name: str) -> str | None:
        if self._upper.status(name) is not None:
            return link_text(self.fd, name)
        lower = self._lower.here
        if lower is None or not self._may_show(name, len(self._way)):
            return None
        target = link_text(lower, name)
        if target is None or self._tries_links:
            return target
        if not self._leads_inside(name):
            return None  # it does not exist for the guest, which may use its name
        self._tries_links = True  # `_leads_inside` has just followed the links that it leads to
        return target

    def _up(self) -> None:
        if not self._way:
            raise Outside
        self._way.pop()
        self._upper.leave()
        self._lower.leave()

    def _may_show(self, name: str, depth: int) -> bool:
        """Returns whether a name of the lower layer is neither hidden nor covered."""
        if self._lower.here is None or self._lower.preopen.hidden.hides_name(depth, name):
            return False
        above = self._upper.status(COVER + name)
        return above is None or _is_folder(above)

    def _beneath(self, name: str) -> os.stat_result | None:
        """Returns the status of the file that the lower layer shows under a name; None for none.

        The upper layer's own file of that name does not count.
        """
        depth, lower = len(self._way), self._lower.here
        found = self._lower.status(name) if self._may_show(name, depth) else None
        if found is None or lower is None:
            return None
        if stat.S_ISDIR(found.st_mode):
            hidden = is_hidden_folder(self._lower.preopen.hidden, lower, name, depth)
            return None if hidden else found
        if stat.S_ISLNK(found.st_mode):
            covered = self._upper.status(name) is not None
            return found if covered or self._leads_inside(name) else None
        return found if stat.S_ISREG(found.st_mode) else None

    def _leads_inside(self, name: str) -> bool:
        """Returns whether a link ends at a file or folder that exists for the guest."""
        try:
            walk = OverlayWalk(self.preopen, self.parts)
        except (OSError, Refused):
            return False
        walk._tries_links = True
        try:
            return walk.to(name, follow=Follow.ALWAYS).status() is not None
        except (OSError, Refused):
            return False
        finally:
            walk.close()


def _is_folder(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISDIR(found.st_mode)
