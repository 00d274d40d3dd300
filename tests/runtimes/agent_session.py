"""A session of the agent under ordinary CPython, in a process of its own.

Run as a script with a JSON list of requests on standard input: each is served as one turn. What
stands in a request's `meanwhile` is handed to the agent when it asks what came meanwhile. Every
frame that the agent sends is in the JSON list of lists on the last line of standard output. The
agent changes builtins, signals and asyncio, so no test runs it in pytest's process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from wasm_kernel_agent.agent import Agent
from wasm_kernel_agent.host import Channel

ANSWERS: dict[str, dict[str, Any]] = {"input": {"value": "a line"}}


# A cell may break the json module under test.
encode, decode = json.JSONEncoder().encode, json.JSONDecoder().decode


def main() -> None:
    requests: list[dict[str, Any]] = json.load(sys.stdin)
    meanwhile: list[dict[str, Any]] = []
    frames: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []

    def call(data: bytes) -> bytes:
        frame = decode(data.decode())
        if frame["op"] == "next":
            request = waiting.pop(0)
            meanwhile[:] = request.pop("meanwhile", [])
            return encode(request).encode()
        frames.append(frame)
        if frame["op"] == "comm_next" and meanwhile:
            return encode({"message": meanwhile.pop(0)}).encode()
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
