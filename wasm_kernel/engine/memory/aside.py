"""Writing a file aside and renaming it: it is there as a whole, or as it was before.

Whoever is killed in between leaves the file that it wrote aside. The next write of the same file
takes its place; `left_in` finds the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SUFFIX = ".aside"


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end; one writer at a time.

    Raises:
        OSError: it can't be written; `path` is as it was.
    """
    aside = path.with_name(f".{path.name}{_SUFFIX}")
    try:
        with open_new(aside) as file:
            yield file
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def open_new(path: Path) -> BinaryIO:
    """An empty file of the owner's alone, where there may be one already."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def left_in(folder: Path | None) -> list[Path]:
    """What killed writers left in a folder that nobody writes to now."""
    return [] if folder is None else list(folder.glob(f".*{_SUFFIX}"))
