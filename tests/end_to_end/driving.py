"""Drives a real kernel cell by cell, like a notebook with a person who answers questions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

from tests.faces import tells_of_start

SECONDS = 120
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Shown:
    """The outputs of one cell, without colours, and its reply."""

    def __init__(self, messages: list[Any], reply: dict[str, Any], asked: list[str]) -> None:
        self.reply = reply
        self.asked = asked
        self._messages = messages

    def stream(self, name: str = "stdout") -> str:
        """All text that the cell wrote to one stream."""
        texts = [c["text"] for kind, c in self._messages if kind == "stream" and c["name"] == name]
        return _COLOURS.sub("", "".join(text for text in texts if not tells_of_start(text)))

    @property
    def kinds(self) -> list[str]:
        """The kinds of messages in order; successive parts of one stream count once."""
        kinds = [kind for kind, _ in self._messages]
        return [k for i, k in enumerate(kinds) if k != "stream" or kinds[i - 1 : i] != ["stream"]]

    def data(self, mime: str) -> list[Any]:
        """The contents of one type in displays and results, in order."""
        bundles = [c["data"] for _, c in self._messages if "data" in c]
        return [bundle[mime] for bundle in bundles if mime in bundle]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the first display."""
        found: dict[str, Any] = next(c["metadata"] for _, c in self._messages if "data" in c)
        return found

    @property
    def traceback(self) -> str:
        """The traceback of the error as text; empty if there was no error."""
        lines = [line for kind, c in self._messages if kind == "error" for line in c["traceback"]]
        return _COLOURS.sub("", "\n".join(lines))

    @property
    def page(self) -> str:
        """The pager's content."""
        pages = [p["data"]["text/plain"] for p in self.reply["payload"] if p["source"] == "page"]
        return _COLOURS.sub("", "\n".join(pages))


class Notebook:
    """An open kernel and its client."""

    def __init__(self, *arguments: str, cwd: Path, **env: str) -> None:
        self.manager = KernelManager(kernel_name="wasm-python")
        self.manager.start_kernel(extra_arguments=list(arguments), cwd=cwd, env=os.environ | env)
        self.client: Any = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def run(self, code: str, answers: Iterable[str] = (), *, interrupt: bool = False) -> Shown:
        """Run a cell; each question is answered by the next of `answers`.

        With `interrupt`, the stop button ends a question for which no answer is left.
        """
        sent = self.client.execute(code, allow_stdin=True)
        waiting, asked = list(answers), list[str]()
        messages: list[Any] = []
        for kind, content in self._heard(sent):
            if kind != "input_request":
                messages.append((kind, content))
                continue
            asked.append(content["prompt"])
            if waiting:
                self.client.input(waiting.pop(0))
            elif interrupt:
                self.manager.interrupt_kernel()
            else:
                self.manager.interrupt_kernel()
                raise AssertionError(f"nobody answers {content['prompt']!r}; before: {messages}")
        while True:
            reply = self.client.get_shell_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") == sent:
                return Shown(messages, reply["content"], asked)

    def _heard(self, sent: str) -> Iterator[tuple[str, Any]]:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except Empty:
                try:
                    question = self.client.get_stdin_msg(timeout=0.01)
                except Empty:
                    continue
                yield "input_request", question["content"]
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            if kind not in ("status", "execute_input"):
                yield kind, content
        raise AssertionError("the cell does not end")

    def control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send a request on the control channel and return the reply's content."""
        message = self.client.session.msg(kind, content)
        self.client.control_channel.send(message)
        reply: dict[str, Any] = self.client.get_control_msg(timeout=SECONDS)["content"]
        return reply

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def opened(*arguments: str, cwd: Path, **env: str) -> Iterator[Notebook]:
    """A kernel with these arguments and environment variables."""
    notebook = Notebook(*arguments, cwd=cwd, **env)
    try:
        yield notebook
    finally:
        notebook.close()
