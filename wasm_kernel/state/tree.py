"""The states of a session as a tree of commits, and the targets of undo, redo and restore. Pure.

Every cell leaves one commit, whose parent is the commit that the cell began at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import TravelError
from wasm_kernel.result import Ran
from wasm_kernel.state.index import Commit, Drop, ForkOrigin, Head, Name, Record
from wasm_kernel.wasi_files.file_history import is_unlinked_name

NAMES_MOST = 1000
_UNDONE_MOST = 1000  # states that repeated redos can reach
_NAME = r"[\w][\w .+-]{0,63}"
_CELL = r"(?:In ?)?\[?(\d{1,10})\]?"
_STATE = r"#(\d{1,10})"  # no name begins like that


class TravelPlan(Struct, frozen=True):
    """A way from one state to another.

    Attributes:
        target: The commit that it leads to; 0 for before the first.
        cells: The cells whose effects come or go with it, oldest first. Code that ran between two
            cells, such as a widget's callback, belongs to the first of them.
        undone: The commits that can be redone afterwards, latest last.
        how: `undo`, `redo` or `restore`; `rollback` if the user did not ask for it.
        files: The commit whose files are brought back; None leaves the files as they are.
    """

    target: int
    cells: tuple[Commit, ...] = ()
    undone: tuple[int, ...] = ()
    how: str = "rollback"
    files: int | None = None


class Tree(Struct, frozen=True):
    """The commits of a session, and the head: the commit that memory is at, 0 before the first.

    `undone` are the commits that were left by going back, latest last. `last` is the highest number
    that a commit ever had. `origin` describes the part that was inherited from another session.
    `count` is the execution count that comes after cells that left no commit.
    """

    commits: Mapping[int, Commit] = {}
    head: int = 0
    names: Mapping[str, int] = {}
    undone: tuple[int, ...] = ()
    last: int = 0
    origin: ForkOrigin = ForkOrigin()
    count: int = 0

    @property
    def states(self) -> int:
        """The number of commits that cells have left."""
        return sum(1 for commit in self.commits.values() if commit.cells)

    def lineage(self, commit_id: int) -> list[Commit]:
        """Returns a commit and its ancestors, newest first."""
        line = []
        while commit_id:
            line.append(self.commits[commit_id])
            commit_id = self.commits[commit_id].parent
        return line

    def standing_on(self, commit_id: int) -> set[int]:
        """Returns a commit and all its descendants."""
        found = {commit_id}
        for other in sorted(self.commits):
            if self.commits[other].parent in found:
                found.add(other)
        return found

    def with_commit(self, commit: Commit) -> Tree:
        """Returns the tree with a new commit, or with a new version of one."""
        return replace(self, commits={**self.commits, commit.id: commit})

    def without(self, some: Collection[int]) -> Tree:
        """Returns the tree without some commits; the head goes to its nearest ancestor left."""
        if not some:
            return self
        head = self.head
        while head in some:
            head = self.commits[head].parent if head in self.commits else 0
        kept = dict(self.commits)
        for one in some:
            kept.pop(one, None)
        return replace(self, commits=kept, head=head)

    @property
    def next_count(self) -> int:
        """The execution count after all that were used in this run or at the head."""
        used = [commit.count for commit in self.commits.values() if commit.cell]
        head = self.commits.get(self.head)
        return max([*used, self.count, 1 if head is None else head.count])

    @property
    def has_parents_seeds(self) -> bool:
        """True if the head comes from the parent session, which goes on with the same seeds."""
        head = self.commits.get(self.head)
        return head is not None and self.origin.reseed and self.origin.inherits(head)

    @property
    def open_files(self) -> set[str]:
        """The identities, in this session, of the files that were open at any commit."""
        commits = self.commits.values()
        return {file.identity for commit in commits for file in self.origin.files_of(commit)}

    @property
    def unlinked_files(self) -> set[str]:
        """The names of the unlinked files that were open at any commit."""
        paths = {file.path for commit in self.commits.values() for file in commit.files}
        return {path for path in paths if path is not None and is_unlinked_name(path)}

    # -- as records

    def head_record(self) -> Head:
        """Returns the record of the head."""
        return Head(self.head, self.last, self.undone, self.count)

    def records(self) -> tuple[Record, ...]:
        """Returns the records of the whole tree, in the order of an index."""
        ordered = [self.commits[one] for one in sorted(self.commits)]
        names = [Name(name, one) for name, one in self.names.items()]
        return (self.origin, *ordered, *names, self.head_record())

    def records_since(self, before: Tree, head: Head) -> tuple[Record, ...]:
        """Returns the records to append to an index of the tree `before` with the last head `head`.

        A name that was taken back is recorded as that of no commit. Names of dropped commits are
        not recorded: readers of the index ignore them.
        """
        dropped = tuple(sorted(before.commits.keys() - self.commits.keys()))
        records: list[Record] = [Drop(dropped)] if dropped else []
        records += [c for one, c in self.commits.items() if before.commits.get(one) is not c]
        records += [Name(n, one) for n, one in self.names.items() if before.names.get(n) != one]
        gone = before.names.keys() - self.names.keys()
        records += [Name(name, 0) for name in sorted(gone) if before.names[name] in self.commits]
        is_there = head.position(self.commits) == (self.head, self.undone)
        if not is_there or head.count != self.count:
            records.append(self.head_record())
        return tuple(records)

    # -- going back and forth

    def after(self, travel: TravelPlan) -> Tree:
        """Returns the tree after a travel."""
        return replace(self, head=travel.target, undone=travel.undone)

    def plan(self, how: str, cells: int = 1, name: str = "", *, files: bool = False) -> TravelPlan:
        """Plans a travel, without making it; `TravelError` if it is impossible.

        `name` is the checkpoint, the number of the cell, or `#` with the number of the commit, to
        restore. With `files` and no name, a restore brings only files back, as they were after the
        last cell that left a state.
        """
        if how == "undo":
            travel = self._undo(cells)
        elif how == "redo":
            travel = self._redo()
        elif how == "rollback" or (files and not name):
            travel = TravelPlan(self.head, (), self.undone, how)
            after_cells = (commit.id for commit in self.lineage(self.head) if commit.cells)
            return replace(travel, files=next(after_cells, self.head)) if files else travel
        else:
            travel = self._restore(name)
        return replace(travel, how=how, files=travel.target if files else None)

    def _undo(self, cells: int) -> TravelPlan:
        """Plans an undo of the last `cells` cells, with all uncounted commits after the first."""
        if cells < 1:
            raise TravelError("%undo takes the number of cells to undo, at least 1.")
        left: list[Commit] = []
        at = self.head
        while at and len(left) < cells:
            commit = self.commits[at]
            if commit.parent == 0 or commit.cells > 1:
                break  # the beginning, or the commit that older cells were folded into
            if commit.cells:
                left.append(commit)
            at = commit.parent
        if len(left) < cells:
            few = {0: "No cell", 1: "Only 1 cell"}.get(len(left), f"Only {len(left)} cells")
            raise TravelError(f"{few} can be undone here; nothing was changed.")
        return TravelPlan(at, tuple(reversed(left)), self.undone_after_leaving())

    def undone_after_leaving(self) -> tuple[int, ...]:
        """Returns the commits that can be redone once memory has left the head."""
        return (*self.undone, self.head)[-_UNDONE_MOST:] if self.head else self.undone

    def _redo(self) -> TravelPlan:
        if not self.undone or self.undone[-1] not in self.commits:
            raise TravelError(
                "There is nothing to redo: %redo works until the next cell after %undo."
            )
        target = self.undone[-1]
        before = {commit.id for commit in self.lineage(self.head)}
        back = [c for c in self.lineage(target) if c.id not in before and c.cells]
        return TravelPlan(target, tuple(reversed(back)), self.undone[:-1])

    def _restore(self, where: str) -> TravelPlan:
        numbered = re.fullmatch(_STATE, where)
        target = int(numbered[1]) if numbered is not None else 0
        if target not in self.commits:
            target = self.names.get(where) or self._after_cell(where)
        if not target:
            known = ", ".join(sorted(self.names)) or "none"
            raise TravelError(
                f"There is no checkpoint and no kept cell {where[:80]!r}. Named checkpoints: "
                f"{known}."
            )
        return TravelPlan(target, (), self.undone_after_leaving())

    def _after_cell(self, where: str) -> int:
        """Returns the state after the cell with a number; 0 if there is none."""
        number = re.fullmatch(_CELL, where.strip())
        cell = int(number[1]) if number is not None else 0
        found = [c for c in self.commits.values() if c.cell == cell and cell]
        return max(found, key=lambda c: (c.cells > 0, c.id)).id if found else 0

    @property
    def ran(self) -> dict[int, Ran]:
        """How the cells before states ran, by the states' numbers; unknown ones are left out."""
        found = ((one, commit.ran) for one, commit in self.commits.items())
        return {one: ran for one, ran in found if ran is not None}

    def rows(self) -> list[dict[str, Any]]:
        """Returns the states that can be restored, oldest first, as the guest shows them.

        A state with several names occurs once for each. States that no cell left are included if
        they have a name or are the head; the others are skipped, also as parents.
        """
        names: dict[int, list[str]] = {}
        for name, one in self.names.items():
            names.setdefault(one, []).append(name)
        shown = {c.id for c in self.commits.values() if c.cells or c.id in names} | {self.head}
        rows = []
        above = {0: 0}  # by commit: itself or its nearest ancestor that is shown
        for one, commit in sorted(self.commits.items()):
            above[one] = one if one in shown else above[commit.parent]
            state = {
                "id": one,
                "parent": above[commit.parent],
                "cell": commit.cell,
                "label": commit.label,
                "time": commit.time,
                "bytes": commit.page_bytes,
                "here": one == self.head,
            }
            if one in shown:
                rows += [{**state, "name": name} for name in names.get(one, [""])]
        return rows


def is_name(name: str) -> bool:
    """Returns whether this can name a checkpoint."""
    return re.fullmatch(_NAME, name) is not None


def checked_name(name: str) -> str:
    """Returns a name that a checkpoint can have, or raises `TravelError`."""
    if not is_name(name):
        raise TravelError(
            "A checkpoint's name has 1 to 64 letters, digits, spaces, dots, plus or minus signs; "
            f"{name[:80]!r} was not used."
        )
    return name
