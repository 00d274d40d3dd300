"""The folders that a guest sees, by descriptor and guest path, and the names in them that do not
exist for the guest.

One name in a session's workspace is the host's: `.metadata.json`, also with `~` and more behind it,
the host's name for an unfinished one. The comparison covers every spelling that some file system
takes for the same name (letter case, Unicode forms, ignorable characters, trailing dots and spaces,
an NTFS stream suffix).
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator

from msgspec import Struct

from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import SEARCHED, Folder

FIRST_DESCRIPTOR = 3  # WASI gives preopened folders the numbers from here on, in order
METADATA = ".metadata.json"
"""The name of the file in a workspace that holds its session's metadata."""
COVER = ".wh."
"""The beginning of names in a workspace that cover a name of the folder beneath (`overlay.py`)."""

APP = "/app"
"""The path at which a guest sees its workspace."""
NULL_DEVICE = "dev/null"
"""The path, below the guest's `/`, of an empty file; the host opens its own device instead."""

Parts = tuple[str, ...]


class GuestOSError(OSError):
    """The refusal of a guest's file operation, with an error number of Linux."""

    def __init__(self, number: int) -> None:
        super().__init__(number, os.strerror(number))


def is_hidden_name(name: str) -> bool:
    """Returns whether a name is the metadata file's, under any spelling."""
    if name.isascii() and not name.startswith("."):
        return False  # the quick way for nearly all names: only other characters fold to a dot
    return folded_name(name) == METADATA


def is_cover(name: str) -> bool:
    """Returns whether a name is a cover, which hides a file of the folder beneath."""
    return name.startswith(COVER)


def covered_by(path: str) -> str:
    """Returns the path that a workspace path covers; empty if it covers none."""
    above, slash, name = path.rpartition("/")
    return f"{above}{slash}{name.removeprefix(COVER)}" if is_cover(name) else ""


def folded_name(name: str) -> str:
    """Returns the one form that all spellings of a name share."""
    plain = "".join(c for c in name if unicodedata.category(c) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", plain).casefold())
    return folded.split(":", 1)[0].split("~", 1)[0].rstrip(". ")


class Hidden:
    """A rule that hides files in a preopened folder; the guest can't make such files either.

    It hides files by name, and folders by name or by identity. This base hides nothing.
    """

    @property
    def hides_folders(self) -> bool:
        """Returns whether any folder is hidden by identity now."""
        return False

    def hides_name(self, depth: int, name: str) -> bool:
        """Returns whether a name is hidden in a folder `depth` folders below the preopened one."""
        return False

    def hides_folder(self, fd: int, depth: int) -> bool:
        """Returns whether the open folder `fd`, which the guest is about to enter, is hidden."""
        return False


class MetadataHidden(Hidden):
    """The rule for a session's workspace, which hides the host's metadata file."""

    def hides_name(self, depth: int, name: str) -> bool:
        """Hides the metadata file, under every spelling."""
        return depth == 0 and is_hidden_name(name)


def is_hidden_folder(hidden: Hidden, folder: int, name: str, depth: int) -> bool:
    """Returns whether the name in `folder` is that of a folder hidden from the guest."""
    if not hidden.hides_folders:
        return False
    try:
        fd = os.open(name, SEARCHED, dir_fd=folder)
    except OSError:
        return False  # not a folder, or gone
    try:
        return hidden.hides_folder(fd, depth)
    finally:
        os.close(fd)


NOTHING_HIDDEN = Hidden()
METADATA_HIDDEN = MetadataHidden()


class Preopen(Struct, frozen=True):
    """An open host folder that the guest sees at `guest`. Its opener closes it.

    Attributes:
        tracked: Whether changes are recorded, as in the workspace alone.
        counted: Whether its files count against the quota.
        hidden: The rule for files that do not exist for the guest.
        beneath: The folder that shows through under paths that this one lacks: see `overlay.py`.
        living: Whether people replace files in it while the guest runs.
    """

    folder: Folder
    guest: str
    writable: bool = False
    tracked: bool = False
    counted: bool = False
    hidden: Hidden = NOTHING_HIDDEN
    beneath: Preopen | None = None
    living: bool = False

    @property
    def tells_files_apart(self) -> bool:
        """Returns whether one file may take another's name here, so that names are not enough."""
        return self.writable or self.living


def visible(preopen: Preopen) -> Iterator[walks.WalkEntry]:
    """Yields everything in a folder that exists for the guest, at all depths."""
    hidden, by_kind = preopen.hidden, preopen.hidden.hides_folders

    def is_hidden_here(folder: int, name: str, depth: int) -> bool:
        if hidden.hides_name(depth, name):
            return True
        return by_kind and is_hidden_folder(hidden, folder, name, depth)

    return walks.entries(preopen.folder.fd, hidden=is_hidden_here)


class Preopens(Struct, frozen=True):
    """All folders of one guest: the fixed ones, which the base image knows, and the mounts.

    The guest's C library reads the list of preopened folders once, before the base image is taken,
    so it knows the fixed ones only. A path below a mount reaches the host as a path below the
    guest's `/`, and the host finds the mount (`below_root`). `home` is a second guest path of the
    workspace, which is found in the same way; it is empty if there is none.
    """

    fixed: tuple[Preopen, ...]
    mounts: tuple[Preopen, ...] = ()
    home: str = ""

    @property
    def all(self) -> tuple[Preopen, ...]:
        """Every folder: the fixed ones in the order of their descriptors, then the mounts."""
        return self.fixed + self.mounts

    @property
    def counted(self) -> tuple[Preopen, ...]:
        """The folders whose files count against the quota, each once."""
        return tuple(each for each in self.all if each.counted and each.beneath is None)

    @property
    def root(self) -> int | None:
        """The descriptor of the guest's `/`, or None if it has none."""
        for index, preopen in enumerate(self.fixed):
            if preopen.guest == "/":
                return FIRST_DESCRIPTOR + index
        return None

    @property
    def named(self) -> dict[str, Preopen]:
        """The folders that the guest reaches below its `/` alone, by guest path."""
        found = {mount.guest: mount for mount in self.mounts}
        if self.home:
            found.setdefault(self.home, next(each for each in self.fixed if each.guest == APP))
        return found

    def below_root(self, path: str) -> tuple[Preopen, int] | None:
        """Returns the folder of a path below `/`, and the number of characters that lead to it.

        None stands for the folder `/` itself.
        """
        found = {each.guest: each for each in self.fixed if each.guest != "/"} | self.named
        for guest, preopen in sorted(found.items(), key=lambda pair: -len(pair[0])):
            prefix = guest[1:]
            if path == prefix:
                return preopen, len(prefix)
            if path.startswith(prefix + "/"):
                return preopen, len(prefix) + 1
        return None

    def at(self, guest: str) -> Preopen | None:
        """Returns the folder that the guest sees at a path; None if there is none."""
        layers = (layer for each in self.all for layer in (each, each.beneath) if layer)
        return next((layer for layer in layers if layer.guest == guest), None)
