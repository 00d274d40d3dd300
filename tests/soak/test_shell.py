"""just-bash's own cases, as recorded from bash on Linux, run by the shell of a sandbox.

`SHELL_CASES` may name a checkout of `vercel-labs/just-bash`; without it, GitHub's archive is
fetched.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel import ExecutionPolicy, Sandbox, create_sandbox

pytestmark = pytest.mark.soak

_COMMIT = "a021f95f53f7e01df48dab71b46ffd4637fb4b53"
_ARCHIVE = f"https://github.com/vercel-labs/just-bash/archive/{_COMMIT}.tar.gz"
_FIXTURES = "packages/just-bash/src/comparison-tests/fixtures"
_LEAST = 0.99
_RUN = """
import os, shutil, subprocess
shutil.rmtree("/app/case", ignore_errors=True)
for name, text in {"": "", **files}.items():
    path = os.path.join("/app/case", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if name:
        open(path, "w", newline="").write(text)
done = subprocess.run(command, shell=True, cwd="/app/case", capture_output=True, text=True)
print(repr((done.stdout, done.returncode)))
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All cases: a command, the files that it finds, its output and its exit status."""
    folder = os.environ.get("SHELL_CASES")
    if folder is None:
        folder = str(tmp_path_factory.mktemp("cases"))
        with urllib.request.urlopen(_ARCHIVE, timeout=120) as reply:
            data = reply.read()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(folder, filter="data")
        folder = str(next(Path(folder).iterdir()))
    found: list[dict[str, Any]] = []
    for path in sorted(Path(folder, _FIXTURES).glob("*.json")):
        found += json.loads(path.read_text()).values()
    return found


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox whose cells end soon."""
    policy = ExecutionPolicy(cell_timeout=20)
    with create_sandbox(workspace=tmp_path, policy=policy) as made:
        yield made


def test_scripts_do_what_bash_does(sandbox: Sandbox, cases: list[dict[str, Any]]) -> None:
    wrong = [case["command"] for case in cases if not _is_right(sandbox, case)]
    print(f"{len(cases) - len(wrong)} of {len(cases)} cases are as in bash")
    print("\n".join(repr(command) for command in wrong))
    assert len(wrong) < (1 - _LEAST) * len(cases)


def _is_right(sandbox: Sandbox, case: dict[str, Any]) -> bool:
    given = f"files, command = {case['files']!r}, {case['command']!r}\n"
    result = sandbox.execute(given + _RUN, store_history=False)
    return result.stdout.strip() == repr((case["stdout"], case["exitCode"]))
