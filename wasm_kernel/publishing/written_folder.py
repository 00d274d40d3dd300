"""The notebook's folder with `folder=write`, as a session writes to it, and the kept originals.

After a cell each path that it changed is made the same as in the session: a file of the session is
copied, a deleted file is deleted, and if the session has nothing there any more, as after an undo,
the original is put back. A file that is not the session's own is kept in the private folder before
it is replaced or deleted. Cells see no change of this in `/notebook`, as the session's copy lies
above (`wasi_files/overlay.py`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace as replaced

from wasm_kernel.linux import walks
from wasm_kernel.linux.files import FileMark, link_or_copy
from wasm_kernel.linux.folders import Closing, Folder, NotRegular, closing_fd
from wasm_kernel.linux.task import Task
from wasm_kernel.publishing.folder_beside import (
    CopiedFile,
    FolderBeside,
    FolderRecord,
    NameTaken,
    discarding,
    entered,
    own_name,
    remove,
    replace,
    take,
)
from wasm_kernel.publishing.names import PublishableNames, PublishError, is_too_long
from wasm_kernel.wasi_files.preopens import COVER, Hidden

_KEPT = "kept-"
_TAKEN = "the file beside the notebook was changed meanwhile, and was left as it is."
_SINCE = (
    "it was changed there since the cell began, and was left as it is. The next cell sees it so; "
    "run this one again to write it, or rename one of the two."
)
_TOO_LARGE = (
    "it was changed there since the session wrote it, and has more bytes than workspace_bytes "
    "leaves. Cells go on with the session's own."
)
_NO_NAME = "its path is too long, or none of a file."
_NOT_A_FILE = "beside the notebook, a link or something else that is not a file has this name."
_READ_ONLY = "the file beside the notebook is read-only, and was left as it is."
_A_FOLDER = "the folder stays beside the notebook, as there is something in it that is not deleted."
_NO_ROOM = (
    "the file beside the notebook can't be kept for %undo, as it has more bytes than "
    "files_history_bytes leaves ({bytes:,}). It was left as it is."
)


class WrittenFile(Struct, frozen=True):
    """The change that a session made to a path beside the notebook.

    Attributes:
        own: The file that the session put there; None if it deleted the file there.
        kept: The name of the kept original in the private folder; empty if there was none.
        size: The bytes of the original.
        theirs: Whether `own` is the user's own file, which holds the same as the session's.
    """

    own: CopiedFile | None
    kept: str = ""
    size: int = 0
    theirs: bool = False


class WrittenFolder(Closing):
    """The notebook's folder, as one session writes to it; close it. One thread uses it.

    All folders stay the caller's. `hidden` and `unseen` are the names in the notebook's folder and
    in the workspace that are not for sessions. The workspace may hold `most_own` bytes, the kept
    originals `most_kept` bytes. `PublishError` if another kernel writes there.
    """

    def __init__(
        self,
        folder: Folder,
        hidden: Hidden,
        *,
        workspace: Folder,
        unseen: Hidden,
        private: Folder,
        names: PublishableNames,
        most_own: int,
        most_kept: int,
        task: Task,
    ) -> None:
        self._beside, self._names = FolderBeside(folder, hidden, task), names
        self._workspace_files = FolderBeside(workspace, unseen, task)
        self._workspace, self._unseen = workspace, unseen
        self._most_own, self._most_kept = most_own, most_kept
        self._own_bytes: int | None = None  # bytes in the workspace, which is walked once
        self._place = private.enter("written", make=True)
        try:
            self._record = FolderRecord(self._place, folder, WrittenFile)
        except BaseException:
            self._place.close()
            raise
        self._kept = sum(file.size for file in self._record.files.values())

    def with_those_below(self, paths: Iterable[str]) -> list[str]:
        """Returns paths and the written paths below them, files before the folders around them."""
        asked = set(paths)
        for path in self._record.files:
            parts = path.split("/")
            if any("/".join(parts[:count]) in asked for count in range(1, len(parts))):
                asked.add(path)
        return sorted(asked, key=lambda path: (-path.count("/"), path))

    def bring(self, path: str) -> bool:
        """Makes a path the same as in the session; returns whether the session's file is there now.

        If it fails, nothing is changed, and `PublishError` or `OSError` says why.
        """
        if is_too_long(path) or not path.rpartition("/")[2]:
            raise PublishError(_NO_NAME)
        try:
            with self._opened(path) as source:
                if source is not None:
                    self._check_name(path)
                    self._put(path, source)
                    return True
            if not self._is_covered(path):
                self._put_back(path)
            elif (there := self._status(path)) is not None:
                if stat.S_ISDIR(there.st_mode):
                    self._remove_folder(path)
                else:
                    self._check_name(path)
                    self._delete(path)
        except NameTaken:
            raise PublishError(_TAKEN) from None
        return False

    def _check_name(self, path: str) -> None:
        if why := self._names.refusal_beside(path):
            raise PublishError(why)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int | None]:
        """The session's file at a path; None if there is no regular file."""
        fd = None
        with (
            suppress(FileNotFoundError, NotADirectoryError, NotRegular),
            entered(self._workspace.fd, path, self._unseen) as (folder, name),
        ):
            fd = folder.open_regular(name)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def _is_covered(self, path: str) -> bool:
        """Returns whether the session hides the file beside the notebook at a path."""
        parts = path.split("/")
        for depth, part in enumerate(parts):
            cover = "/".join((*parts[:depth], COVER + part))
            try:
                with entered(self._workspace.fd, cover, self._unseen) as (folder, name):
                    if folder.status(name) is not None:
                        return True
            except OSError:  # the session has no such folder
                return False
        return False

    def _status(self, path: str) -> os.stat_result | None:
        try:
            with self._beside.entered(path) as (here, name):
                return here.status(name)
        except OSError:
            return None

    def _remove_folder(self, path: str) -> None:
        """Removes a folder that the session does not have, if no file is left in it."""
        with suppress(OSError), entered(self._workspace.fd, f"{path}/", self._unseen):
            return
        try:
            self._beside.remove_folders(path)
        except OSError:
            raise PublishError(_A_FOLDER) from None
        if not any(known.startswith(f"{path}/") for known in self._record.files):
            self._uncover(path)  # else an undo needs the note to find the files to put back

    def _put(self, path: str, source: int) -> None:
        with self._beside.entered(path, make=True) as (here, name):
            there = here.status(name)
            mode = None if there is None else _checked(there).st_mode
            with self._beside.draft(here, source, mode) as (draft, made):
                if there is None:
                    take(here, draft, name)
                    known = self._record.files.get(path, WrittenFile(made))
                    self._record.files[path] = replaced(known, own=made, theirs=False)
                    return
                same = self._beside.read(here, name, made.size)
                if same is None or same.digest != made.digest:
                    with self._changing(path, made, here, name, there):
                        replace(here, draft, name, there)
                elif path not in self._record.files:
                    self._record.files[path] = WrittenFile(same, theirs=True)

    def _delete(self, path: str) -> None:
        with self._beside.entered(path) as (here, name):
            there = here.status(name)
            if there is not None:
                with self._changing(path, None, here, name, _checked(there)):
                    remove(here, name, there)
        known = self._record.files.get(path)
        if known is not None and not known.kept:  # the user had no file there
            self._forget(path)
            self._uncover(path)

    def _uncover(self, path: str) -> None:
        """Removes the session's note that hides a path at which nothing lies any more."""
        above, slash, name = path.rpartition("/")
        cover = f"{above}{slash}{COVER}{name}"
        with suppress(OSError), entered(self._workspace.fd, cover, self._unseen) as (folder, note):
            there = folder.status(note)
            if there is not None and stat.S_ISREG(there.st_mode) and not there.st_size:
                folder.remove(note)

    def _put_back(self, path: str) -> None:
        """Puts back the original of a path, from before the session wrote there."""
        known = self._record.files.get(path)
        if known is None:
            return
        if known.theirs:
            self._forget(path)
            return
        with self._beside.entered(path, make=True) as (here, name):
            there = here.status(name)
            if there is not None and not self._beside.is_that(here, name, known.own):
                self._forget(path)  # the file is the user's by now
                raise PublishError(_TAKEN)
            if known.kept:
                draft = own_name()
                _give_second_name(self._place, known.kept, here, draft)
                with discarding(here, draft):
                    if there is None:
                        take(here, draft, name)
                    else:
                        replace(here, draft, name, there)
            elif there is not None:
                remove(here, name, there)
        self._forget(path)

    @contextmanager
    def _changing(
        self, path: str, own: CopiedFile | None, here: Folder, name: str, there: os.stat_result
    ) -> Iterator[None]:
        """Notes the block's change to a file; first keeps the file if it is not the session's own.

        Raises `PublishError` if the user changed the file since, or it can't be kept.
        """
        known = self._record.files.get(path)
        if known is not None and not self._beside.is_that(here, name, known.own):
            raise PublishError(_SINCE)
        if known is not None and not known.theirs:
            yield
            self._record.files[path] = replaced(known, own=own)
            return
        if there.st_size > self._most_kept - self._kept:
            raise PublishError(_NO_ROOM.format(bytes=self._most_kept))
        aside = f"{_KEPT}{own_name()[1:]}"
        try:
            _give_second_name(here, name, self._place, aside)
            self._record.note(path, WrittenFile(own, aside, there.st_size))
            yield
        except BaseException:
            self._record.files.pop(path, None)
            if known is not None:
                self._record.files[path] = known
            self._place.remove(aside)
            raise
        self._kept += there.st_size
        if known is not None and known.kept:  # the user's newer file is kept instead
            self._place.remove(known.kept)
            self._kept -= known.size

    def known(self, paths: Iterable[str]) -> list[str]:
        """Returns the paths among `paths` that the session has written or deleted."""
        return [path for path in paths if path in self._record.files]

    @property
    def paths(self) -> list[str]:
        """All paths that the session has written or deleted."""
        return sorted(self._record.files)

    def pull_user_changes(self, path: str) -> None:
        """Copies the user's change to a file that the session wrote or deleted to the session.

        If the session has no room for it (`PublishError`), or the file can't be copied, the session
        keeps its own.
        """
        known, there = self._record.files.get(path), self._status(path)
        if known is None or (there is not None and not stat.S_ISREG(there.st_mode)):
            return
        if there is None:
            if known.own is not None and not known.kept:  # else an undo puts the original back
                self._remove_own(path)
                self._forget(path)
            return
        if known.own is None:
            self._forget(path)
            self._uncover(path)
            return
        with self._beside.entered(path) as (here, name):
            if self._beside.is_that(here, name, known.own):
                return
            source = here.open_regular(name)
        try:
            with self._own(path) as (folder, own, before):
                if before is not None:
                    made = self._take_over(source, folder, own, before)
                    self._record.files[path] = replaced(known, own=made, theirs=True)
        except NameTaken:
            raise PublishError(_TAKEN) from None
        finally:
            os.close(source)

    def _take_over(
        self, source: int, folder: Folder, name: str, before: os.stat_result
    ) -> CopiedFile:
        """Replaces a file of the session by a copy of one beside the notebook."""
        size = os.fstat(source).st_size
        if self._own_bytes is None:
            self._own_bytes = walks.size_of(self._workspace.fd)
        more = size - before.st_size
        if self._own_bytes + more > self._most_own:
            raise PublishError(_TOO_LARGE)
        with self._workspace_files.draft(folder, source, before.st_mode) as (draft, made):
            replace(folder, draft, name, before)
        self._own_bytes += more
        return CopiedFile(FileMark.of(source), made.size, made.digest)

    def _remove_own(self, path: str) -> None:
        with suppress(FileNotFoundError), self._own(path) as (folder, name, there):
            if there is not None:
                remove(folder, name, there)
                if self._own_bytes is not None:
                    self._own_bytes -= there.st_size

    @contextmanager
    def _own(self, path: str) -> Iterator[tuple[Folder, str, os.stat_result | None]]:
        """The session's folder for a path, the name there, and the status of a regular file."""
        with self._workspace_files.entered(path) as (folder, name):
            there = folder.status(name)
            yield folder, name, there if there and stat.S_ISREG(there.st_mode) else None

    def _forget(self, path: str) -> None:
        known = self._record.files.pop(path)
        if known.kept:
            self._place.remove(known.kept)
            self._kept -= known.size

    def close(self) -> None:
        """Saves the record of the changes."""
        try:
            self._record.close()
        finally:
            self._place.close()


def _checked(there: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(there.st_mode):
        raise PublishError(_NOT_A_FILE)
    if not there.st_mode & stat.S_IWUSR:
        raise PublishError(_READ_ONLY)
    return there


def _give_second_name(folder: Folder, name: str, to: Folder, new: str) -> None:
    """Links a file into another folder; copies it with mode and times if that is impossible."""
    link_or_copy(folder.fd, name, new, there=to.fd)
    old, made = folder.status(name), to.status(new)
    if old is None or made is None or os.path.samestat(old, made):
        return
    with closing_fd(to.open_regular(new)) as fd:
        os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)
        os.utime(fd, ns=(old.st_atime_ns, old.st_mtime_ns))
