"""Another process on a session: `python -m tests.sessions.other_process ROOT ID`.

Each line on stdin is a cell as JSON text; each line on stdout is the result of one. The end of
stdin closes the session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import faults
from wasm_kernel import get_session_sandbox
from wasm_kernel.service import fork_process

ROOT = Path(__file__).resolve().parents[2]


class Other:
    """The process, seen from outside."""

    def __init__(self, root: Path, session_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sessions.other_process", str(root), session_id],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str) -> dict[str, str]:
        """Runs a cell; returns its `stdout`, its `stderr`, and the name of its `error`."""
        self.send(code)
        assert self._process.stdout is not None
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer

    def send(self, code: str) -> None:
        """Sends a cell and does not wait for it."""
        assert self._process.stdin is not None
        print(json.dumps(code), file=self._process.stdin, flush=True)

    def kill(self) -> None:
        """Kills the process at once."""
        self._process.kill()
        self._process.communicate()

    def end(self) -> None:
        """Lets it close the session and end. Safe to call twice."""
        if self._process.poll() is None:
            self._process.communicate()


def main(root: str, session_id: str) -> None:
    """Runs the cells that arrive, in a worker with the faults of the process that started this."""
    if faults.VARIABLE in os.environ:
        fork_process.PROGRAM = faults.__name__
    with get_session_sandbox(session_id, workspace_root=root) as sandbox:
        for line in sys.stdin:
            result = sandbox.execute(json.loads(line))
            error = result.error.ename if result.error else ""
            said = {"stdout": result.stdout, "stderr": result.stderr, "error": error}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
