"""A process that uses sessions while others prune and delete them: `python -m
tests.attacks.session_user ROOT SECONDS SEED`.

It ends with status 1 and says why if an open session lost something, or if a session that it opened
again was neither whole nor new.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from tests.aged import metadata_of
from tests.faces import says, wait_for
from wasm_kernel import create_session_sandbox, get_session_sandbox

MAKE = "import os; x = {number}; open('file', 'w').write(str({number})); os.makedirs('a/b')"
LOOK = (
    "import os; print(globals().get('x'), open('file').read() if os.path.exists('file') else None)"
)


def use(root: Path, dice: random.Random, *, waits: bool = False) -> str | None:
    """Make a session, use it for a while, close it and open it again, or wait first until it was
    pruned; returns if it was kept or pruned.
    """
    number = dice.randrange(10**6)
    session_id, sandbox = create_session_sandbox(workspace_root=root)
    with sandbox:
        says(sandbox, MAKE.format(number=number))
        for _ in range(dice.randrange(3)):
            time.sleep(dice.uniform(0, 0.02))
            assert says(sandbox, LOOK) == f"{number} {number}", "an open session lost something"
        assert metadata_of(root / session_id)["session_id"] == session_id
    time.sleep(dice.choice([0, 0.005, 0.05]))
    if waits:
        wait_for(lambda: not (root / session_id).exists(), "the session's end")
    with get_session_sandbox(session_id, workspace_root=root) as again:
        found = says(again, LOOK)
        assert found in (f"{number} {number}", "None None"), f"half a session: {found}"
        assert (root / session_id / ".metadata.json").exists(), "a session without metadata"
        assert says(again, LOOK) == found, "an open session lost something"
        return "found" if found != "None None" else "pruned"


def main() -> None:
    root, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    dice, until = random.Random(seed), time.monotonic() + seconds
    ends = [use(root, dice, waits=True)]  # on a busy machine, others may be kept always
    while time.monotonic() < until:
        ends.append(use(root, dice))
    print(ends.count("found"), ends.count("pruned"))


if __name__ == "__main__":
    main()
