"""An executor for Google's ADK: `LlmAgent(..., code_executor=SandboxCodeExecutor())`."""

from __future__ import annotations

import base64
import mimetypes
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import (
    CodeExecutionInput,
    CodeExecutionResult,
    CodeExecutionUtils,
    File,
)
from pydantic import Field, PrivateAttr

from wasm_kernel import Sandbox, SandboxResult, Service, read_session_file, write_session_file
from wasm_kernel.integrations.results import error_text, shown_text

if TYPE_CHECKING:
    from google.adk.agents.invocation_context import InvocationContext

FILES_MOST = 20
"""The most files, figures among them, that one block of code gives back."""
FILE_BYTES = 16 * 1024 * 1024
"""The most bytes of a file given back; larger files stay in the sandbox."""

_Conversation = tuple[str, str, str]


class SandboxCodeExecutor(BaseCodeExecutor):
    """Runs an agent's code in sandboxes: one for each conversation, whose variables last.

    Files that code makes or changes, and figures that it shows, become artifacts of the
    conversation. Conversations that rest take no memory: their sessions sleep.

    Args:
        service: The service that holds the sessions, and which its maker closes; by default one of
            its own, in a folder that `close` deletes.
        data: Fields of ADK's executors, such as `timeout_seconds`.
    """

    stateful: bool = Field(default=True, frozen=True, exclude=True)
    _service: Service = PrivateAttr()
    _folder: str = PrivateAttr(default="")
    _guard: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _sandboxes: dict[_Conversation, Sandbox] = PrivateAttr(default_factory=dict)

    def __init__(self, service: Service | None = None, **data: Any) -> None:
        super().__init__(**data)
        if service is None:
            self._folder = tempfile.mkdtemp(prefix="wasm-kernel-adk-")
        # within the folder, as private state may lie beside the sessions
        self._service = service or Service(Path(self._folder, "sessions"))

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Runs a block of code in the sandbox of its conversation.

        The output has the text that the code printed, with its warnings, and the value of its last
        expression. A failed block has the error in `stderr`, which ADK gives to the model.
        """
        sandbox = self._sandbox_of(invocation_context, code_execution_input.execution_id or "")
        for file in code_execution_input.input_files:
            write_session_file(
                sandbox.session_id, file.name, _content_of(file), workspace_root=self._service.root
            )
        result = sandbox.execute(code_execution_input.code, timeout_seconds=self.timeout_seconds)
        return CodeExecutionResult(
            stdout=shown_text(result),
            stderr=error_text(result),
            output_files=[*islice(self._files_of(sandbox.session_id, result), FILES_MOST)],
            exit_code=result.exit_code,
        )

    def _sandbox_of(self, context: InvocationContext, execution_id: str) -> Sandbox:
        conversation = (context.app_name, context.user_id, execution_id)
        with self._guard:
            if conversation not in self._sandboxes:
                self._sandboxes[conversation] = self._service.create(owner=context.user_id)
            return self._sandboxes[conversation]

    def _files_of(self, session_id: str, result: SandboxResult) -> Iterator[File]:
        figures = (each.data["image/png"] for each in result.outputs if "image/png" in each.data)
        for number, figure in enumerate(figures, 1):
            with suppress(ValueError):  # a cell can show anything
                yield File(f"figure-{number}.png", base64.b64decode(figure), "image/png")
        for path in dict.fromkeys((*result.files_created, *result.files_modified)):
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            with suppress(OSError, ValueError):  # it is too large, or no regular file
                content = read_session_file(
                    session_id, path, self._service.root, max_bytes=FILE_BYTES
                )
                # ADK gives artifacts named `user:...` to all conversations of their user
                yield File(path.replace("user:", "user_"), content, kind)

    def close(self) -> None:
        """Closes a service of its own, and deletes its folder. Safe to call twice."""
        if self._folder:
            self._service.close()
            shutil.rmtree(self._folder, ignore_errors=True)


def _content_of(file: File) -> bytes:
    """Returns the bytes of an input file, which ADK gives as they are or in base64."""
    content = file.content.encode() if isinstance(file.content, str) else file.content
    return base64.b64decode(CodeExecutionUtils.get_encoded_file_content(content))
