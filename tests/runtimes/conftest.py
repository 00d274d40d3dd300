"""Sessions of the guest agent in a process of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Frame = dict[str, Any]
Serve = Callable[..., list["Turn"]]


class Turn:
    """The frames that one turn sent."""

    def __init__(self, frames: list[Frame]) -> None:
        self.reply: Frame = frames[-1]["reply"]
        self.frames = frames[:-1]
        self.ends_with_done = frames[-1]["op"] == "done"

    def sent(self, op: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["op"] == op]

    @property
    def text(self) -> str:
        """The plain text of the cell's result."""
        [result] = self.sent("result")
        return str(result["data"]["text/plain"])


@pytest.fixture(scope="session")
def sessions() -> Iterator[Popen[str]]:
    """A process that has imported the agent, and forks for each session."""
    path = {"PYTHONPATH": str(ROOT / "runtimes" / "python")}
    with Popen(
        [sys.executable, str(Path(__file__).with_name("agent_session.py"))],
        stdin=PIPE,
        stdout=PIPE,
        text=True,
        env=os.environ | path,
        start_new_session=True,
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)  # ends a session that does not end by itself, too


@pytest.fixture(scope="session")
def serve(sessions: Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Serves requests (or cells, given as text) in one fresh session; a `Turn` each."""

    def run(*requests: Frame | str) -> list[Turn]:
        folder = tmp_path_factory.mktemp("session")
        full = [cell(each) if isinstance(each, str) else each for each in requests]
        status = answer_of(sessions, json.dumps({"folder": str(folder), "requests": full}))
        assert status == "0", (folder / "err").read_text()
        told = (folder / "out").read_text().splitlines()[-1]
        return [Turn(frames) for frames in json.loads(told)]

    return run


def answer_of(process: Popen[str], line: str) -> str:
    """The line that a process answers with, within two minutes."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], 120)
    assert ready, "the session does not end"
    return process.stdout.readline().strip()


def cell(code: str, **changes: Any) -> Frame:
    """The request that runs `code` as a notebook does."""
    request = {
        "op": "execute",
        "code": code,
        "silent": False,
        "store_history": True,
        "allow_stdin": False,
        "user_expressions": {},
        "cell_id": None,
    }
    return {**request, **changes}


@pytest.fixture(scope="session")
def make_cell() -> Callable[..., Frame]:
    return cell
