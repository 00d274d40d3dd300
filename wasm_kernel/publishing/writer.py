"""The one writer of files beside a notebook: into its own folder, or one for results.

The folder is the user's, and so are the files in it. A file is replaced or deleted only if it is
the very file that was written there before, with the same content. In the notebook's own folder
(`folder=write`), other files are replaced, too, after the original was kept for an undo; in a
folder for results (`%session_publish`) they stay.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from wasm_kernel.linux.files import FileCopier
from wasm_kernel.linux.folders import Closing, Folder, closing_fd, undoing
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.names import PublishError
from wasm_kernel.publishing.record import KEPT, FolderRecord, WrittenFile
from wasm_kernel.publishing.tree import (
    CopiedFile,
    FileTree,
    NameTaken,
    discarding,
    give_name,
    own_name,
    remove,
)

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_SINCE = (
    "it was changed there since the cell began, and was left as it is. The next cell sees the "
    "changed file: run this one again to overwrite it, or rename one of the two."
)
_FULL = (
    "the published files would take more than workspace_bytes ({bytes:,}) or workspace_files "
    "({files:,}) allow. Remove some of them."
)
_NOT_A_FILE = "beside the notebook, a link or something else that is not a file has this name."


class FolderWriter(Closing):
    """A folder that files of a session are written into, locked for other kernels; close it.

    One thread uses it. `is_anothers` says whether a session belongs to another notebook. Up to
    `most_kept` bytes of originals are kept beside the record, in `place`; if `most_kept` is None,
    files of the user's are never replaced. The written files may take up to `limits`.
    """

    def __init__(
        self,
        tree: FileTree,
        place: Folder,
        session: str,
        *,
        is_anothers: Callable[[str], bool] = lambda session: False,
        most_kept: int | None = None,
        key: bytes = b"",
        limits: ExecutionPolicy | None = None,
    ) -> None:
        self.tree, self._session, self._is_anothers = tree, session, is_anothers
        self._most_kept, self._limits = most_kept, limits
        self.record = FolderRecord(place, tree.folder, key)

    def put(self, path: str, source: int) -> None:
        """Copies an open regular file to a path of plain names; makes the folders on the way.

        Nothing is written if the file there holds the same already. If the file can't be copied,
        nothing is changed, and `PublishError` or `OSError` says why.
        """
        self._check_room(path, os.fstat(source).st_size)
        with self.tree.entered(path, make=True) as (here, name):
            there, known = here.status(name), self.record.files.get(path)
            is_own = self._is_own(here, name, known)
            if there is not None and self._most_kept is None and not is_own:
                raise PublishError(
                    "there is a file of that name that was not published from here, or was "
                    "changed since. It was left as it is. Give one of the two another name."
                )
            mode = None if there is None else _checked(there).st_mode
            with self.tree.draft(here, source, mode) as (draft, made):
                if there is None:
                    give_name(here, draft, name, None)
                    self.record.set(path, self._changed(known, made))
                    return
                same = known.own if known and is_own else self.tree.read(here, name, made.size)
                if same is None or same.digest != made.digest:
                    with self._changing(path, made, here, name, there, is_own=is_own):
                        give_name(here, draft, name, there)
                elif known is None:
                    self.record.set(path, WrittenFile(same, theirs=True))

    def delete(self, path: str) -> None:
        """Deletes the file at a path, if there is one."""
        with self.tree.entered(path) as (here, name):
            if (there := here.status(name)) is not None:
                is_own = self._is_own(here, name, self.record.files.get(path))
                with self._changing(path, None, here, name, _checked(there), is_own=is_own):
                    remove(here, name, there)

    def put_back(self, path: str) -> None:
        """Puts back the original of a path, from before the session wrote there."""
        known = self.record.files.get(path)
        if known is None:
            return
        if known.theirs:
            self.record.forget(path)
            return
        with self.tree.entered(path, make=True) as (here, name):
            there = here.status(name)
            if there is not None and not self._is_own(here, name, known):
                self.record.forget(path)  # the file is the user's by now
                raise NameTaken
            if known.kept:
                draft = own_name()
                _copy(self.record.place, known.kept, here, draft)
                with discarding(here, draft):
                    give_name(here, draft, name, there)
            elif there is not None:
                remove(here, name, there)
        self.record.forget(path)

    def _is_own(self, here: Folder, name: str, known: WrittenFile | None) -> bool:
        return known is not None and self.tree.is_that(here, name, known.own)

    def _changed(self, known: WrittenFile | None, own: CopiedFile | None) -> WrittenFile:
        return replace(known or WrittenFile(own), own=own, theirs=False, session=self._session)

    @contextmanager
    def _changing(
        self,
        path: str,
        own: CopiedFile | None,
        here: Folder,
        name: str,
        there: os.stat_result,
        *,
        is_own: bool,
    ) -> Iterator[None]:
        """Notes the block's change to a file; first keeps the file if it is not the session's own.

        Raises `PublishError` if the user changed the file since, or it can't be kept.
        """
        known, place = self.record.files.get(path), self.record.place
        if known is not None and not is_own:
            raise PublishError(_SINCE)
        new = self._changed(known, own)
        if known is not None and not known.theirs:
            if known.session != self._session and self._is_anothers(known.session):
                raise PublishError(
                    "another notebook published a file of that name, which was left as it is. "
                    "Give one of the two another name."
                )
            yield
        else:
            most = self._most_kept or 0
            if there.st_size > most - self.record.kept_bytes:
                raise PublishError(
                    "the file beside the notebook can't be kept for %undo, as it has more bytes "
                    f"than files_history_bytes leaves ({most:,}). It was left as it is."
                )
            new = replace(new, kept=f"{KEPT}{own_name()[1:]}", size=there.st_size)
            try:
                _copy(here, name, place, new.kept)
                self.record.note(path, new)
                yield
            except BaseException:
                place.remove(new.kept)
                raise
        self.record.set(path, new)  # the newest original is kept

    def _check_room(self, path: str, size: int) -> None:
        if self._limits is not None and self._is_full(self._limits, path, size):
            for each in [*self.record.files]:
                if self.tree.status(each) is None:
                    self.record.forget(each)
            if self._is_full(self._limits, path, size):
                most, files = self._limits.workspace_bytes, self._limits.workspace_files
                raise PublishError(_FULL.format(bytes=most, files=files))

    def _is_full(self, limits: ExecutionPolicy, path: str, size: int) -> bool:
        files = self.record.files.items()
        others = [known.own.size for each, known in files if each != path and known.own]
        return sum(others) + size > limits.workspace_bytes or len(others) >= limits.workspace_files

    def close(self) -> None:
        """Saves the record, and lets other kernels in. Safe to call twice."""
        self.record.close()


def _checked(there: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(there.st_mode):
        raise PublishError(_NOT_A_FILE)
    if not there.st_mode & stat.S_IWUSR:
        raise PublishError("the file beside the notebook is read-only, and was left as it is.")
    return there


def _copy(folder: Folder, name: str, to: Folder, new: str) -> None:
    """Copies a file to another folder, with its mode and times.

    It is no second name of the file: a worker that was taken over can write to the kept originals,
    and the user's file may have further names elsewhere.
    """
    with (
        closing_fd(folder.open_regular(name)) as source,
        closing_fd(to.open_regular(new, _NEW)) as copy,
        undoing(lambda: to.remove(new)),
    ):
        known = os.fstat(source)
        FileCopier().copy(source, copy, known.st_size)
        os.fchmod(copy, stat.S_IMODE(known.st_mode) & 0o777)
        os.utime(copy, ns=(known.st_atime_ns, known.st_mtime_ns))
