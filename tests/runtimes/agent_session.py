"""Sessions of the agent under ordinary CPython, each in a process of its own.

Run as a script, which imports the agent once and forks for each line on standard input: a JSON
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
from wasm_kernel_agent.host import Channel

ANSWERS: dict[str, dict[str, Any]] = {"input": {"value": "a line"}}


# A cell may break the json module under test.
encode, decode = json.JSONEncoder().encode, json.JSONDecoder().decode


def main() -> None:
    """Forks for each session; a child leaves the loop, and ends as Python ends."""
    for line in sys.stdin:
        session = json.loads(line)
        child = os.fork()
        if child == 0:
            settle(session["folder"])
            run(session["requests"])
            return
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


def run(requests: list[dict[str, Any]]) -> None:
    queued: list[dict[str, Any]] = []
    frames: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []

    def call(data: bytes) -> bytes:
        frame = decode(data.decode())
        if frame["op"] == "next":
            request = waiting.pop(0)
            queued[:] = request.pop("queued", [])
            return encode(request).encode()
        frames.append(frame)
        if frame["op"] == "comm_next" and queued:
            return encode({"message": queued.pop(0)}).encode()
        return encode(ANSWERS.get(frame["op"], {})).encode()

    agent = Agent(Channel(call), in_guest=False)
    told = []
    for request in [{"op": "boot"}, *requests]:
        frames.clear()
        waiting[:] = [request]
        agent.turn()
        told.append(list(frames))
    sys.__stdout__.write("\n" + encode(told[1:]))  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
