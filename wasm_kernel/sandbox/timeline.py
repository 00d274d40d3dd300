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
from wasm_kernel.sandbox.driver import Driver
from wasm_kernel.sandbox.travel import Journey, Past

_LABEL = 80


class Timeline:
    """The history of one sandbox, from its first cell to its end."""

    def __init__(self, driver: Driver, folder: Path | None, *, keep: int, cap: int) -> None:
        self._driver = driver
        self._keep = keep
        self._cap = cap
        self._folder = folder
        self._recorder: Recorder | None = None
        self.troubles: list[str] = []
        self._undone: tuple[int, ...] = ()

    def open(self) -> None:
        """Begin a new history; the guest's image is known by now."""
        if self._recorder is None:
            history = History(self._folder, self._driver.image_name)
            history.clear()
            self._recorder = Recorder(history, self._trouble, keep=self._keep, cap=self._cap)

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
