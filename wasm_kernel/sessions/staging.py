"""A session that is being made: in a folder that is no session's yet, and gets its name at the end.

So there is a whole session or none, whoever is killed on the way. What that leaves is swept away by
the next removal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.private import PrivateFolders, discard
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import take_name
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import ids, metadata, removal

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Staged:
    """A session that is being made. One thread's own.

    Attributes:
        aside: The name of its folder, until it gets that of the session.
        workspace: The folder.
    """

    def __init__(self, root: Path, aside: str, workspace: Folder) -> None:
        self._root = root
        self.aside = aside
        self.workspace = workspace
        self._folders: SandboxFolders | None = None

    def folders(self, name: str, private_root: Path | str | None) -> SandboxFolders:
        """Returns its folders, its private one among them.

        Args:
            name: The id that the session is to have.
            private_root: The folder that holds private folders; one of the user's by default.

        Raises:
            PrivateFolderError: there is no place for it.
            OSError: it can't be made.
        """
        if self._folders is None:
            found = PrivateFolders(self._root, private_root).open(name, self.workspace)
            own, real = self.workspace.enter(), self._root / self.aside
            self._folders = SandboxFolders(self._root / name, real, own, found, private_root)
        return self._folders

    def close(self) -> None:
        """Closes its private folder."""
        if self._folders is not None:
            self._folders.close()

    def discard(self) -> None:
        """Removes whatever was made."""
        if self._folders is not None:
            with suppress(OSError):
                discard(self._folders.private_path)


@contextmanager
def staged(root: Path) -> Iterator[tuple[Folder, Staged]]:
    """Yields the root, and a folder in it that is no session's; it goes if the block fails.

    Args:
        root: The real path of the sessions' folder.

    Raises:
        OSError: it can't be made.
    """
    with Folder.open(root) as top:
        aside, place = removal.new_aside(top, ids.new())
        with place:
            made = Staged(root, aside, place)
            try:
                yield top, made
            except BaseException:
                made.discard()
                with suppress(OSError):
                    trees.remove_contents(place.fd)
                    os.rmdir(aside, dir_fd=top.fd)
                raise
            finally:
                made.close()


def inscribe(place: int, name: str) -> None:
    """Writes the metadata of the session that a staged folder becomes; its lock is held already.

    Raises:
        OSError: it can't be written, and no part of it is there.
    """
    descriptor = os.open(metadata.NAME, _NEW, 0o600, dir_fd=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(metadata.Metadata.new(name, metadata.now()).render())
    except OSError:
        with suppress(OSError):
            os.unlink(metadata.NAME, dir_fd=place)
        raise


def settle(root: int, aside: str, name: str) -> bool:
    """Makes the folder the session's; returns False if there is one of that name.

    Raises:
        OSError: it can't be renamed.
    """
    if take_name(root, aside, name):
        return True
    try:
        os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:  # the file system can't take a name at once
        os.rename(aside, name, src_dir_fd=root, dst_dir_fd=root)
        return True
    return False
