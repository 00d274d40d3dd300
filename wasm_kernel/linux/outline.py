"""What lies in a folder that is about to be moved."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from wasm_kernel.linux import walk

HiddenFolder = Callable[[int, str, int], bool]


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


def outline(folder: int, hidden: HiddenFolder) -> Outline:
    """What lies in an open folder, at all depths.

    Args:
        folder: The folder's descriptor.
        hidden: Says which folder may not be moved, by a descriptor of the folder it is in, its name
            there, and its depth.

    Raises:
        OSError: it can't be read, or such a folder is in it.
    """
    found = Outline()
    for entry in walk.entries(folder):
        path = "/".join([*entry.way, entry.name])
        found.count += 1
        found.longest = max(found.longest, len(os.fsencode(path)))
        if entry.is_folder:
            if hidden(entry.folder, entry.name, len(entry.way)):
                raise PermissionError(errno.EACCES, "it holds a folder that is not the guest's")
            found.folders.append(path)
            continue
        try:
            status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        except FileNotFoundError:
            continue  # somebody was faster
        found.names[path] = (status.st_dev, status.st_ino)
        found.size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return found
