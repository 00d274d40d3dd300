"""A sandbox's memory over time: one commit a cell, and a new instance that stands at any of them.

Everything here runs on the sandbox's own thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.memory.commit import Commit
from wasm_kernel.engine.memory.history import History, Unreadable
from wasm_kernel.engine.memory.recorder import Recorder
from wasm_kernel.errors import HistoryError, PolicyError, TravelError
from wasm_kernel.sandbox.claim import Claim, Resume
from wasm_kernel.sandbox.driver import Driver
from wasm_kernel.sandbox.travel import Journey, Past, listed

_LABEL = 80
_COMMITS = "history"
_TAKEN = (
    "[wasm-kernel] Another process has this session open. You see the same files; variables begin "
    "fresh here and end with this process.\n"
)
_RESUMED = (
    "[wasm-kernel] The session goes on after a break: the variables are as they were after "
    "{after}. What ran later is lost; the files in /app are as they were left.\n"
)
_CONTINUED = "[wasm-kernel] The session goes on: the variables are as they were after {after}.\n"
_FORKED = (
    "[wasm-kernel] This session was forked off another one: variables and files are as they were "
    "there after {after}.\n"
)
_LOST = "[wasm-kernel] The variables are gone: {why}. The files in /app are all there.\n"
_UNSAVED = (
    "[wasm-kernel] This session's variables can't be saved to disk ({why}). It goes on in memory; "
    "a crash of the kernel would lose them.\n"
)
_UNTAKEN = (
    "[wasm-kernel] The state after {after} could not be kept ({why}); the variables themselves are "
    "all there. The next cell tries again; until then, a rollback leads to before that cell.\n"
)
_UNREADABLE = (
    "[wasm-kernel] The saved state after {after} can't be read any more ({why}). The variables are "
    "as they were before that.\n"
)
_SINCE = " (and what widgets did since)"
_DAMAGED = "[wasm-kernel] {count} saved states were damaged and are left out.\n"


class Timeline:
    """The history of one sandbox, from its first cell to its end."""

    def __init__(
        self, driver: Driver, folder: Path, *, keep: int, cap: int, resume: Resume
    ) -> None:
        self._driver = driver
        self._resume = resume
        self._claim = Claim(folder)
        self._keep = keep
        self._cap = cap
        self._folder = folder
        self._recorder: Recorder | None = None
        self.troubles: list[str] = []
        self.saving = False  # the last commits are being written, the session is over
        self._held: Journey | None = None

    def open(self) -> None:
        """Begin a history, or go on with the one that is there; the guest's image is known by now.

        What the user must be told about it stands in `troubles` afterwards.
        """
        if self._recorder is None:
            try:
                history = self._history()
            except OSError as problem:
                self._trouble(problem)
                history = History(None, self._driver.image_name)
            self._recorder = Recorder(history, self._trouble, keep=self._keep, cap=self._cap)

    def _history(self) -> History:
        image = self._driver.image_name
        if not self._claim.take():
            self.troubles.append(_TAKEN)
            return History(None, image)
        history = History(self._folder / _COMMITS, image)
        if self._claim.wants(self._resume):
            self._go_on(history)
        else:
            history.clear()
        self._claim.settled()
        return history

    def forsake(self) -> None:
        """Who opens the session next begins without these variables. Any thread."""
        self._claim.forsake()

    def _go_on(self, history: History) -> None:
        try:
            damaged = history.load()
        except HistoryError as problem:
            self.troubles.append(_LOST.format(why=problem))
            history.clear()
            return
        head = history.commits.get(history.head)
        if head is None:
            history.clear()
            return
        self.troubles.append(self._words().format(after=_place(head)))
        if damaged:
            self.troubles.append(_DAMAGED.format(count=len(damaged)))

    def _words(self) -> str:
        if self._claim.forked:
            return _FORKED
        return _RESUMED if self._claim.crashed else _CONTINUED

    def _trouble(self, problem: Exception) -> None:
        self.troubles.append(_UNSAVED.format(why=_why(problem)))

    @property
    def history(self) -> History:
        """The commits."""
        return self._live().history

    def _live(self) -> Recorder:
        if self._recorder is None:
            raise RuntimeError("this timeline is not open")
        return self._recorder

    @property
    def head(self) -> Commit | None:
        """The commit that the living memory stands at, None before the first."""
        history = self._live().history
        return history.commits.get(history.head)

    def stand(self, instance: Instance) -> list[str]:
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
        lost = instance.descriptors.restore(head.files if head else self._driver.image_files)
        recorder.watch(instance)
        return [file.path or "" for file in lost]

    def give_up(self, problem: Unreadable) -> None:
        """A commit that the head stands on can't be read: the head is the state before it now."""
        lost = self.history.commits[problem.one]
        told = _UNREADABLE.format(after=_place(lost), why=problem)
        self.troubles.append(told if lost.parent else _LOST.format(why=problem))
        self.history.forget(lost.id)
        self._save_head()

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

    def _commit(self, instance: Instance, cell: int, count: int, label: str, cells: int) -> bool:
        try:
            self._live().commit(instance, cell=cell, count=count, label=label, cells=cells)
        except (OSError, MemoryError) as problem:
            after = f"In[{cell}] ({label})"
            self.troubles.append(_UNTAKEN.format(after=after, why=_why(problem)))
            return False
        self._pin()
        return True

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
        held = set() if self._held is None else {self._held.to, *self._held.undone}
        self.history.pin({*held, *self.history.undone} & self.history.commits.keys() | held)

    def go(self, journey: Journey) -> None:
        """From now on the head is where a journey leads; instances are brought there by `stand`.

        Raises:
            HistoryError: it leads nowhere any more; nothing was changed.
        """
        self.history.move(journey.to, journey.undone)
        self.hold(None)
        self._save_head()

    def name(self, name: str) -> None:
        """Give the head a name."""
        self.history.name(name, self.history.head)
        self._save_head()

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
        self.saving = True
        try:
            if self._recorder is not None:
                self._recorder.close()
                self._recorder = None
            self._claim.give_back()
        finally:
            self.saving = False


def _place(commit: Commit) -> str:
    return f"In[{commit.cell}] ({commit.label})" if commit.cell else "its beginning"


def _why(problem: Exception) -> str:
    """A problem in words, without a path of the host."""
    words = problem.strerror if isinstance(problem, OSError) else str(problem)
    return words or "no memory is left"
