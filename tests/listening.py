"""`Page`: a listener of a sandbox, as a front end's page."""

from __future__ import annotations

from wasm_kernel.execution.interfaces import InputInterrupted, NoListener
from wasm_kernel.guests.protocol import ErrorOutput, Output, Stream
from wasm_kernel.result import CommMessage


class Page(NoListener):
    """Records what it hears, and answers questions with its lines."""

    def __init__(self, *lines: str) -> None:
        self.lines = [*lines]
        self.said: list[CommMessage] = []
        self.heard: list[Output] = []
        self.asked: list[tuple[str, bool]] = []

    def emit(self, output: Output) -> None:
        self.heard.append(output)

    def comm(self, message: CommMessage) -> None:
        self.said.append(message)

    def ask(self, prompt: str, password: bool) -> str:
        self.asked.append((prompt, password))
        if not self.lines:
            raise InputInterrupted
        return self.lines.pop(0)

    def kinds(self, comm_id: str) -> list[str]:
        return [message.kind for message in self.said if message.comm_id == comm_id]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.heard if isinstance(part, Stream))

    @property
    def errors(self) -> list[str]:
        return [part.ename for part in self.heard if isinstance(part, ErrorOutput)]
