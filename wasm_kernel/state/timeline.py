"""A sandbox's memory over time: one commit a cell, and a new instance that stands at any of them.

Everything here runs on the sandbox's own thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from wasm_kernel import events
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import (
    ForkError,
    GuestStopped,
    HistoryError,
    PolicyError,
    TravelError,
    describe,
)
from wasm_kernel.events import Notices
from wasm_kernel.folders.folders import STATE, SandboxFolders
from wasm_kernel.folders.locks import HistoryLock, Resume
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import told
from wasm_kernel.state.commits import Unreadable
from wasm_kernel.state.earlier import EarlierFiles
from wasm_kernel.state.fork import Fork
from wasm_kernel.state.history import History
from wasm_kernel.state.image import BaseImage
from wasm_kernel.state.index import Commit
from wasm_kernel.state.recorder import Recorder
from wasm_kernel.state.stored import set_first_aside
from wasm_kernel.state.travel import NAMES_MOST, Journey, Past, listed
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.open_files import OpenFile

_LABEL = 80
_COPIED_A_SECOND = 1 << 30  # bytes, about
_SAVE_SECONDS = 60.0
_SINCE = " (and what widgets did since)"
_RESEEDED = " (with fresh seeds)"
_TRAVELLED = {
    "undo": events.MEMORY_UNDO,
    "redo": events.MEMORY_REDO,
    "restore": events.MEMORY_RESTORE,
}


class Timeline:
    """The history of one sandbox, from its first cell to its end."""

    def __init__(
        self,
        folders: SandboxFolders,
        policy: ExecutionPolicy,
        *,
        resume: Resume,
        notices: Notices,
        inherited: Fork | None = None,
    ) -> None:
        self._image_files: tuple[OpenFile, ...] = ()
        self._resume = resume
        self._inherited = inherited
        self._claim = HistoryLock(folders.private)
        self._policy = policy
        self.folders = folders
        self._recorder: Recorder | None = None
        self._notices = notices
        self.saving = False  # the last commits are being written, the session is over
        self.untried = False  # no guest has run yet in the state that an earlier process left
        self._held: Journey | None = None
        self.files = EarlierFiles(folders, policy)
        self._removed = False  # the workspace, as was told

    def open(self, image: BaseImage) -> None:
        """Begin a history, or go on with the one that is there, over the guest's base image.

        What the user must be told about it stands in the notices afterwards.
        """
        self._image_files = image.files
        if self._recorder is None:
            try:
                history = self._history(image.id)
            except OSError as problem:
                self._trouble(problem)
                history = History(None, image.id)
            keep, cap = self._policy.history_cells, self._policy.history_bytes
            self._recorder = Recorder(history, self._trouble, self._narrow, keep=keep, cap=cap)

    def _history(self, image: str) -> History:
        for notice in self.folders.notices:
            self._notices.tell(notice, error="private state")
        if not self._claim.take():
            self._notices.tell(told.TAKEN, error="the session is already open")
            return History(None, image)
        if self._inherited is not None:
            history = self._inherit(self._inherited)
        else:
            history = History(self.folders.private.enter(STATE, make=True), image)
        try:
            if self._inherited is None:
                self._find(history)
            self.files.begin(history, crashed=self._claim.crashed)
            self._claim.settled()
        except BaseException:
            history.close()
            raise
        return history

    def _inherit(self, fork: Fork) -> History:
        if fork.left_out:
            words = f"{len(fork.left_out)} files of the parent are not in the fork"
            self._notices.tell(told.left_out(fork.left_out), error=words)
        return fork.history

    def _find(self, history: History) -> None:
        resume = self._resume if self.folders.lasting else Resume.NEVER
        if self._claim.wants(resume):
            self._go_on(history)
        else:
            set_first_aside(self.folders.private)
            history.clear()

    def adopt(self, policy: ExecutionPolicy) -> None:
        """Keep as much as another policy says, from now on."""
        self._policy, recorder = policy, self._recorder
        if recorder is not None:
            recorder.limit(keep=policy.history_cells, cap=policy.history_bytes)
        self.files.adopt(policy, None if recorder is None else recorder.history)

    def forsake(self) -> None:
        """Who opens the session next begins without these variables. Any thread."""
        self._claim.begin_anew()

    def _go_on(self, history: History) -> None:
        try:
            usable = history.load(crashed=self._claim.crashed)
            if usable is None and set_first_aside(self.folders.private):
                raise HistoryError(told.FIRST_FORMAT)
        except HistoryError as problem:
            self._notices.tell(told.lost(problem), error=describe(problem))
            history.set_aside()
            return
        head = history.commits.get(history.head)
        if head is None:
            history.set_aside()
            return
        claim, self.untried = self._claim, True
        self._tell_resumed(head, forked=claim.forked, crashed=claim.crashed)
        if usable is not None and usable.is_damaged:
            words = f"{usable.lost} saved states are damaged"
            self._notices.tell(told.damaged(usable, head), error=words)

    def _tell_resumed(self, head: Commit, *, forked: bool, crashed: bool) -> None:
        fields = {"cell": head.cell, "crashed": crashed}
        if self._notices.quiet and not (forked or crashed):
            self._notices.log(events.MEMORY_RESUME, **fields)
        else:
            text = told.going_on(head, forked=forked, crashed=crashed)
            self._notices.tell(text, events.MEMORY_RESUME, **fields)

    def _narrow(self, cells: int) -> None:
        words = told.narrowed(cells, self._policy.history_bytes)
        self._notices.tell(words, error=f"only {cells} cells can be undone within history_bytes")

    def _trouble(self, problem: Exception) -> None:
        self._notices.tell(told.unsaved(problem), error=describe(problem))

    @property
    def history(self) -> History:
        """The commits."""
        return self._live().history

    @property
    def saved(self) -> bool:
        """Whether variables outlive a crash: commits come to disk."""
        return self._live().saves

    def _live(self) -> Recorder:
        if self._recorder is None:
            raise RuntimeError("this timeline is not open")
        return self._recorder

    @property
    def head(self) -> Commit | None:
        """The commit that the living memory stands at, None before the first."""
        history = self._live().history
        return history.commits.get(history.head)

    def stand(self, instance: Instance, files: WasiFiles) -> list[str]:
        """Bring an instance that has the base image's memory to the head.

        Returns:
            The paths of open files that are gone; using them fails in the guest.

        Raises:
            Unreadable: the head can't be read. `give_up` leads to a state that can; take another
                instance.
            PolicyError: the policy's memory limit is below what the head needs.
        """
        recorder, head = self._live(), self.head
        try:
            recorder.history.fill(instance, recorder.history.head)
        except MemoryError as problem:
            rule = f"is too small for this session's variables: {problem}"
            raise PolicyError("memory_bytes", rule) from None
        ready = self.files.ready(recorder.history)
        lost = files.reopen(ready if head else self._image_files)
        recorder.watch(instance, files)
        return [file.path or "" for file in lost]

    def give_up(self, problem: Unreadable) -> None:
        """A commit that the head stands on can't be read: the head is the state before it now."""
        lost = self.history.commits[problem.one]
        count = self.history.forget(lost.id)
        self._notices.tell(told.unreadable(lost, count, problem), error=describe(problem))
        self._save_head()

    def pass_over(self, head: Commit, problem: GuestStopped, *, last: bool) -> None:
        """No guest runs in a state that an earlier process, or another session, left.

        Args:
            head: That state.
            problem: What became of the guest.
            last: Whether no earlier state is to be tried.
        """
        begin = last or not head.parent or not self.untried
        self._notices.tell(told.DEAD_LOST if begin else told.dead(head), error=describe(problem))
        self.leave(begin=begin)

    def commit(
        self, instance: Instance, *, cell: int, count: int, code: str, counted: bool = True
    ) -> bool:
        """What the cell did to memory becomes a commit; False where there was no room for it.

        Args:
            instance: The guest.
            cell: The cell's execution count.
            count: That of the next one.
            code: Its source, whose first line becomes its label.
            counted: Whether it is a cell that an undo counts.
        """
        label = code.strip().split("\n", 1)[0][:_LABEL]
        return self._commit(instance, cell, count, label, int(counted))

    def commit_between(self, instance: Instance) -> bool:
        """As `commit`, of what ran since the last cell; it is taken back together with that."""
        head = self.head
        if head is None:
            return False
        label = f"{head.label.removesuffix(_SINCE)}{_SINCE}"
        return self._commit(instance, head.cell, head.count, label, 0)

    @property
    def estranged(self) -> bool:
        """Whether the head is another session's, which goes on elsewhere with the same seeds."""
        origin, head = self.history.origin, self.head
        return head is not None and origin.reseed and origin.inherits(head)

    def commit_estranged(self, instance: Instance) -> bool:
        """As `commit_between`, of fresh seeds: from now on the head is this session's own."""
        head = self.head
        if head is None:
            return False
        return self._commit(instance, head.cell, head.count, f"{head.label}{_RESEEDED}", 0)

    def catch_up(self, instance: Instance) -> bool:
        """Have the head be what memory is now; False if there is no room for it."""
        return not self._live().behind or self.commit_between(instance)

    def settle(self, instance: Instance, copies: int | None) -> None:
        """Have the head be what memory is now, and wait for it to be on disk, where it can be
        shared: as long as so many copies would take, or without a limit of that kind.

        Raises:
            ForkError: memory can't be kept.
        """
        recorder = self._live()
        if recorder.behind and not self.commit_between(instance):
            raise ForkError(self._notices.take_last().removeprefix("[wasm-kernel] ").strip())
        if self.head is None:
            raise ForkError("its beginning could not be kept")
        copied = (copies or 0) * self.history.unwritten / _COPIED_A_SECOND
        recorder.catch_up(_SAVE_SECONDS if copies is None else copied)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Keeps everything on disk as it is while a block lasts, for somebody who forks it.

        Raises:
            ForkError: not everything is on disk.
        """
        history = self.history
        if history.waiting or not history.on_disk:
            raise ForkError(told.NOT_SAVED)
        try:
            history.save_head()
        except OSError as problem:
            raise ForkError(describe(problem)) from problem
        with history.still():
            yield

    def _commit(self, instance: Instance, cell: int, count: int, label: str, cells: int) -> bool:
        try:
            self._live().commit(instance, cell=cell, count=count, label=label, cells=cells)
        except (OSError, MemoryError) as problem:
            self._notices.tell(told.untaken(cell, label, problem), error=describe(problem))
            return False
        self._forget_undone()
        self._pin()
        for words in self.files.taken(self.history):
            self._notices.tell(words, error="earlier versions of files are not kept")
        if self.folders.removed and not self._removed:
            self._removed = True
            self._notices.tell(told.REMOVED, error="the workspace folder was removed")
        return True

    def _forget_undone(self) -> None:
        """What was undone makes room, if nothing else does."""
        history, most = self.history, self._policy.history_bytes
        if not history.undone or history.disk_bytes <= most:
            return
        if history.least_bytes(history.names, history.undone) > most:
            history.forget_undone()

    @property
    def count(self) -> int:
        """The execution count that comes after all that were ever used."""
        return max((commit.count for commit in self.past.commits.values()), default=1)

    @property
    def past(self) -> Past:
        """What is known of the history now."""
        history = self._live().history
        return Past(dict(history.commits), history.head, dict(history.names), history.undone)

    def hold(self, journey: Journey | None) -> None:
        """Keep from being folded away what a journey leads to, until the next call.

        Raises:
            TravelError: it is gone already.
        """
        before, self._held = self._held, journey
        try:
            self._pin()
        except HistoryError as problem:
            self._held = before
            raise TravelError(f"{problem}; nothing was changed.") from None

    def _pin(self) -> None:
        held = set() if self._held is None else {self._held.to, *self._held.undone} - {0}
        self.history.pin({*held, *self.history.undone} & self.history.commits.keys() | held)

    def fall_back(self) -> None:
        """The guest is lost in a turn: memory goes back to where the head is."""
        self.hold(None)
        self._log_fall_back()

    def leave(self, *, begin: bool = False) -> bool:
        """The head is of no use: go back to the state before it, or `begin` without any.

        `%redo` leads there again. The user is not told.

        Returns:
            Whether there is a state to stand at now.
        """
        head, past = self.head, self.past
        to = 0 if begin or head is None else head.parent
        self.go(Journey(to, (), (*past.undone, *([past.head] if past.head else []))))
        return to != 0

    def go(self, journey: Journey) -> None:
        """From now on the head is where a journey leads; instances are brought there by `stand`.

        Raises:
            HistoryError: it leads nowhere any more; nothing was changed.
        """
        self.history.move(journey.to, journey.undone)
        self.hold(None)
        self._save_head()
        if journey.how not in _TRAVELLED:
            self._log_fall_back()
            return
        cell = self.head.cell if self.head is not None else 0
        self._notices.log(_TRAVELLED[journey.how], to_cell=cell, cells=len(journey.cells))

    def _log_fall_back(self) -> None:
        if self.head is not None:
            self._notices.log(events.MEMORY_ROLLBACK, to_cell=self.head.cell)

    def check_names(self, names: Collection[str]) -> None:
        """See that a state like the head can be given names.

        Raises:
            TravelError: there would be too many, or too much on disk; nothing was changed.
        """
        history, most = self.history, self._policy.history_bytes
        after = {**history.names, **dict.fromkeys(names, history.head)}
        if len(after) > NAMES_MOST:
            raise TravelError(told.TOO_MANY_NAMES)
        if history.disk_bytes > most and history.least_bytes(after) > most:
            raise TravelError(told.no_room_for_names(most))

    def name(self, *names: str) -> None:
        """Give the head names.

        Raises:
            TravelError: as `check_names`.
        """
        self.check_names(names)
        for name in names:
            self.history.name(name, self.history.head)
        self._save_head()
        cell = self.head.cell if self.head is not None else 0
        for name in names:
            self._notices.log(events.MEMORY_CHECKPOINT, name=name, cell=cell)

    def _save_head(self) -> None:
        try:
            self.history.save_head()
        except OSError as problem:
            self._trouble(problem)

    def rows(self) -> list[dict[str, Any]]:
        """The states that can be gone back to, oldest first, as the agent shows them."""
        return listed(self.past)

    def let_go(self) -> None:
        """The instance is about to be closed."""
        if self._recorder is not None:
            self._recorder.unwatch()

    def close(self) -> None:
        """Write what is left."""
        self.saving, ended = True, True
        try:
            if self._recorder is not None:
                self._recorder.close()
                ended = self._recorder.history.close()
                self._recorder = None
            if self._inherited is not None:  # a fork that was never opened has it still
                self._inherited.history.close()
            ended = self.files.close() and ended  # the next holder may read what it says at once
            self._claim.release(ended=ended)
        finally:
            self.files.close()
            self.saving = False
