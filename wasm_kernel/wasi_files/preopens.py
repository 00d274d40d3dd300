"""The folders a guest sees: which open folder stands behind which descriptor and guest path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder
from wasm_kernel.record import record
from wasm_kernel.wasi_files.names import is_hidden

FIRST_DESCRIPTOR = 3  # WASI gives preopened folders the numbers from here on, in order
_SEARCHED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Hidden(Protocol):
    """What does not exist for the guest in one preopened folder, and can't be made there.

    A folder is hidden by its name, or for what it is.
    """

    @property
    def hides_folders(self) -> bool:
        """Whether any folder is hidden for what it is now."""

    def hides_name(self, depth: int, name: str) -> bool:
        """Returns whether a name is hidden, by its letters.

        Args:
            depth: How many folders lie between the preopened folder and the name.
            name: The name.
        """

    def hides_folder(self, fd: int, depth: int) -> bool:
        """Returns whether a folder is hidden that the guest is about to enter.

        Args:
            fd: The folder's descriptor.
            depth: How many folders lie between the preopened folder and this one.
        """


class NothingHidden:
    """Everything in the folder is the guest's."""

    @property
    def hides_folders(self) -> bool:
        """No folder is hidden."""
        return False

    def hides_name(self, depth: int, name: str) -> bool:
        """No name is hidden."""
        return False

    def hides_folder(self, fd: int, depth: int) -> bool:
        """No folder is hidden."""
        return False


class MetadataHidden(NothingHidden):
    """A session's workspace, whose metadata file belongs to the host."""

    def hides_name(self, depth: int, name: str) -> bool:
        """The metadata file is hidden, under every spelling."""
        return depth == 0 and is_hidden(name)


def is_hidden_folder(hidden: Hidden, folder: int, name: str, depth: int) -> bool:
    """Returns whether a name is that of a folder that does not exist for the guest.

    Args:
        hidden: What does not exist.
        folder: A descriptor of the folder that the name is in.
        name: The name.
        depth: How many folders lie between the preopened folder and the name.
    """
    if not hidden.hides_folders:
        return False
    try:
        fd = os.open(name, _SEARCHED, dir_fd=folder)
    except OSError:
        return False  # no folder, or gone meanwhile
    try:
        return hidden.hides_folder(fd, depth)
    finally:
        os.close(fd)


NOTHING_HIDDEN: Hidden = NothingHidden()
METADATA_HIDDEN: Hidden = MetadataHidden()


@record
class Preopen:
    """An open host folder that the guest sees at `guest`. Its opener closes it.

    Changes are recorded if it is `tracked`, which is the workspace alone. What lies in it counts
    against the quota if it is `counted`. What does not exist for the guest is `hidden`.
    """

    folder: Folder
    guest: str
    writable: bool = False
    tracked: bool = False
    counted: bool = False
    hidden: Hidden = NOTHING_HIDDEN


def visible(preopen: Preopen) -> Iterator[walks.Entry]:
    """Everything in a folder that exists for the guest, at all depths.

    Raises:
        OSError: a folder can't be opened, or was moved meanwhile.
    """
    hidden, by_kind = preopen.hidden, preopen.hidden.hides_folders

    def is_hidden_here(folder: int, name: str, depth: int) -> bool:
        if hidden.hides_name(depth, name):
            return True
        return by_kind and is_hidden_folder(hidden, folder, name, depth)

    return walks.entries(preopen.folder.fd, hidden=is_hidden_here)


@record
class Preopens:
    """All folders of one guest: the fixed ones, which the base image knows, and the mounts.

    The guest's C library reads the list of preopened folders once, before the base image is taken,
    so it knows the fixed ones only. A path below a mount reaches the host as a path below the
    guest's `/`, and is led to the mount there.
    """

    fixed: tuple[Preopen, ...]
    mounts: tuple[Preopen, ...] = ()

    @property
    def all(self) -> tuple[Preopen, ...]:
        """Every folder: the fixed ones in the order of their descriptors, then the mounts."""
        return self.fixed + self.mounts

    @property
    def root(self) -> int | None:
        """The descriptor of the guest's `/`, or None if it has none."""
        for index, preopen in enumerate(self.fixed):
            if preopen.guest == "/":
                return FIRST_DESCRIPTOR + index
        return None

    def mount_of(self, path: str) -> tuple[Preopen, int] | None:
        """The mount that a path below `/` belongs to, and how many characters lead to it."""
        for mount in sorted(self.mounts, key=lambda m: -len(m.guest)):
            prefix = mount.guest[1:]
            if path == prefix:
                return mount, len(prefix)
            if path.startswith(prefix + "/"):
                return mount, len(prefix) + 1
        return None

    def at(self, guest: str) -> Preopen | None:
        """The folder that the guest sees at a path; None for none."""
        return next((preopen for preopen in self.all if preopen.guest == guest), None)
