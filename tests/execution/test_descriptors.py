"""The number of sandboxes in a process is limited by its hard limit on descriptors alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, resource, sys
from wasm_kernel import OutOfDescriptors, create_sandbox

soft, hard, most = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
made, said = [], ""
while len(made) < most:
    try:
        made.append(create_sandbox(workspace=f"work/{len(made)}"))
        assert made[-1].execute("x = 1").success
    except OutOfDescriptors as problem:
        said = str(problem)
        break
full = sum(not sandbox.busy and sandbox.execute("x").success for sandbox in made)
made.pop().close()
made.pop(0).close()
made.append(create_sandbox(workspace="work/again"))
assert made[-1].execute("x = 1").success
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(json.dumps({"full": full, "said": said, "limit": limit}))
for sandbox in made:
    sandbox.close()
"""


def run(folder: Path, *limits: int) -> dict[str, object]:
    command = [sys.executable, "-c", PROGRAM, *map(str, limits)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_lack_of_descriptors_is_said_and_closing_a_sandbox_makes_room(tmp_path: Path) -> None:
    """The soft limit is raised first."""
    found = run(tmp_path, 60, 100, 20)
    assert found["limit"] == 100
    assert 5 <= int(str(found["full"])) < 20
    assert "of the 100 file descriptors that it may have are in use" in str(found["said"])
    assert "Nothing was run or changed" in str(found["said"])


@pytest.mark.soak
def test_a_hundred_sandboxes_live_in_one_process(tmp_path: Path) -> None:
    found = run(tmp_path, 1024, 16_384, 100)
    assert (found["full"], found["said"]) == (100, "")
