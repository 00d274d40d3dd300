"""Resuming the memory that an earlier process left, or beginning anew, and telling the user."""

from __future__ import annotations

from wasm_kernel import events
from wasm_kernel.errors import HistoryError, describe
from wasm_kernel.events import Notices
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.locks import HistoryLock, Resume
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import texts
from wasm_kernel.state.history import History
from wasm_kernel.state.stored import RecoveredHistory, may_have_names


class Resumption:
    """Resumes a stored state: all of it, or only named states. The guest's thread owns it.

    `wants_any` is False if the state's folder will be emptied instead. `is_untried` is True if the
    resumed state may be broken, as no guest of this process ran in it yet.
    """

    def __init__(
        self,
        folders: SandboxFolders,
        lock: HistoryLock,
        resume: Resume,
        notices: Notices,
        state: Folder,
    ) -> None:
        self._folders, self._lock, self._notices = folders, lock, notices
        self._wants_all = lock.wants(resume if folders.private.survives_restart else Resume.NEVER)
        self._is_told = folders.reopened and not lock.wants(resume)
        self.wants_any = self._wants_all or may_have_names(state)
        self.is_untried = False

    def take_up(self, history: History) -> None:
        """Loads the wanted part of the state's folder into its history."""
        if self._wants_all:
            self._go_on(history)
        else:
            self._begin_anew(history)

    def _begin_anew(self, history: History) -> None:
        """Begins without the variables of an earlier run; its named states can be restored."""
        if self._is_told:
            self._notices.tell(texts.FILES_ALONE, error="variables were not kept")
        if why := self._lock.found.evicted:
            gone = "the saved states were removed"
            self._notices.note(texts.names_evicted(why), events.MEMORY_TROUBLE, error=gone)
        try:
            usable = history.load(crashed=self._lock.found.alive) if self.wants_any else None
        except HistoryError as problem:
            self._notices.tell(texts.NAMES_LOST.format(why=problem), error=describe(problem))
            history.set_aside()
            return
        if usable is None:
            history.clear()
            return
        history.keep_named()
        if usable.is_damaged:
            missing = texts.NAMES_MISSING.format(lost=usable.lost)
            self._notices.tell(missing, error=f"{usable.lost} states are lost")
        if names := usable.tree.names:
            self._notices.note(texts.restorable(names), events.MEMORY_NAMED, names=len(names))

    def _go_on(self, history: History) -> None:
        try:
            usable = history.load(crashed=self._lock.found.alive)
            if usable is None and (self._lock.found.evicted or self._folders.verified):
                raise HistoryError(texts.evicted(self._lock.found.evicted))
        except HistoryError as problem:
            self._notices.tell(texts.lost(problem), error=describe(problem))
            history.set_aside()
            return
        if usable is not None and usable.tree.commits:
            self._tell_resumed(usable)

    def _tell_resumed(self, usable: RecoveredHistory) -> None:
        head, last = usable.tree.commits.get(usable.tree.head), self._lock.found
        if head is None:
            self._notices.tell(texts.AT_THE_BEGINNING, error="no guest ran in the saved states")
            return
        self.is_untried = last.alive or not self._folders.verified
        fields = {"cell": head.cell, "crashed": last.alive}
        is_news = last.forked or (last.alive and not self._notices.crash_is_told)
        if self._notices.quiet and not is_news:
            self._notices.log(events.MEMORY_RESUME, **fields)
        else:
            text = texts.going_on(head, forked=last.forked, crashed=last.alive)
            tell = self._notices.tell if last.forked else self._notices.tell_resumed
            tell(text, events.MEMORY_RESUME, **fields)
        if usable.is_damaged:
            self._notices.tell(texts.damaged(usable, head), error=f"{usable.lost} states are lost")
