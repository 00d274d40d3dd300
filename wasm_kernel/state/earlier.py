"""The files of a session as they were at earlier commits: kept while cells run, and brought back.

Everything here runs on the sandbox's own thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from wasm_kernel.errors import TravelError
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import told
from wasm_kernel.state.file_restore import RestoredFiles, restore_files, restore_unlinked
from wasm_kernel.state.file_versions import FileVersions, nothing_kept
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import is_unlinked_name
from wasm_kernel.wasi_files.open_files import OpenFile
from wasm_kernel.wasi_files.quota import key_of

_LOST = "lost"  # an identity that no file has
_TOLD_MOST = 1000


class EarlierFiles:
    """The earlier versions of one workspace's files, beside the history of its memory."""

    def __init__(self, folders: SandboxFolders, policy: ExecutionPolicy) -> None:
        self._own = FileVersions(
            folders.workspace,
            folders.private,
            most_bytes=policy.files_history_bytes,
            copy_bytes=policy.file_copy_bytes,
        )
        self.versions = nothing_kept()
        self._told: set[str] = set()
        self._troubled = False

    def adopt(self, policy: ExecutionPolicy, history: History | None) -> None:
        """Keeps as much as another policy says; the history is None before it begins."""
        own, before = self._own, self._own.keeps
        own.limit(most_bytes=policy.files_history_bytes, copy_bytes=policy.file_copy_bytes)
        if history is not None and self.versions is own and own.keeps is not before:
            own.clear(history.last)

    def begin(self, history: History, *, crashed: bool) -> None:
        """Keeps what changes from now on, for a history that this process alone has.

        What was kept for it before is used, unless the history is empty.
        """
        self.versions = self._own
        if history.commits:
            self._own.load(history.last, crashed=crashed)
        else:
            self._own.clear()

    def taken(self, history: History) -> list[str]:
        """Notes that a commit was taken; returns what the user must be told of it."""
        if self.versions.begin(history.last, history.commits.keys()):
            self.sweep(history)
        if self.versions is self._own and history.last in history.commits:
            self.versions.trim(self._unlinked([history.commits[history.last]]))
        return self._notices()

    def _notices(self) -> list[str]:
        not_kept, self.versions.not_kept = self.versions.not_kept, []
        new = {path: why for path, why in not_kept if path not in self._told}
        if len(self._told) < _TOLD_MOST:
            self._told |= new.keys()
        trouble = self.versions.ledger.trouble
        notices = [told.not_kept(new)] if new else []
        if trouble is not None and not self._troubled:
            notices.append(told.keeps_no_files(trouble))
        self._troubled = trouble is not None
        return notices

    def check(self, one: int) -> None:
        """Checks that the files can be brought back to a commit.

        Raises:
            TravelError: they can't; nothing was changed.
        """
        if not self.versions.keeps:
            raise TravelError(told.NO_FILES)
        if one < self.versions.ledger.known_from:
            raise TravelError(told.UNKNOWN_FILES)

    def bring(
        self, one: int | None, changes: FileChanges, history: History
    ) -> RestoredFiles | None:
        """Brings the files back to a commit, while no guest lives; `changes` hears of them.

        Nothing happens if there is no commit to bring them to.
        """
        if one is None:
            return None
        opened = {
            file.identity
            for commit in list(history.commits.values())
            for file in history.origin.files_of(commit)
        }
        return restore_files(
            self.versions,
            one,
            lambda path, found: changes.touch(path, None if found is None else key_of(found)),
            opened,
        )

    def ready(self, history: History) -> tuple[OpenFile, ...]:
        """Returns what was open at the head; unlinked files are as they were then."""
        head = history.commits.get(history.head)
        if head is None:
            return ()
        self.sweep(history)
        return tuple(self._ready(file, head.id) for file in history.origin.files_of(head))

    def _ready(self, file: OpenFile, one: int) -> OpenFile:
        path = file.path
        if path is None or not is_unlinked_name(path) or restore_unlinked(self.versions, path, one):
            return file
        return replace(file, identity=_LOST)

    def sweep(self, history: History) -> None:
        """Removes unlinked files that no commit knows."""
        self.versions.sweep(self._unlinked(list(history.commits.values())))

    def _unlinked(self, commits: Iterable[Commit]) -> set[str]:
        """Returns the names of the unlinked files that commits know."""
        paths = {file.path or "" for commit in commits for file in commit.files}
        return {path for path in paths if is_unlinked_name(path)}

    def close(self) -> bool:
        """Closes what was opened; returns as `FileLedger.close`. Safe to call twice."""
        return self._own.close()
