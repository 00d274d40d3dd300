"""A folder of the user's into which files of sessions are copied, and the record of the copies.

The folder is the user's, and so are the files in it. One of them is replaced only if it is the very
file that was put there before, with the same content. The record of these files lies in the state
folder, which neither a cell nor a notebook's author can write to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from wasm_kernel.folders.places import Place, in_state
from wasm_kernel.linux.folders import Closing, Folder
from wasm_kernel.linux.task import Task
from wasm_kernel.publishing.folder_beside import (
    CopiedFile,
    FolderBeside,
    FolderRecord,
    NameTaken,
    replace,
    take,
)
from wasm_kernel.publishing.names import PublishError, PublishLimits
from wasm_kernel.wasi_files.preopens import Hidden

_RECORDS = "published"

_HOMELESS = (
    "This user has no folder for state that is his alone, so nobody could tell later which files "
    "were published. Nothing was published."
)
_TAKEN = (
    "there is a file of that name that was not published from here, or was changed since. It was "
    "left as it is. Give one of the two another name."
)
_ANOTHERS = (
    "another notebook published a file of that name, which was left as it is. Give one of the two "
    "another name."
)
_FULL = (
    "the published files would take more than workspace_bytes ({bytes:,}) or workspace_files "
    "({files:,}) allow. Remove some of them."
)


class PublishedFile(CopiedFile, frozen=True):
    """A file that was published from a session; `session` is empty if it was not noted."""

    session: str = ""


class PublishedFolder(Closing):
    """A folder that files are put into, locked for other kernels; close it. One thread uses it.

    The folder stays the caller's; sessions don't see the names that are `hidden` in it.
    `is_anothers` says whether another session belongs to another notebook. `PublishError` if there
    is no place for the record, or another kernel has it.
    """

    def __init__(
        self,
        folder: Folder,
        hidden: Hidden,
        *,
        limits: PublishLimits,
        session: str,
        is_anothers: Callable[[str], bool],
        task: Task,
    ) -> None:
        self._beside, self._limits = FolderBeside(folder, hidden, task), limits
        self._session, self._is_anothers = session, is_anothers
        place = in_state(_RECORDS, make=True)
        if place is None:
            raise PublishError(_HOMELESS)
        self._place: Place = place
        try:
            self._record = FolderRecord(place, folder, PublishedFile)
        except BaseException:
            place.close()
            raise

    def put(self, path: str, source: int) -> None:
        """Copies an open regular file to a path of plain names; makes the folders on the way.

        Nothing is written if the file that was put there before holds the same already. If the file
        can't be copied, nothing is changed, and `PublishError` says why.
        """
        before = os.fstat(source)
        self._check_room(path, before.st_size)
        own = self._record.files.get(path)
        try:
            with self._beside.entered(path, make=True) as (here, name):
                if here.status(name) is not None and own is None:
                    raise NameTaken
                with self._beside.draft(here, source) as (draft, made):
                    self._record.files[path] = self._named(here, draft, name, made, own)
        except NameTaken:
            raise PublishError(_TAKEN) from None

    def _check_room(self, path: str, size: int) -> None:
        if self._is_full(path, size):
            for each in [*self._record.files]:
                with suppress(OSError), self._beside.entered(each) as (at, name):
                    if at.status(name) is not None:
                        continue
                del self._record.files[each]
            if self._is_full(path, size):
                words = _FULL.format(bytes=self._limits.bytes, files=self._limits.files)
                raise PublishError(words)

    def _is_full(self, path: str, size: int) -> bool:
        others = [file.size for each, file in self._record.files.items() if each != path]
        return sum(others) + size > self._limits.bytes or len(others) + 1 > self._limits.files

    def _named(
        self, here: Folder, draft: str, name: str, copy: CopiedFile, own: PublishedFile | None
    ) -> PublishedFile:
        """Gives a draft its name, unless a file of the user's has it; returns the file there."""
        there = here.status(name)
        made = PublishedFile(copy.mark, copy.size, copy.digest, self._session)
        if there is None:
            take(here, draft, name)
            return made
        if own is None or not self._beside.is_that(here, name, own):
            raise NameTaken
        if own.digest != made.digest:
            if own.session not in ("", self._session) and self._is_anothers(own.session):
                raise PublishError(_ANOTHERS)
            replace(here, draft, name, there)
            return made
        return own

    def close(self) -> None:
        """Saves the record, and lets other kernels in. Safe to call twice."""
        if self._place.fd >= 0:
            try:
                self._record.close()
            finally:
                self._place.close()
