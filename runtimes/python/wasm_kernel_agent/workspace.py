"""The session's files from inside, with the rules that the Python API keeps from outside.

Paths are relative to the workspace; backslashes separate names, too. `..` and links are followed
as long as they stay inside. The host's own names do not exist here at all.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_glob: Any = glob
_ESCAPES = "Path escapes session workspace: {path!r}"
_ABSOLUTE = "Absolute paths are not allowed in a session workspace: {path!r}"


class Workspace:
    """The files below a folder; `scratch` is another one on its disk, for what is half done."""

    def __init__(self, root: str = "/app", scratch: str = "/tmp") -> None:
        self._root = root
        self._scratch = scratch

    def files(self, pattern: str | None = None) -> list[str]:
        """The paths of the files, sorted; of those that a glob pattern fits, where there is one.

        A link is one where it leads to a file of the session, and is never walked.
        """
        wanted = None if pattern is None else _regex(pattern)
        return sorted(
            path for path in self._walk() if wanted is None or wanted.match(path) is not None
        )

    def _walk(self) -> Iterator[str]:
        for folder, _, names in os.walk(self._root):
            for name in names:
                place = f"{folder}/{name}"
                path = place[len(self._root) + 1 :]
                if self._is_file(place, path):
                    yield path

    def _is_file(self, place: str, path: str) -> bool:
        try:
            if stat.S_ISLNK(os.lstat(place).st_mode):
                place = self._inside(path)
            return stat.S_ISREG(os.lstat(place).st_mode)
        except (OSError, ValueError):
            return False  # gone meanwhile, or leading nowhere

    def status(self, path: str) -> os.stat_result | None:
        """Size and times of a file; None where it is gone by now."""
        try:
            return Path(f"{self._root}/{path}").stat()
        except OSError:
            return None

    def read(self, path: str) -> bytes:
        """A file's content.

        Raises:
            ValueError: the path is absolute, or escapes the workspace.
            OSError: there is no such file, or it can't be read.
        """
        with _named(path):
            place = Path(self._inside(path))
            if not (place.is_file() or place.is_dir()) and place.exists():
                raise OSError(errno.ENOTSUP, "It is a pipe, a socket or a device")
            return place.read_bytes()

    def write(self, path: str, data: bytes, *, overwrite: bool = True) -> None:
        """Write a file as a whole; folders that are missing are made.

        Raises:
            ValueError: the path is absolute, or escapes the workspace.
            FileExistsError: there is something, and `overwrite` is False.
            OSError: it can't be written.
        """
        with _named(path):
            place = Path(self._inside(path))
            if place.is_dir():
                raise IsADirectoryError(errno.EISDIR, "Is a directory")
            if not overwrite and place.exists():
                raise FileExistsError(errno.EEXIST, "There is something already")
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(f"{self._scratch}/.write-{secrets.token_hex(8)}")
            try:
                draft.write_bytes(data)
                _move(draft, place)
            finally:
                draft.unlink(missing_ok=True)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a folder, or a link itself.

        Raises:
            ValueError: the path is absolute, escapes the workspace, or is the workspace itself.
            OSError: there is nothing, or the folder is not empty and `recursive` is False.
        """
        with _named(path):
            place = Path(self._inside(path))
            above, _, name = _plain(path).rstrip("/").rpartition("/")
            if name not in ("", ".", ".."):
                place = Path(self._inside(above or "."), name)
            if str(place) == self._root:
                raise ValueError(f"The workspace goes with its session only: {path!r}")
            if not stat.S_ISDIR(place.lstat().st_mode):
                place.unlink()
            elif recursive:
                shutil.rmtree(place)
            else:
                place.rmdir()

    def _inside(self, path: str) -> str:
        """The place of a path, links followed."""
        plain = _plain(path)
        if "\0" in plain or not plain:
            raise ValueError(f"This is no path: {path!r}")
        if plain.startswith("/") or re.match(r"[A-Za-z]:", plain):
            raise ValueError(_ABSOLUTE.format(path=path))
        place = os.path.realpath(f"{self._root}/{plain}")
        if place != self._root and not place.startswith(f"{self._root}/"):
            raise ValueError(_ESCAPES.format(path=path))
        return place


def _plain(path: str) -> str:
    return path.replace("\\", "/")


def _regex(pattern: str) -> re.Pattern[str]:
    plain = _plain(pattern)
    if not plain or plain.startswith("/") or ".." in plain.split("/"):
        raise ValueError(f"A pattern stays inside the session workspace: {pattern!r}")
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    text = _glob.translate("/".join(parts), recursive=True, include_hidden=True, seps="/")
    return re.compile(text)


def _move(draft: Path, place: Path) -> None:
    try:
        draft.replace(place)
    except OSError as problem:
        if problem.errno != errno.EXDEV:
            raise
        shutil.copyfile(draft, place)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors name the path as it was given."""
    try:
        yield
    except OSError as problem:
        number = problem.errno or errno.EIO
        raise OSError(number, problem.strerror or os.strerror(number), path) from None
