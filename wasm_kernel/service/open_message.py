"""`Open`: the first message to a worker, with its session and the options of the sandbox."""

# No `from __future__ import annotations`: msgspec would compile each annotation at every start.

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from wasm_kernel.errors import Door
from wasm_kernel.execution.functions import Offered
from wasm_kernel.folders.folders import OpenedFolders
from wasm_kernel.linux.folders import Inode, real_path
from wasm_kernel.policy import POLICY_FIELDS, ExecutionPolicy
from wasm_kernel.sessions.root import WorkspaceError

Number = Annotated[int, Meta(ge=1, lt=2**31)]  # the number of a cell
Stamp = Annotated[tuple[int, ...], Meta(max_length=8)]
Stamps = dict[Annotated[str, Meta(max_length=100)], Stamp]


_NOT_TEXT = (
    "The path of the workspace, of a mount or of the notebook is not UTF-8. Nothing was run. "
    "Rename the folder or the file whose name holds other bytes."
)
_VERIFIED_MOST = 2_000  # contents, of a session that sleeps


class NotebookFolder(Struct, frozen=True):
    """The folder that a kernel was started in, for its cells to see.

    Attributes:
        path: Its real path.
        identity: Its device and inode number: another folder at that path is not shown.
        secret: The connection file, which is hidden.
        kept: The front end's own folders, which are hidden.
        writes: Whether files that cells write there land in it.
    """

    path: str
    identity: tuple[int, int]
    secret: str
    kept: tuple[str, ...]
    writes: bool


class KernelSession(Struct, frozen=True, kw_only=True):
    """The part of `Open` that only kernels have: what their cells may ask of the host.

    Attributes:
        workspace: The workspace's path that the user knows.
        tomorrow: A phrase about what the next kernel will find.
        of_notebook: Whether the session belongs to a notebook whose file is known.
        reopened: Whether a notebook's new kernel has reopened the session.
        fork: Whether cells may fork the session.
        prune: Whether cells may prune sessions.
        suffixes: The suffixes of files that may be published.
        results: The names that lead from the notebook to the folder for results; none if unknown.
        collects: Whether a batch collects the results, so that cells publish nothing.
        publishes_at_end: Whether the front end publishes all results when it ends.
        notebook: The notebook's folder; None if cells do not see it.
        logs: Whether there is a log for events.
        awake_seconds: The seconds without a message after which the worker may sleep.
    """

    workspace: str
    tomorrow: str
    of_notebook: bool = False
    reopened: bool
    fork: bool
    prune: bool
    suffixes: tuple[str, ...]
    results: tuple[str, ...]
    collects: bool = False
    publishes_at_end: bool = False
    notebook: NotebookFolder | None
    logs: bool = True
    awake_seconds: float


@contextmanager
def encoding() -> Iterator[None]:
    """Raises `WorkspaceError` if a path in an `Open` that the block encodes is not UTF-8."""
    try:
        yield
    except UnicodeEncodeError:
        raise WorkspaceError(_NOT_TEXT) from None


class OpenChanges(Struct, frozen=True):
    """The part of `Open` that changes from one worker of a session to the next.

    A process that was taken over may send any values: none of them reaches beyond the session.
    """

    resume: Literal["never", "crash", "always"]
    quiet: bool
    verified: Stamps
    notices: tuple[str, ...]
    count: Number
    told: bool
    is_owned: bool


class Open(Struct, frozen=True, tag_field="kind", tag="open"):
    """The session to serve; it comes first, and once.

    Attributes:
        session_id: The session's id; empty outside of sessions.
        workspace: The real path of the folder that the guest sees as `/app`.
        private_root: The folder that holds private folders, if one is named.
        policy: The limits, as `plain_policy` returns them.
        confinement: `off`, `auto` or `required`.
        state_home: The parent of the user's state folder, as the service finds it.
        resume: How the worker continues with existing variables, a `Resume`.
        quiet: Whether the first cell shows no notice of existing variables.
        folders: The folders, which the worker's owner has open. None in a service until it opens
            them for a worker.
        mounts: The identities of the mounts when the owner began with the session.
        forks: Whether cells may fork the session.
        verified: The stamps of the session's last worker, from `Closed`.
        notices: Sentences for the first cell.
        door: The way in that the sandbox is used through.
        count: The lowest number of the next cell. The number before may belong to a cell that was
            lost with its worker, of which only the service knows.
        told: Whether an error has named the variables that are kept, after the last worker's end.
        is_owned: Whether the sandbox's kernel has the session's `OwnerLock`.
        kernel: What a kernel's cells may ask of the host; None for other sandboxes.
        functions: The functions of the sandbox's owner that cells may call.
        files_of: The workspace of the session whose files this one has; empty for its own.
    """

    language: str
    session_id: str
    workspace: str
    private_root: str | None
    policy: dict[str, Any]
    pip: bool
    confinement: str
    state_home: str | None = None
    resume: str = "always"
    quiet: bool = True
    folders: OpenedFolders | None = None
    mounts: dict[str, Inode] = {}
    forks: bool = False
    verified: Stamps = {}
    notices: tuple[str, ...] = ()
    door: Door = Door.PROGRAM
    count: Number = 1
    told: bool = False
    is_owned: bool = False
    kernel: KernelSession | None = None
    functions: Offered = ()
    files_of: str = ""

    @property
    def changes(self) -> "OpenChanges":
        """The part that changes from one worker of a session to the next."""
        return OpenChanges(*(getattr(self, name) for name in OpenChanges.__struct_fields__))

    @property
    def for_next_worker(self) -> "Open":
        """The message for the next worker, which goes on where the first one ended."""
        changes = {"resume": "always", "quiet": True, "notices": (), "count": 1, "told": False}
        if self.folders is not None:  # others may have come
            changes["folders"] = replace(self.folders, is_left=False)
        return replace(self, **changes)

    def verified_by(self, worker: Stamps) -> "Open":
        """Returns the message for the next worker, with the stamps of the last one."""
        return replace(self, verified=dict(islice(worker.items(), _VERIFIED_MOST)))

    @property
    def root(self) -> str:
        """The folder that the session lies in."""
        return str(Path(self.workspace).parent)


def plain_policy(policy: ExecutionPolicy) -> dict[str, Any]:
    """Returns the fields of a policy as `ExecutionPolicy.from_values` takes them."""
    mounts = [{**vars(mount), "host": str(real_path(mount.host))} for mount in policy.mounts]
    fields = {name: getattr(policy, name) for name in POLICY_FIELDS}
    rules = [rule.table for rule in policy.network]
    return {**fields, "mounts": mounts, "network": rules, "env": dict(policy.env)}
