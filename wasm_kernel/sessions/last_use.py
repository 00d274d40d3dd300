"""`LastUse`: notes in a session's metadata when a cell ended."""

from __future__ import annotations

from wasm_kernel import events
from wasm_kernel.errors import describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import SessionHooks
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import metadata
from wasm_kernel.sessions.metadata import MetadataCorrupted


class LastUse(SessionHooks):
    """The hooks that every session needs: they note each cell in the metadata.

    In a worker these are a session's only hooks, as another process has opened the session. The
    sandbox's thread calls them.
    """

    _told = ""
    _written: metadata.WrittenMetadata | None = None

    def __init__(self, session_id: str, folders: SandboxFolders, logger: SandboxLogger) -> None:
        """Makes the hooks of a session that another process has opened."""
        self.id, self.folders, self.logger = session_id, folders, logger

    @property
    def _spare(self) -> Folder | None:
        """The folder of the metadata's spare file, if the two files can be swapped."""
        return None if self.folders.private.needs_copies else self.folders.private

    def logger_changed(self, logger: SandboxLogger) -> None:
        """Sends the session's events to another logger from now on."""
        self.logger = logger

    def executed(self) -> None:
        """Notes the end of a cell in the metadata, if the session has any."""
        try:
            folders, before = self.folders, self._written
            self._written = metadata.touch(folders.workspace, self.id, self._spare, before)
        except MetadataCorrupted as problem:
            self._warn(events.METADATA_CORRUPTED, str(problem))
        except OSError as problem:
            self._warn(events.METADATA_FAILED, describe(problem))
        else:
            self._told = ""

    def facts(self) -> dict[str, str]:
        """Returns the times at which the session was made and last used, for people."""
        if (found := metadata.read(self.folders.workspace, self.id)) is None:
            return {}
        return {
            "created_at": found.created_at.isoformat(timespec="seconds"),
            "updated_at": found.updated_at.isoformat(timespec="seconds"),
        }

    def _log(self, event: str, **fields: object) -> None:
        self.logger.log_event(event, session_id=self.id, **fields)

    def _warn(self, event: str, error: str) -> None:
        """Logs a problem once, as long as it stays the same."""
        if self._told != event + error:
            self._told = event + error
            self._log(event, error=error)
