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

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

from wasm_kernel.engine import abi
from wasm_kernel.linux.folders import READ, Folder, closing_fd, inode_of, link_text, undoing
from wasm_kernel.wasi_files.bookkeeping import Bookkeeping, NameInFolder
from wasm_kernel.wasi_files.copy_up import NEW, copy_file, make_folder, remove
from wasm_kernel.wasi_files.listing import FolderEntry, read_folder
from wasm_kernel.wasi_files.path_walk import Follow, GuestPath, HiddenName, Layer, PathWalk
from wasm_kernel.wasi_files.preopens import (
    COVER,
    GuestOSError,
    Parts,
    Preopen,
    is_cover,
    is_hidden_folder,
)

_NAME_MAX = 255  # bytes of a name on nearly every file system


class OverlayPath(GuestPath):
    """A place in an overlay: in the upper folder, or in the lower one if only that has it."""

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
        self._both = walk
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

    def make_way(self, books: Bookkeeping) -> None:
        """Makes the folders in the upper folder that lead to a new file."""
        if self.in_lower:
            raise GuestOSError(errno.EEXIST)
        self._fill(books)

    def _fill(self, books: Bookkeeping) -> None:
        """Moves the place to the upper folder, and makes the folders that lead there."""
        self._both.fill(books)
        self.preopen, self.folder, self.in_lower = self.overlay, self._both.fd, False

    def lift(self, books: Bookkeeping, *, content: bool = True) -> None:
        """Copies the file or folder to the upper folder, if only the lower one has it."""
        lower, before = self.folder, self.required_status() if self.in_lower else None
        self._fill(books)
        if before is None or self.name == ".":
            return
        if stat.S_ISREG(before.st_mode):
            copy_file(books, lower, self, content=content)
        elif stat.S_ISDIR(before.st_mode):
            make_folder(books, self)
            return
        else:
            text = os.readlink(self.name, dir_fd=lower)
            books.make(self, lambda: os.symlink(text, self.name, dir_fd=self.folder))
        books.changes.created(self.path, inode_of(self.required_status()))

    def lift_to_open(self, books: Bookkeeping, how: int, rights: int) -> None:
        """Moves the place to the upper folder if the opening may change the file."""
        found, creates = self.status(), how & abi.O_CREAT
        writes = how & (abi.O_CREAT | abi.O_TRUNC) or rights & abi.RIGHT_WRITE
        if found is None:
            if not creates:
                raise GuestOSError(errno.ENOENT)
            if not self.is_folder:
                self.make_way(books)
        elif creates and how & abi.O_EXCL:
            raise GuestOSError(errno.EEXIST)
        elif stat.S_ISREG(found.st_mode) and writes and not how & abi.O_DIRECTORY:
            self.lift(books, content=not how & abi.O_TRUNC)
        elif stat.S_ISDIR(found.st_mode) and writes and self.in_lower:
            raise GuestOSError(errno.EISDIR)

    def check_movable(self, found: os.stat_result) -> None:
        """Raises `GuestOSError` for a folder of the lower layer, and if no cover can be made."""
        beneath = self.beneath
        if beneath is not None and stat.S_ISDIR(found.st_mode) and stat.S_ISDIR(beneath.st_mode):
            raise GuestOSError(errno.EXDEV)  # as in other overlays; programs copy it then
        self._check_cover()

    def lift_to_move(self, books: Bookkeeping) -> None:
        """Moves the file to the upper folder, and covers the lower folder's file."""
        self.lift(books)
        self._cover(books)

    def give_way(
        self, books: Bookkeeping, moved: os.stat_result, replaced: os.stat_result | None
    ) -> os.stat_result | None:
        """Makes room for a file that is moved here and may replace the lower folder's file."""
        if replaced is not None:
            is_folder = stat.S_ISDIR(moved.st_mode)
            if is_folder is not stat.S_ISDIR(replaced.st_mode):
                raise GuestOSError(errno.ENOTDIR if is_folder else errno.EISDIR)
            replaced = None if self.in_lower else replaced
            if is_folder:
                self._check_cover()
                self._clear_covers(books)
                self._cover(books)
            self.in_lower = False
        self.make_way(books)
        return replaced

    def hide_lower(self, books: Bookkeeping, found: os.stat_result, *, folder: bool) -> bool:
        """Covers the lower folder's file of a name to remove; returns whether only that existed."""
        if stat.S_ISDIR(found.st_mode) is not folder:
            raise GuestOSError(errno.ENOTDIR if folder else errno.EISDIR)
        if self.name == ".":
            raise GuestOSError(errno.EINVAL)
        self._check_cover()
        only_lower = self.in_lower
        if folder:
            self._clear_covers(books)
        self._cover(books)
        return only_lower

    def _check_cover(self) -> None:
        """Raises `GuestOSError` if the lower folder's file here can't be covered.

        That is so if the name is too long for a cover, or a folder has the cover's name.
        """
        if self.beneath is None or self.name == ".":
            return
        name = COVER + self.name
        if len(os.fsencode(name)) > _NAME_MAX:
            raise GuestOSError(errno.ENAMETOOLONG)
        if _is_folder(self._both.upper_status(name)):
            raise GuestOSError(errno.EEXIST)

    def _cover(self, books: Bookkeeping) -> None:
        """Covers the lower folder's file; does nothing if the lower folder shows no file here."""
        if self.beneath is None or self.name == ".":
            return
        if self.in_lower:
            self._fill(books)
        books.changes.covered("/".join(self.parts))
        name = COVER + self.name
        cover = NameInFolder(self.overlay, self.folder, name, (*self.parts[:-1], name))
        with contextlib.suppress(FileExistsError):
            os.close(books.make(cover, lambda: os.open(name, NEW, 0o666, dir_fd=self.folder)))

    def _clear_covers(self, books: Bookkeeping) -> None:
        """Removes the covers in a folder that is empty for the guest, so that it can be removed."""
        if self.name == ".":
            return
        with OverlayWalk(self.overlay, self.parts) as walk:
            if next(walk.entries(books.check_time), None) is not None:
                raise GuestOSError(errno.ENOTEMPTY)
        if self.in_lower:
            return
        with closing_fd(os.open(self.name, READ | os.O_DIRECTORY, dir_fd=self.folder)) as folder:
            for name in filter(is_cover, Folder(folder).names()):
                with contextlib.suppress(FileNotFoundError):
                    remove(books, NameInFolder(self.overlay, folder, name, (*self.parts, name)))


class OverlayWalk(PathWalk):
    """A walk along one path, in both folders at once; close it."""

    def __init__(self, overlay: Preopen, parts: Parts = ()) -> None:
        super().__init__(overlay)
        assert overlay.beneath is not None
        self._lower = Layer(overlay.beneath)
        self._layers.append(self._lower)
        self._tries_links = False
        with undoing(self.close):
            for name in parts:
                if self._enter(name):
                    raise GuestOSError(errno.ENOENT)  # a link took the folder's place

    def upper_status(self, name: str) -> os.stat_result | None:
        """Returns the status of an entry in the upper folder; None if there is none."""
        return self._upper.status(name)

    @property
    def lower(self) -> tuple[Preopen, int]:
        """The lower layer, and a descriptor of its folder that the walk stands in."""
        assert not self._lower.missing
        return self._lower.preopen, self._lower.deepest

    def fill(self, books: Bookkeeping) -> None:
        """Makes the folders on the way that the upper layer lacks."""
        while self._upper.missing:
            way = self.parts[: len(self._way) - self._upper.missing + 1]
            make_folder(books, NameInFolder(self.preopen, self._upper.deepest, way[-1], way))
            self._upper.fill(way[-1])

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

    def _enter(self, name: str) -> str:
        depth = len(self._way)
        shows = self._may_show(name, depth)
        above = self._upper.enter(name, depth)
        if above:
            return above
        beneath = None
        if shows:
            try:
                beneath = self._lower.enter(name, depth)
            except OSError:
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
        return ""

    def _link(self, name: str) -> str:
        if self._upper.status(name) is not None:
            return link_text(self.fd, name)
        lower = self._lower.here
        if lower is None or not self._may_show(name, len(self._way)):
            return ""
        target = link_text(lower, name)
        if not target or self._tries_links:
            return target
        if not self._leads_inside(name):
            return ""  # it does not exist for the guest, which may use its name
        self._tries_links = True  # `_leads_inside` has just followed all links behind it
        return target

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
            with OverlayWalk(self.preopen, self.parts) as walk:
                walk._tries_links = True
                return walk.to(name, follow=Follow.ALWAYS).status() is not None
        except OSError:
            return False


def _is_folder(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISDIR(found.st_mode)
