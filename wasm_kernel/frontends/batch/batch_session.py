"""`BatchSession`: the session in which a notebook of a batch is run.

It belongs to the path of the executed notebook, so that a later run finds it, with the variables
and files after each cell. It is deleted once all cells succeeded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from wasm_kernel.errors import SessionInUse, WasmKernelError, describe
from wasm_kernel.folders.folders import PACKAGES
from wasm_kernel.frontends.batch.outcome import BatchStopped
from wasm_kernel.linux.trees import copy_tree
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.files import write_session_file
from wasm_kernel.sessions.metadata import NOTEBOOK
from wasm_kernel.sessions.overview import ended_whole
from wasm_kernel.sessions.removal import delete_session_workspace
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

_LEAVE_SECONDS = 180.0  # for the workers of a killed run to end
_POLL_SECONDS, _TELL_SECONDS = 0.05, 2.0
_WAITS = (
    f"its session is in use, perhaps by a killed run that still saves it: {_LEAVE_SECONDS:.0f} s "
    "at most"
)
_MARK = b"wasm-kernel run"


def session_id_of(output: Path) -> str:
    """Returns the id of the session that belongs to an executed notebook's path."""
    return ids.derived(_MARK, os.fsencode(output))


class BatchSession:
    """The session of one executed notebook, whose path determines the session's id.

    Its methods take time: call them on a thread. `tell` gets a sentence if a method waits for long.
    """

    def __init__(
        self, root: SessionsRoot, output: Path, tell: Callable[[str], object] = lambda text: None
    ) -> None:
        self.root, self._tell = root, tell
        self.id = session_id_of(output)
        self._output = output

    @property
    def path(self) -> Path:
        """The folder of the session's files."""
        return self.root.path / self.id

    @property
    def exists(self) -> bool:
        """True if the session exists: an earlier run left it, or this one made it."""
        return self.path.is_dir()

    def is_whole(self) -> bool:
        """Returns whether the session's last worker ended with all states on disk."""
        return ended_whole(self.root, self.id)

    def begin(self, inputs: Sequence[Path]) -> None:
        """Makes the session anew, with copies of `inputs`. Lists of sessions name the notebook.

        Raises `BatchStopped` if a file can't be copied, `WasmKernelError` if the session is in use.
        """
        self.delete()
        session = Session(self.root, self.id, about={NOTEBOOK: os.fspath(self._output)})
        session.closed()
        for file in inputs:
            try:
                data = file.read_bytes()
            except OSError as problem:
                raise BatchStopped(
                    f"{file.name} can't be read any more ({describe(problem)}). Notebooks that "
                    "were executed before are kept."
                ) from None
            write_session_file(
                self.id, file.name, data, self.root.path, private_root=self.root.private_root
            )

    def copy_packages(self, other: BatchSession) -> None:
        """Copies this session's packages into another one, which is made if it does not exist."""
        with ExitStack() as held:
            target = Session(other.root, other.id)
            held.callback(target.closed)
            held.callback(target.folders.close)
            private, _ = held.enter_context(self.root.private_of(self.id)())
            packages = held.enter_context(private.enter(PACKAGES))
            copy_tree(packages.fd, target.folders.packages.fd, lambda _: False)

    def delete(self) -> None:
        """Deletes the session, if it exists; `WasmKernelError` if that is impossible now."""
        if not self.exists:
            return
        for is_last in self._tries():
            try:
                delete_session_workspace(
                    self.id, self.root.path, private_root=self.root.private_root
                )
            except SessionInUse:
                if is_last:
                    raise
            else:
                return

    def discard(self) -> None:
        """Deletes the session if possible; otherwise the next run does."""
        with suppress(WasmKernelError, OSError):
            self.delete()

    def wait_unused(self) -> None:
        """Waits until the session is unused: a killed run's worker ends a moment later."""
        for is_last in self._tries():
            if not self.root.is_used(self.id):
                return
            if is_last:
                raise SessionInUse("Another run works on this notebook. Nothing was changed.")

    def _tries(self) -> Iterator[bool]:
        """Yields, each time to try again, whether it is the last time."""
        began, is_told = time.monotonic(), False
        while (passed := time.monotonic() - began) < _LEAVE_SECONDS:
            yield False
            if passed > _TELL_SECONDS and not is_told:
                self._tell(_WAITS)
                is_told = True
            time.sleep(_POLL_SECONDS)
        yield True
