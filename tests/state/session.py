"""A tiny guest, its history and its recorder: the parts of a session, without Python."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.engine.tiny import Guest
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.commits import Unreadable
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE
from wasm_kernel.state.recorder import Recorder

IMAGE = "image"
FIRST = 80  # pages below belong to the tiny guest itself


class FakeHeap:
    """A heap whose free memory a test sets, in pages of a session."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []

    def free(self, least: int) -> list[tuple[int, int]]:
        return [
            ((FIRST + first) * PAGE, (FIRST + first + count) * PAGE)
            for first, count in self.runs
            if count * PAGE >= least
        ]


class Session:
    """Cells that write pages; `state` is what a test compares."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 20,
        cap: int = 1 << 40,
        disk: bool = True,
        image: str = IMAGE,
        load: bool = False,
        gives_up: bool = False,
        crashed: bool = True,
    ) -> None:
        self.folder = folder / "state"
        self._parent = folder
        if disk:
            self.folder.mkdir(exist_ok=True)
        self.history = History(Folder.open(self.folder) if disk else None, image)
        with contextlib.ExitStack() as failed:
            failed.callback(self.history.close)
            self.found = self.history.load(crashed=crashed) if load else None
            if not load:
                self.history.clear()
            failed.pop_all()
        self.troubles: list[str] = []
        self.narrowed: list[int] = []
        self.recorder = Recorder(self.history, self._hear, self.narrowed.append, keep=keep, cap=cap)
        self.free = FakeHeap()
        self._number = 0
        self.guest = Guest(folder)
        self.given_up = 0
        while True:
            try:
                self._stand()
            except Unreadable as problem:
                if not gives_up:
                    self.close()
                    raise
                self.given_up += self.history.forget(problem.commit_id)
                self.guest.close()
                self.guest = Guest(folder)
            else:
                break

    def _hear(self, problem: Exception) -> None:
        self.troubles.append(str(problem))

    def _stand(self) -> None:
        laid = self.recorder.fill(self.guest.instance)
        self.recorder.watch(self.guest.instance, self.guest.files, self.free, laid)

    def write(self, page: int, text: str) -> None:
        """Puts text at the beginning of a page, followed by zeros."""
        data = text.encode().ljust(PAGE, b"\0")
        self.guest.instance.memory.write((FIRST + page) * PAGE, data)

    def cell(self, **pages: str) -> Commit:
        """Runs a cell that writes `p3="text"` to page 3, and commits it."""
        for name, text in pages.items():
            self.write(int(name[1:]), text)
        return self.commit()

    def save(self, **pages: str) -> None:
        """Runs a cell like `cell`, and waits until its commit is on disk."""
        self.cell(**pages)
        self.flush()

    def commit(self) -> Commit:
        self._number += 1
        number = self._number
        return self.recorder.commit(
            self.guest.instance, cell=number, count=number + 1, label=f"cell {number}"
        )

    @property
    def state(self) -> dict[int, str]:
        """The text of every page that has one."""
        size = self.guest.instance.memory.size // PAGE
        found = {}
        for page in range(FIRST, size):
            text = self.guest.instance.memory.read(page * PAGE, PAGE).rstrip(b"\0")
            if text:
                found[page - FIRST] = text.decode()
        return found

    def go(self, one: int) -> dict[int, str]:
        """Goes to a commit in a new guest; returns its state."""
        self.stand_at(one)
        return self.state

    def stand_at(self, one: int, *, keep: bool = False) -> None:
        """Goes to a commit in a new guest, without reading its memory.

        Args:
            one: The commit.
            keep: True if the new guest keeps the memory of the old one, as after an undo.
        """
        self.recorder.unwatch(keep=keep)
        self.guest.close()
        self.guest = Guest(self._parent)
        self.history.move(one)
        self._stand()

    def grow(self, wasm_pages: int) -> None:
        self.guest.call("grow", wasm_pages)

    def content(self, one: int) -> Path:
        """The file with a commit's pages."""
        return self.folder / "contents" / self.history.tree.commits[one].content

    def files(self) -> list[str]:
        """The names of files in the session's folder and below it."""
        found = (path for path in self.folder.rglob("*") if not path.is_dir())
        return sorted(str(path.relative_to(self.folder)) for path in found)

    def contents(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "contents").iterdir())

    def flush(self) -> None:
        self.recorder.flush()

    def close(self) -> None:
        self.recorder.close()
        self.guest.close()
        self.history.close()


def three(session: Session) -> None:
    """Commits 1 to 3, on disk."""
    session.cell(p0="a")
    session.cell(p1="b", p0="A")
    session.save(p2="c")
