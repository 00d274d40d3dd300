"""A workspace that reports changes to `FileVersions` before they happen, as a guest's does."""

from __future__ import annotations

import os
from pathlib import Path

from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.file_restore import RestoredFiles, restore_files
from wasm_kernel.state.file_versions import FileVersions
from wasm_kernel.wasi_files.file_history import Change

PLENTY = 1 << 30
Tree = dict[str, str | None]


class Workspace:
    """Files and their commits; `state` is what a test compares."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = PLENTY,
        copy_bytes: int = PLENTY,
        load: bool = False,
    ) -> None:
        self.root = folder / "app"
        self.root.mkdir(exist_ok=True)
        self.private = folder / "private"
        self.private.mkdir(exist_ok=True)
        self._folders = Folder.open(self.root), Folder.open(self.private)
        self.versions = FileVersions(*self._folders, most_bytes=most_bytes, copy_bytes=copy_bytes)
        self.commits: list[int] = []
        self.states: dict[int, Tree] = {}
        self.whole = True
        self._later: list[Workspace] = []
        if not load:
            self.versions.begin_anew()
            self.commit()

    def load(self, other: Workspace, *, crashed: bool = True) -> Workspace:
        """Continues with the versions of another process; closed together with that workspace."""
        other._later.append(self)
        self.commits, self.states = list(other.commits), dict(other.states)
        self.whole = self.versions.load(max(self.commits), crashed=crashed)
        return self

    def commit(self, **files: str) -> int:
        """Writes files, and commits, as at the end of a cell."""
        for name, text in files.items():
            self.write(name, text)
        one = max(self.commits, default=0) + 1
        self.commits.append(one)
        self.states[one] = self.state
        self.versions.commit(one, self.commits)
        return one

    def forget(self, *some: int) -> None:
        """Folds old commits away."""
        self.commits = [one for one in self.commits if one not in some]
        self.versions.fold(self.commits)

    @property
    def state(self) -> Tree:
        """The text of each file, `->` and the target of each link, None for folders."""
        found: Tree = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            else:
                found[name] = None if path.is_dir() else path.read_text()
        return found

    def bring(self, one: int, opened: tuple[str, ...] = ()) -> RestoredFiles:
        """Restores the files."""
        return restore_files(self.versions, one, lambda path, found: None, opened)

    def _touch(self, name: str, change: Change) -> None:
        folder, _, last = name.rpartition("/")
        path = self.root / name
        found = path.lstat() if os.path.lexists(path) else None
        if not path.parent.is_dir():
            self.versions.before_creation(name)
            return
        descriptor = os.open(self.root / folder, os.O_PATH)
        try:
            self.versions.before_change(name, descriptor, last, found, change)
        finally:
            os.close(descriptor)

    def write(self, name: str, text: str, *, append: bool = False) -> None:
        self._touch(name, Change.WRITE)
        with (self.root / name).open("a" if append else "w") as file:
            file.write(text)

    def remove(self, name: str) -> None:
        self._touch(name, Change.END)
        (self.root / name).unlink()

    def link(self, name: str, target: str) -> None:
        self._touch(name, Change.END)
        (self.root / name).symlink_to(target)

    def make_folder(self, name: str) -> None:
        self._touch(name, Change.END)
        (self.root / name).mkdir()

    def remove_folder(self, name: str) -> None:
        """Removes a folder with its content, as `shutil.rmtree` in a guest does."""
        for path in sorted((self.root / name).rglob("*"), reverse=True):
            self._touch(str(path.relative_to(self.root)), Change.END)
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
        self._touch(name, Change.END)
        (self.root / name).rmdir()

    def rename(self, old: str, new: str) -> None:
        top = self.root / old
        inside = () if top.is_symlink() else top.rglob("*")
        below = [str(path.relative_to(top)) for path in inside]
        for name in ("", *below):
            self._touch(f"{old}/{name}".rstrip("/"), Change.MOVE)
            self._touch(f"{new}/{name}".rstrip("/"), Change.END)
        (self.root / old).rename(self.root / new)

    def close(self) -> None:
        """Ends the process, and those that continued from it. Safe to call twice."""
        for later in self._later:
            later.close()
        self.versions.close()
        for folder in self._folders:
            folder.close()
