"""The folders a guest sees: which host folder stands behind which descriptor and guest path."""

from __future__ import annotations

from pathlib import Path

from wasm_kernel.engine.folders.folder import Folder
from wasm_kernel.record import record

FIRST_DESCRIPTOR = 3  # WASI gives preopened folders the numbers from here on, in order


@record
class Preopen:
    """A host folder the guest sees at `guest`.

    `tracked` where changes are recorded, which is the workspace alone; hidden names are kept from
    the guest there. `counted` where what lies in it counts against the quota. `bundled` where the
    host laid out everything in it, so that nothing needs to be looked at: plain files only.
    `held` is the folder itself, open; every instance gets that very one, whatever lies at its path.
    """

    host: Path
    guest: str
    writable: bool = False
    tracked: bool = False
    counted: bool = False
    bundled: bool = False
    held: Folder | None = None


@record
class Preopens:
    """All folders of one guest: the fixed ones, which the base image knows, then the mounts.

    The guest's C library reads the list of preopened folders once, before the base image is taken,
    so it knows the fixed ones only. A path below a mount reaches the host as a path below the
    guest's `/`, and is led to the mount there. `spare` folders keep descriptors free for
    more mounts, so that files have the same numbers however many there are.
    """

    fixed: tuple[Preopen, ...]
    mounts: tuple[Preopen, ...] = ()
    spare: tuple[Preopen, ...] = ()

    @property
    def all(self) -> tuple[Preopen, ...]:
        """Every folder, in the order of its descriptors."""
        return self.fixed + self.mounts + self.spare

    def descriptor(self, preopen: Preopen) -> int:
        """The descriptor the guest has for a folder."""
        return FIRST_DESCRIPTOR + self.all.index(preopen)

    @property
    def root(self) -> int | None:
        """The descriptor of the guest's `/`, or None where it has none."""
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
