"""Exporting a session into one file, and importing it here or on another machine.

An import makes a whole session or none (`staging.py`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from wasm_kernel import events
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.locks import exclusively
from wasm_kernel.guests.base import languages, prepare_on_own_thread
from wasm_kernel.linux.folders import NEW, Folder, making_folder, open_folder, undoing
from wasm_kernel.policy import user_path
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.paths import WORKSPACE_ROOT, SessionPathError, resolve
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.staging import new_session
from wasm_kernel.state.archive_in import ArchiveReader, Imported
from wasm_kernel.state.archive_out import (
    ArchivedMemory,
    Exported,
    NoVariables,
    variables_of,
    write_archive,
)
from wasm_kernel.state.image import BaseImage
from wasm_kernel.state.tar import ArchiveError

MOST_BYTES = 64 << 30
"""The default limit of an archive's uncompressed size, in bytes."""

Progress = Callable[[str], None]
_IN_USE = (
    "This session is open, in this process or in another one, and its variables may change at any "
    "moment. Nothing was exported. Shut its kernel down or close its sandbox, or export the files "
    "alone."
)


def export_session(
    session_id: str,
    target: Path | str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    *,
    files_only: bool = False,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> Exported:
    """Writes a session into one file, which `import_session` can import elsewhere.

    The session stays unchanged. Links are kept as links, holes as holes. Sockets, pipes and devices
    are left out, and so are earlier versions of files.

    Args:
        session_id: The session, or a link to it in the same root.
        target: The archive, which must not exist yet; a `.tar.gz`.
        workspace_root: The folder that holds the sessions' folders.
        files_only: Leave the variables out; the session may then be in use.
        logger: Gets the event; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is not an id (a `ValueError`).
        FileNotFoundError: there is no such session.
        FileExistsError: `target` exists already.
        ArchiveError: `target` lies in the session itself (a `ValueError`).
        SessionInUse: a process has the session open.
        OSError: the archive can't be written; no part of it is left.
    """
    root, path = SessionsRoot(workspace_root, private_root), user_path(target).absolute()
    workspace = root.find(session_id)
    if path.resolve().is_relative_to(workspace):
        raise ArchiveError("The archive can't lie in the session that it is made of.")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "There is no such folder", str(user_path(target).parent)
        )
    with ExitStack() as held:
        own = held.enter_context(Folder(open_folder(workspace)))
        if (folders := root.folders_of(workspace.name, own)) is not None:
            held.callback(folders.close)
        variables, why_not = None, "The archive holds the files alone, as you asked."
        if not files_only:
            if folders is not None:
                held.enter_context(exclusively(folders.private, _IN_USE))
            try:
                images = [image for language in languages() for image in language.images()]
                variables = variables_of(folders, images)
            except NoVariables as problem:
                why_not = str(problem)
        file = os.fdopen(os.open(path, NEW, 0o600), "wb")
        with undoing(path.unlink), file:
            exported = write_archive(file, workspace.name, own, folders, variables, why_not=why_not)
    facts = {"session_id": exported.session_id, "files": exported.files, "states": exported.states}
    SandboxLogger.of(logger).log_event(events.SESSION_EXPORTED, **facts)
    return exported


def import_session(
    source: Path | str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    *,
    session_id: str | None = None,
    same_id: bool = False,
    max_bytes: int = MOST_BYTES,
    progress: Progress | None = None,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> Imported:
    """Makes a session from an archive that `export_session` wrote, here or on another machine.

    If the sandbox here has the same version, the session has the archive's variables, and goes on
    with them when it is opened. Files that they had open are open again if they are in the archive,
    and closed otherwise. An archive may come from a stranger: its content is checked, and its code
    and memory stay in the sandbox.

    Args:
        source: The archive.
        workspace_root: The folder that holds the sessions' folders; made if it does not exist.
        session_id: The new session's id; a random one by default.
        same_id: Let the session keep its old id.
        max_bytes: The limit of the archive's uncompressed size, and of the disk space during the
            import, when the first state of the memory is written twice.
        progress: Gets plain sentences about slow steps.
        logger: Gets the event; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        ArchiveError: it is not an archive, is damaged, or has a forbidden member (a `ValueError`).
        SessionExists: there is a session of that id already (a `FileExistsError`).
        SessionIdError: `session_id` is not an id (a `ValueError`).
        OSError: the archive can't be read, or the session can't be written; no part of it is left.
    """
    wanted = None if session_id is None else ids.checked(session_id)
    root = SessionsRoot(workspace_root, private_root)
    with (
        making_folder(root.path, 0o700),
        user_path(source).open("rb") as file,
        ArchiveReader.open(file, max_bytes) as reader,
    ):
        was = ids.checked(reader.manifest.session_id)
        name = wanted or (was if same_id else ids.new())
        image, library = _image_for(reader.manifest.memory, progress or (lambda text: None))
        with new_session(root, name) as folders:
            imported = reader.unpack(name, folders, image, library, _leads_out)
    SandboxLogger.of(logger).log_event(
        events.SESSION_IMPORTED, session_id=name, files=imported.files, states=imported.states
    )
    return imported


def _image_for(
    memory: ArchivedMemory | None, progress: Progress
) -> tuple[BaseImage | None, frozenset[str]]:
    """Returns the base image for an archive's memory, and the folders that all its guests have.

    The image is built if it is missing; it is None if the memory fits no guest of this machine.
    """
    if memory is not None and memory.known() is not None:
        for language in languages():
            if memory.artifact in language.image_names:
                from wasm_kernel.engine.flavours import UNCHECKED

                image = next(language.images(), None)
                image = image or prepare_on_own_thread(language, UNCHECKED, progress)
                return image, language.library_paths
    return None, frozenset()


def _leads_out(folder: int, path: str, step: Callable[[], None]) -> bool:
    try:
        resolve(folder, path.split("/"), path, each=step)
    except (SessionPathError, OSError):
        return True
    return False
