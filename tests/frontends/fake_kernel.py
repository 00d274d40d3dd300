"""A kernel process on the fake sandbox: `python -m tests.frontends.fake_kernel -f FILE`.

`FAKE_START` names how its start goes: a number of seconds it takes, `fault`, or the path of a file
whose coming ends it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tests.fake_sandbox import FakeSandbox
from wasm_kernel.folders.locks import Resume
from wasm_kernel.frontends.jupyter.app import main
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.sessions.session import Session

if TYPE_CHECKING:
    from tests.local import LocalSandbox

START = os.environ.get("FAKE_START", "0")


def gate(progress: Callable[[str], None]) -> None:
    progress("compiling the fake")
    if START == "fault":
        raise LookupError("/a/path/of/the/host")
    if START.startswith("/"):
        while not Path(START).exists():
            time.sleep(0.02)
    else:
        time.sleep(float(START))


def fake(
    runtime: RuntimeType, session: Session, policy: ExecutionPolicy, resume: Resume, broker: object
) -> LocalSandbox:
    made = FakeSandbox(session.workspace, policy, session.id, gate=gate)
    made.namespace.update(workspace=session.workspace, policy=policy, session_id=session.id)
    made.namespace.update(sandbox=made)
    return cast("LocalSandbox", made)


if __name__ == "__main__":
    main(factory=fake)
