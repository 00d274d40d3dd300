"""A session's memory and files over time: one commit a cell, and a guest at one of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from wasm_kernel import events
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import (
    ForkError,
    GuestStopped,
    HistoryError,
    PolicyError,
    SessionInUse,
    TravelError,
    describe,
)
from wasm_kernel.events import Notices
from wasm_kernel.folders.folders import STATE, SandboxFolders
from wasm_kernel.folders.locks import HistoryLock, Resume
from wasm_kernel.linux.folders import inode_of, undoing
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Ran
from wasm_kernel.state import folding, texts
from wasm_kernel.state.commits import Unreadable
from wasm_kernel.state.file_restore import RestoredFiles, as_at_commit, left_files, restore_files
from wasm_kernel.state.file_versions import FileVersions
from wasm_kernel.state.history import History
from wasm_kernel.state.image import BaseImage
from wasm_kernel.state.index import Commit, stored_image
from wasm_kernel.state.pages import Heap
from wasm_kernel.state.recorder import Recorder
from wasm_kernel.state.resumption import Resumption
from wasm_kernel.state.tree import NAMES_MOST, TravelPlan, Tree
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.open_files import OpenFile
from wasm_kernel.wasi_files.operations import FileOperations

_LOG = logging.getLogger("wasm_kernel.state")
_LABEL = 80
_SAVE_SECONDS = 240.0
_SINCE, _RESEEDED = " (and what widgets did since)", " (with fresh seeds)"
_NOTED_MOST = 1000  # paths that could not be kept, and were told
_NOT_KEPT = "earlier versions of files are not kept"
_TRAVELLED = {
    "undo": events.MEMORY_UNDO,
    "redo": events.MEMORY_REDO,
    "restore": events.MEMORY_RESTORE,
}


class SessionState:
    """The memory and files of one sandbox, from its first cell to its end.

    The guest's thread owns it. `files` are the earlier versions of files. `is_untried` is True
    until a guest ran in the state that an earlier process left. If it `ends_in_crash`, the next
    holder of the session finds it as after a crash; if it `ends_asleep`, another process of the
    same sandbox goes on.
    """

    def __init__(
        self, folders: SandboxFolders, policy: ExecutionPolicy, *, resume: Resume, notices: Notices
    ) -> None:
        self._folders = folders
        self.is_untried = False
        self._policy = policy
        self._resume = resume
        self._notices = notices
        self._lock = HistoryLock(folders.private)
        app, most, copied = folders.app.folder, policy.files_history_bytes, policy.file_copy_bytes
        self.files = FileVersions(app, folders.private, most_bytes=most, copy_bytes=copied)
        self._recorder: Recorder | None = None
        self._image: BaseImage | None = None
        self._not_kept: set[str] = set()  # the paths that the user was told of
        self._files_troubled = self._removal_told = False
        self._is_wanted = folders.private.survives_restart  # after the end
        self.ends_in_crash = self.ends_asleep = False

    # -- beginning and end

    def open(self, images: Iterable[BaseImage]) -> None:
        """Begins a history over a base image, or resumes one; notices tell the user.

        `images` are the guest's base images: the first is for a new history, the others are for
        histories that began over them.
        """
        if self._recorder is None:
            others = iter(images)
            self._image = next(others)
            try:
                history = self._history(others)
            except OSError as problem:
                self._tell_unsaved(problem)
                history = History(None, self.image.id)
            keep, cap = self._policy.history_cells, self._policy.history_bytes
            self._recorder = Recorder(
                history, self._tell_unsaved, self._tell_narrowed, keep=keep, cap=cap
            )

    def _history(self, others: Iterator[BaseImage]) -> History:
        for notice in self._folders.notices:
            self._notices.tell(notice, error="private state")
        owned, waits = self._folders.owned, self._notices.on_wait
        if not self._lock.acquire(self._folders.is_left, waits, is_owned=owned):
            if self._policy.door.is_served and self._lock.is_elsewhere:
                raise SessionInUse(texts.AWAKE_ELSEWHERE)
            self._notices.tell(texts.TAKEN, error="the session is already open")
            return History(None, self.image.id)
        state = self._folders.private.enter(STATE, make=True)
        resumption = Resumption(self._folders, self._lock, self._resume, self._notices, state)
        if resumption.wants_any and (image := stored_image(state)) != self.image.id:
            self._image = next((one for one in others if one.id == image), self.image)
        history = History(state, self.image.id, self._folders.verified)
        with undoing(history.close):
            resumption.take_up(history)
            self.is_untried = resumption.is_untried
            if history.place and history.place.has_come_back:  # the kept files fit another history
                self.files.begin_anew(history.tree.last, known=False)
            elif history.tree.commits:
                self.files.load(history.tree.last, crashed=self._lock.found.alive)
            else:
                self.files.begin_anew()
            self._lock.clear_requests()
        return history

    def forget_at_end(self) -> None:
        """Makes the next holder of the session begin without these variables. Any thread."""
        self._lock.begin_anew()
        self._is_wanted = False

    def close(self) -> None:
        """Writes all waiting commits. If that fails, the log and the next run's notice say so."""
        ended = True
        try:
            if self._recorder is not None:
                recorder, self._recorder = self._recorder, None
                recorder.close()
                kept = recorder.history.tree.without(recorder.history.waiting)
                ended = recorder.history.close(sync=self._is_wanted)
                ended = ended and not recorder.has_uncommitted_changes
                if not ended and self._is_wanted and self._resume is not Resume.NEVER:
                    head = kept.commits.get(kept.head)
                    _LOG.warning(texts.left_behind(self._folders.path.name, head))
            ended = self.files.close() and ended  # before the next holder can read it
            self._lock.release(ended=ended and not self.ends_in_crash, asleep=self.ends_asleep)
        finally:
            self.files.close()

    # -- facts

    @property
    def history(self) -> History:
        """The commits as they are kept, for a fork."""
        return self._live().history

    @property
    def tree(self) -> Tree:
        """The commits, and the one that memory is at."""
        return self._live().history.tree

    @property
    def image(self) -> BaseImage:
        """The base image to which saved memory is relative."""
        assert self._image is not None, "this state is open"
        return self._image

    def _live(self) -> Recorder:
        assert self._recorder is not None, "this state is open"
        return self._recorder

    @property
    def states(self) -> int:
        """The number of states that memory can be brought back to; 0 before it is open."""
        return 0 if (recorder := self._recorder) is None else recorder.history.tree.states

    @property
    def saved(self) -> bool:
        """True if variables outlive a crash, as commits are written to disk."""
        return self._live().saves

    @property
    def is_kept(self) -> bool:
        """True if the head on disk has the guest's whole state."""
        return self._live().is_kept

    @property
    def head(self) -> Commit | None:
        """The commit that the living memory is at, None before the first."""
        tree = self.tree
        return tree.commits.get(tree.head)

    # -- the living guest

    def attach(
        self, instance: Instance, files: FileOperations, heap: Heap, *, reopen: bool = True
    ) -> None:
        """Brings an instance that has the base image's memory to the head, and tracks it.

        With `reopen`, files open at the head are opened again, except for missing ones.

        Raises:
            Unreadable: the head can't be read; call `drop_unreadable_commit`, then take another
                instance.
            PolicyError: the policy's memory limit is below what the head needs.
        """
        recorder = self._live()
        try:
            pages = recorder.fill(instance)
        except MemoryError as problem:
            rule = f"is too small for this session's variables: {problem}"
            raise PolicyError("memory_bytes", rule) from None
        if reopen:
            files.reopen(self._open_files())
        recorder.watch(instance, files, heap, pages)

    def _open_files(self) -> tuple[OpenFile, ...]:
        """Returns the files open at the head; restores the contents of unlinked ones."""
        head, tree = self.head, self.tree
        if head is None:
            return self.image.files
        self.files.remove_unneeded(tree.unlinked_files)
        return tuple(as_at_commit(self.files, one, head.id) for one in tree.origin.files_of(head))

    def detach(self, *, keep: bool = False) -> None:
        """Ends tracking; the instance is about to be closed. `keep` parks its memory."""
        if self._recorder is not None:
            self._recorder.unwatch(keep=keep)

    def use_count(self, count: int) -> None:
        """Notes the execution count of the next cell, after a cell that leaves no commit."""
        self.history.use_count(count)
        self._live().save()

    def drop_unreadable_commit(self, problem: Unreadable) -> None:
        """Drops a commit that can't be read; the head is now its parent."""
        lost = self.tree.commits[problem.commit_id]
        count = self.history.forget(lost.id)
        self._notices.tell(texts.unreadable(lost, count, problem), error=describe(problem))
        self._live().save()

    def leave_unstartable_head(self, head: Commit, problem: GuestStopped, *, last: bool) -> None:
        """Leaves a state of an earlier process, or of another session, in which no guest starts.

        With `last`, memory goes to the beginning without trying an earlier state.
        """
        begin = last or not head.parent or not self.is_untried
        self._notices.tell(texts.DEAD_LOST if begin else texts.dead(head), error=describe(problem))
        self.move_before_head(begin=begin)

    def move_before_head(self, *, begin: bool = False) -> bool:
        """Goes from an unusable head to the state before it, or (`begin`) to the very beginning.

        `%redo` leads back to the head. Gives no notice. Returns False if memory is at no state now.
        """
        head, tree = self.head, self.tree
        target = 0 if begin or head is None else head.parent
        self.travel(TravelPlan(target, (), tree.undone_after_leaving()))
        return target != 0

    # -- commits

    def commit(
        self,
        instance: Instance,
        *,
        cell: int,
        count: int,
        code: str,
        counted: bool = True,
        ran: Ran | None = None,
    ) -> bool:
        """Commits a cell's changes to memory; returns False if there was no room for them.

        `cell` is its number, `count` the next one. An undo passes over one that is not `counted`.
        """
        label = code.strip().split("\n", 1)[0][:_LABEL]
        cells = int(counted)
        return self._commit(instance, cell=cell, count=count, label=label, cells=cells, ran=ran)

    def commit_between(self, instance: Instance, *, reseeded: bool = False) -> bool:
        """Commits changes since the last cell; an undo of that cell takes them back, too.

        With fresh seeds (`reseeded`), the head is this session's own from now on.
        """
        head = self.head
        if head is None:
            return False
        label = head.label and head.label.removesuffix(_SINCE) + (_RESEEDED if reseeded else _SINCE)
        return self._commit(
            instance, cell=head.cell, count=head.count, label=label, cells=0, ran=head.ran
        )

    def catch_up(self, instance: Instance) -> bool:
        """Commits changes that could not be committed before; returns False if that fails again."""
        return not self._live().has_uncommitted_changes or self.commit_between(instance)

    def _commit(
        self, instance: Instance, *, cell: int, count: int, label: str, cells: int, ran: Ran | None
    ) -> bool:
        try:
            self._live().commit(instance, cell=cell, count=count, label=label, cells=cells, ran=ran)
        except (OSError, MemoryError) as problem:
            why = describe(problem)
            words = texts.UNTAKEN.format(cell=cell, label=label, why=why)
            self._notices.tell(words, error=why)
            return False
        history, tree = self.history, self.tree
        needed = {*tree.names.values(), *tree.undone}
        if tree.undone and not folding.can_fit(history, needed, self._policy.history_bytes):
            history.move(tree.head)  # from now on there is no redo
        self._note_files()
        self.tell_files()
        if self._folders.removed and not self._removal_told:
            self._removal_told = True
            self._notices.tell(texts.REMOVED, error="the workspace folder was removed")
        return True

    def _note_files(self) -> None:
        """Notes that later changes of files come after this commit."""
        tree, files = self.tree, self.files
        if files.commit(tree.last, tree.commits.keys()):
            files.remove_unneeded(tree.unlinked_files)
        if tree.last in tree.commits:
            files.trim(Tree({tree.last: tree.commits[tree.last]}).unlinked_files)

    def tell_files(self) -> None:
        """Tells the user which files could not be kept before the cell changed them."""
        files = self.files
        not_kept, files.not_kept = files.not_kept, []
        new = {path: why for path, why in not_kept if path not in self._not_kept}
        if new:
            self._notices.tell(texts.not_kept(new, self._policy.door), error=_NOT_KEPT)
        if len(self._not_kept) < _NOTED_MOST:
            self._not_kept |= new.keys()
        trouble, was_troubled = files.ledger.trouble, self._files_troubled
        self._files_troubled = trouble is not None
        if trouble is not None and not was_troubled:
            words = texts.KEEPS_NO_FILES.format(why=describe(trouble))
            self._notices.tell(words, error=_NOT_KEPT)

    # -- travel and names

    def plan(
        self,
        how: str,
        cells: int = 1,
        name: str = "",
        *,
        files: bool = False,
        after: TravelPlan | None = None,
    ) -> TravelPlan:
        """Plans a travel (`Tree.plan`), and pins its target until another one is planned.

        The travel `after` will be made before this one. Raises `TravelError`, with nothing changed.
        """
        tree = self.tree if after is None else self.tree.after(after)
        travel = tree.plan(how, cells, name, files=files)
        if travel.files is not None:
            if not self.files.keeps:
                raise TravelError(texts.NO_FILES)
            if travel.files < self.files.ledger.known_from:
                raise TravelError(texts.UNKNOWN_FILES)
        elif after is not None:
            travel = replace(travel, files=after.files)
        try:
            self.history.pin({travel.target, *travel.undone} - {0})
        except HistoryError as problem:
            raise TravelError(f"{problem}; nothing was changed.") from None
        return travel

    def travel(self, travel: TravelPlan) -> None:
        """Makes the target of a travel the head; `attach` brings the next instance there.

        Raises `HistoryError`, with nothing changed, if the target is not kept any more.
        """
        self.history.move(travel.target, travel.undone)
        if travel.how not in _TRAVELLED:
            self.roll_back()
        else:
            self.history.pin(())
            self._notices.log(_TRAVELLED[travel.how], to_cell=self._cell, cells=len(travel.cells))
        self._live().save()

    @property
    def _cell(self) -> int:
        return self.head.cell if self.head is not None else 0

    def roll_back(self) -> bool:
        """Cancels a planned travel: the guest is lost, and memory is at the head again.

        Returns False if an earlier cell's changes are lost, too, as their commit had failed.
        """
        self.history.pin(())
        if self.head is not None:
            self._notices.log(events.MEMORY_ROLLBACK, to_cell=self._cell)
        return not self._live().has_uncommitted_changes

    def restore_files(self, travel: TravelPlan, changes: FileChanges) -> RestoredFiles:
        """Restores a travel's files, while no guest lives, or finds those that stay as they are."""
        if travel.files is None:
            return RestoredFiles(left=left_files(self.files, travel.target))

        def changing(path: str, found: os.stat_result | None) -> None:
            changes.touch(path, None if found is None else inode_of(found))

        return restore_files(self.files, travel.files, changing, self.tree.open_files)

    def check_names(self, names: Collection[str]) -> None:
        """Checks that the head can be given names.

        Raises `TravelError` if there would be too many names, or too many bytes on disk.
        """
        history = self.history
        after = {**history.tree.names, **dict.fromkeys(names, history.tree.head)}
        if len(after) > NAMES_MOST:
            raise TravelError(texts.TOO_MANY_NAMES)
        if not folding.can_fit(history, after.values(), self._policy.history_bytes):
            raise TravelError(texts.no_room_for_names(self._policy))

    def name(self, *names: str) -> None:
        """Gives the head names.

        Raises the errors of `check_names`, and `HistoryError` if the head is not on disk yet.
        """
        self.check_names(names)
        for name in names:
            self.history.name(name, self.tree.head)
            self._notices.log(events.MEMORY_CHECKPOINT, name=name, cell=self._cell)
        self.wait_written(_SAVE_SECONDS)  # a crash would take an unwritten state's name, too
        self._live().save()
        self._live().sync()
        if self.history.on_disk and self.history.waiting:
            raise HistoryError(texts.unwritten(names))

    def forget_name(self, name: str) -> None:
        """Takes a name from its state; `TravelError` if no state has it."""
        if name not in self.tree.names:
            raise TravelError(f"There is no checkpoint {name[:80]!r}; nothing was changed.")
        self.history.forget_name(name)
        self._live().save()
        self._live().sync()

    # -- forks

    def wait_saved(self, instance: Instance) -> None:
        """Commits all changes, and waits some minutes for the head on disk; raises `ForkError`."""
        if not self.catch_up(instance):
            raise ForkError(self._notices.pop_last().removeprefix("[wasm-kernel] ").strip())
        if self.head is None:
            raise ForkError("its beginning could not be kept")
        self.wait_written(_SAVE_SECONDS)

    def wait_written(self, seconds: float) -> bool:
        """Waits as `Recorder.wait_written` does."""
        return self._live().wait_written(seconds)

    # -- notices

    def _tell_unsaved(self, problem: Exception) -> None:
        why = describe(problem)
        self._notices.tell(texts.UNSAVED.format(why=why), error=why)

    def _tell_narrowed(self, cells: int) -> None:
        words = texts.narrowed(cells, self._policy)
        self._notices.tell(words, error=f"only {cells} cells can be undone within history_bytes")
