"""A sandbox over a notebook's folder, like that of the Jupyter kernel."""

from __future__ import annotations

from pathlib import Path

from wasm_kernel import ExecutionPolicy, Sandbox, SandboxLogger
from wasm_kernel.folders.locks import Resume
from wasm_kernel.service.open_message import KernelSession, NotebookFolder
from wasm_kernel.service.program_home import ProgramHome, opened_in
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session


def over(
    folder: Path,
    root: Path,
    session_id: str = "reader",
    policy: ExecutionPolicy | None = None,
    suffixes: tuple[str, ...] = (),
) -> Sandbox:
    """A session whose guest sees a folder as /notebook; the caller closes it.

    Args:
        folder: The folder.
        root: The root of the session. The kernel's connection file would lie beside it.
        session_id: The session's id.
        policy: Its limits.
        suffixes: The suffixes of files that may be published into the folder `results`.
    """
    policy, logger, found = policy or ExecutionPolicy(), SandboxLogger.of(None), folder.stat()
    session = Session(SessionsRoot(root), session_id, logger, mounts=policy.mounts)
    kernel = KernelSession(
        workspace=str(session.workspace),
        tomorrow="",
        of_notebook=True,
        reopened=session.folders.reopened,
        fork=False,
        prune=False,
        suffixes=suffixes,
        results=("results",) if suffixes else (),
        collects=False,
        publishes_at_end=False,
        notebook=NotebookFolder(
            path=str(folder),
            identity=(found.st_dev, found.st_ino),
            secret=str(root.parent / "runtime" / "kernel.json"),
            kept=(),
            writes=False,
        ),
        logs=False,
        awake_seconds=600.0,
    )
    home = ProgramHome(session)
    opened = opened_in(
        session, "python", policy, resume=Resume.ALWAYS, pip=False, quiet=True, kernel=kernel
    )
    return home.sandbox(opened, policy, logger)
