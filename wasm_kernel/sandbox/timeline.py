"""A sandbox's memory over time: one commit a cell, and a new instance that stands at any of them.

Everything here runs on the sandbox's own thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.memory.commit import Commit
from wasm_kernel.engine.memory.history import History
from wasm_kernel.engine.memory.recorder import Recorder
from wasm_kernel.errors import HistoryError
from wasm_kernel.sandbox.claim import Claim, Resume
from wasm_kernel.sandbox.driver import Driver
from wasm_kernel.sandbox.travel import Journey, Past

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
_LOST = "[wasm-kernel] The variables are gone: {why}. The files in /app are all there.\n"
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
        self._undone: tuple[int, ...] = ()

    def open(self) -> None:
        """Begin a history, or go on with the one that is there; the guest's image is known by now.

        What the user must be told about it stands in `troubles` afterwards.
        """
        if self._recorder is None:
            history = self._history()
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
        return history

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
        after = f"In[{head.cell}] ({head.label})" if head.cell else "its beginning"
        self.troubles.append(_RESUMED.format(after=after))
        if damaged:
            self.troubles.append(_DAMAGED.format(count=len(damaged)))

    def _trouble(self, problem: OSError) -> None:
        self.troubles.append(
            f"[wasm-kernel] This session's variables can't be saved to disk ({problem.strerror}). "
            "It goes on in memory; a crash of the kernel would lose them.\n"
        )

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
        """
        recorder, head = self._live(), self.head
        recorder.history.fill(instance, recorder.history.head)
        lost = instance.descriptors.restore(head.files if head else self._driver.image_files)
        recorder.watch(instance)
        return [file.path or "" for file in lost]

    def commit(self, instance: Instance, *, cell: int, count: int, code: str) -> Commit:
        """What the cell did to memory becomes a commit."""
        self._undone = ()
        label = code.strip().split("\n", 1)[0][:_LABEL]
        return self._live().commit(instance, cell=cell, count=count, label=label)

    @property
    def past(self) -> Past:
        """What is known of the history now."""
        history = self._live().history
        return Past(dict(history.commits), history.head, dict(history.names), self._undone)

    def go(self, journey: Journey) -> None:
        """From now on the head is where a journey leads; instances are brought there by `stand`."""
        self._undone = journey.undone
        self._live().history.move(journey.to)

    def name(self, name: str) -> None:
        """Give the head a name."""
        history = self._live().history
        history.name(name, history.head)

    def rows(self) -> list[dict[str, Any]]:
        """The states that can be gone back to, oldest first, as the agent shows them."""
        past = self.past
        names = {one: name for name, one in past.names.items()}
        return [
            {
                "name": names.get(commit.id, ""),
                "cell": commit.cell,
                "label": commit.label,
                "time": commit.time,
                "bytes": commit.page_bytes,
                "here": commit.id == past.head,
            }
            for commit in sorted(past.commits.values(), key=lambda c: c.id)
        ]

    def let_go(self) -> None:
        """The instance is about to be closed."""
        if self._recorder is not None:
            self._recorder.unwatch()

    def close(self) -> None:
        """Write what is left."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        self._claim.give_back()
