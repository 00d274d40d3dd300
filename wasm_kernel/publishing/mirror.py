"""`folder=write`: the notebook's folder as a mirror of a session's workspace.

After a cell each path that it changed is made the same as in the session: a file of the session is
copied, a deleted file is deleted, and if the session has nothing there any more, as after an undo,
the original is put back. Before a cell, the user's changes to such files are copied to the session.
Cells see no change of this in `/notebook`, as the session's copy lies above
(`wasi_files/overlay.py`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from msgspec.structs import replace

from wasm_kernel.linux import walks
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder, NotRegular, closing_fd
from wasm_kernel.publishing.names import PublishableNames, PublishError, is_too_long
from wasm_kernel.publishing.tree import CopiedFile, FileTree, give_name, remove
from wasm_kernel.publishing.writer import FolderWriter
from wasm_kernel.wasi_files.preopens import COVER

_A_FOLDER = "the folder stays beside the notebook, as there is something in it that is not deleted."


class Mirror:
    """Makes paths the same in the notebook's folder and in a session's workspace.

    One thread uses it; the arguments stay the caller's. The workspace may hold `most_own` bytes.
    """

    def __init__(
        self, writer: FolderWriter, workspace: FileTree, names: PublishableNames, most_own: int
    ) -> None:
        self._writer, self._beside, self._record = writer, writer.tree, writer.record
        self._workspace, self._names, self._most_own = workspace, names, most_own
        self._own_bytes: int | None = None  # bytes in the workspace, which is walked once

    @property
    def paths(self) -> list[str]:
        """All paths that the session has written or deleted."""
        return sorted(self._record.files)

    def known(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Returns the paths among `paths` that the session has written or deleted."""
        return tuple(path for path in paths if path in self._record.files)

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
            raise PublishError("its path is too long, or ends with a slash.")
        source = None
        with suppress(FileNotFoundError, NotADirectoryError, NotRegular):
            source = self._workspace.open_regular(path)
        if source is not None:
            with closing_fd(source):
                self._check_name(path)
                self._writer.put(path, source)
        elif not self._is_covered(path):
            if path in self._record.files:
                self._check_name(path)
                self._writer.put_back(path)
        elif (there := self._beside.status(path)) is not None:
            self._delete(path, is_folder=stat.S_ISDIR(there.st_mode))
        return source is not None

    def _check_name(self, path: str) -> None:
        if why := self._names.refusal_beside(path):
            raise PublishError(why)

    def _is_covered(self, path: str) -> bool:
        """Returns whether the session hides the file beside the notebook at a path."""
        parts = path.split("/")
        covers = ("/".join((*parts[:depth], COVER + part)) for depth, part in enumerate(parts))
        return any(self._workspace.status(cover) is not None for cover in covers)

    def _delete(self, path: str, *, is_folder: bool) -> None:
        if is_folder:
            self._remove_folder(path)
            return
        self._check_name(path)
        self._writer.delete(path)
        known = self._record.files.get(path)
        if known is not None and not known.kept:  # the user had no file there
            self._record.forget(path)
            self._uncover(path)

    def _remove_folder(self, path: str) -> None:
        """Removes a folder that the session does not have, if no file is left in it."""
        with suppress(OSError), self._workspace.entered(f"{path}/"):
            return
        try:
            self._beside.remove_folders(path)
        except OSError:
            raise PublishError(_A_FOLDER) from None
        if not any(known.startswith(f"{path}/") for known in self._record.files):
            self._uncover(path)  # else an undo needs the note to find the files to put back

    def _uncover(self, path: str) -> None:
        """Removes the session's note that hides a path at which nothing lies any more."""
        above, slash, name = path.rpartition("/")
        with (
            suppress(OSError),
            self._workspace.entered(f"{above}{slash}{COVER}{name}") as (folder, note),
        ):
            there = folder.status(note)
            if there is not None and stat.S_ISREG(there.st_mode) and not there.st_size:
                folder.remove(note)

    def adopt(self, path: str) -> None:
        """Copies the user's change to a file that the session wrote or deleted to the session.

        If the session has no room for it (`PublishError`), or the file can't be copied, the session
        keeps its own.
        """
        known, there = self._record.files.get(path), self._beside.status(path)
        if known is None or (there is not None and not stat.S_ISREG(there.st_mode)):
            return
        if there is None:
            if known.own is not None and not known.kept:  # else an undo puts the original back
                self._remove_own(path)
                self._record.forget(path)
            return
        if known.own is None:
            self._record.forget(path)
            self._uncover(path)
            return
        with self._beside.entered(path) as (here, name):
            if self._beside.is_that(here, name, known.own):
                return
            source = here.open_regular(name)
        with closing_fd(source), self._workspace.entered(path) as (folder, name):
            if (before := _regular(folder, name)) is not None:
                made = self._take_over(source, folder, name, before)
                self._record.set(path, replace(known, own=made, theirs=True))

    def _take_over(self, source: int, folder: Folder, name: str, old: os.stat_result) -> CopiedFile:
        """Replaces a file of the session by a copy of one beside the notebook."""
        if self._own_bytes is None:
            self._own_bytes = walks.size_of(self._workspace.folder.fd)
        more = os.fstat(source).st_size - old.st_size
        if self._own_bytes + more > self._most_own:
            raise PublishError(
                "it was changed there since the session wrote it, and has more bytes than "
                "workspace_bytes leaves. Cells go on with the session's own."
            )
        with self._workspace.draft(folder, source, old.st_mode) as (draft, made):
            give_name(folder, draft, name, old)
        self._own_bytes += more
        return CopiedFile(FileMark.of(source), made.size, made.digest)

    def _remove_own(self, path: str) -> None:
        with suppress(FileNotFoundError), self._workspace.entered(path) as (folder, name):
            if (there := _regular(folder, name)) is not None:
                remove(folder, name, there)
                if self._own_bytes is not None:
                    self._own_bytes -= there.st_size


def _regular(folder: Folder, name: str) -> os.stat_result | None:
    """Returns the status of a regular file; None if there is none."""
    there = folder.status(name)
    return there if there is not None and stat.S_ISREG(there.st_mode) else None
