"""Sessions of the agent under ordinary CPython, each in a process of its own.

Run as a script, which boots the agent once and forks for each line on standard input: a JSON
object with a session's `folder` and its `requests`. Each request is served as one turn. The
messages in a request's `queued` are handed to the agent when it asks for the next message. Every
frame that the agent sends is in the JSON list of lists on the last line of the file `out` in the
folder; its error messages are in `err`. A line on standard output says how the process ended. The
agent changes builtins, signals and asyncio, so no test runs it in pytest's process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from wasm_kernel_agent.agent import Agent
from wasm_kernel_agent.host import FrameChannel

ANSWERS: dict[str, dict[str, Any]] = {"input": {"value": "a line"}}


# A cell may break the json module under test.
encode, decode = json.JSONEncoder().encode, json.JSONDecoder().decode


def main() -> None:
    """Boots an agent, and forks it for each session, as guests share a base image."""
    session = Session()
    session.turn({"op": "boot"})
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            settle(asked["folder"])
            told = [session.turn(request) for request in asked["requests"]]
            os.write(1, f"\n{encode(told)}".encode())
            os._exit(0)  # an end as Python's own takes ten times as long as a cell
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def settle(folder: str) -> None:
    """Gives a child a folder, and streams apart from its parent's."""
    os.chdir(folder)
    os.environ["IPYTHONDIR"] = os.path.join(folder, "ipython")  # noqa: PTH118 (what a cell imports)
    for number, name in enumerate((os.devnull, "out", "err")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)


class Session:
    """An agent whose host is this process."""

    def __init__(self) -> None:
        self.agent = Agent(FrameChannel(self.answer), in_guest=False)
        self.waiting: list[dict[str, Any]] = []
        self.queued: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []

    def turn(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The frames that the agent sends in a turn."""
        self.frames, self.waiting = [], [request]
        self.agent.turn()
        return self.frames

    def answer(self, data: bytes) -> bytes:
        frame = decode(data.decode())
        if frame["op"] == "next":
            request = self.waiting.pop(0)
            self.queued = request.pop("queued", [])
            return encode(request).encode()
        self.frames.append(frame)
        if frame["op"] == "comm_next" and self.queued:
            return encode({"message": self.queued.pop(0)}).encode()
        return encode(ANSWERS.get(frame["op"], {})).encode()


if __name__ == "__main__":
    main()
