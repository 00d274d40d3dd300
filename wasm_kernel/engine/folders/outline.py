"""What lies in a folder that is about to be moved."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from wasm_kernel.engine.folders import walk


@dataclass
class Outline:
    """What lies in a folder.

    `names` are its files and links, by their paths below it, with device and number, `folders` the
    folders in it; `count` is of all these and itself; `size` is the bytes of its files, `longest`
    the bytes of the longest path.
    """

    names: dict[str, tuple[int, int]] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    count: int = 1
    size: int = 0
    longest: int = 0


def outline(folder: str) -> Outline:
    """What lies in a folder, at all depths.

    Raises:
        OSError: it can't be read.
    """
    found = Outline()
    with walk.opened(folder) as top:
        for entry in walk.entries(top):
            path = "/".join([*entry.way, entry.name])
            found.count += 1
            found.longest = max(found.longest, len(os.fsencode(path)))
            if entry.is_folder:
                found.folders.append(path)
                continue
            try:
                status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
            except FileNotFoundError:
                continue  # somebody was faster
            found.names[path] = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode):
                found.size += status.st_size
    return found
