"""Sessions of the guest agent in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Frame = dict[str, Any]
Serve = Callable[..., list["Turn"]]


class Turn:
    """What one turn sent."""

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
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Serves requests (or cells, given as text) in one fresh session; a `Turn` each."""

    def run(*requests: Frame | str) -> list[Turn]:
        folder = tmp_path_factory.mktemp("session")
        full = [cell(each) if isinstance(each, str) else each for each in requests]
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("agent_session.py"))],
            input=json.dumps(full),
            capture_output=True,
            text=True,
            timeout=120,
            cwd=folder,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "runtimes" / "python"),
                "IPYTHONDIR": str(folder / "ipython"),
            },
        )
        assert done.returncode == 0, done.stderr
        return [Turn(frames) for frames in json.loads(done.stdout.splitlines()[-1])]

    return run


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
