"""What sessions cost: `python -m tests.benchmarks.sessions`.

The metadata of a cell, as the difference between cells of a session with metadata and of one
without, by turns; and pruning many sessions, against a plain walk that reads each metadata file
and `shutil.rmtree`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from tests.local import LocalSandbox, create_session_sandbox
from tests.private import folders_of
from wasm_kernel import prune_sessions
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.metadata import Written

YEAR = timedelta(days=366)


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def cell_cost(root: Path, rounds: int) -> str:
    """Cells with metadata and without, by turns."""
    name, with_metadata = create_session_sandbox(workspace_root=root)
    touch, inside = metadata.touch, list[float]()

    def timed_touch(
        workspace: Folder, session_id: str, private: Folder | None, before: Written | None = None
    ) -> Written | None:
        begun = time.perf_counter()
        try:
            return touch(workspace, session_id, private, before)
        finally:
            if session_id == name:
                inside.append(time.perf_counter() - begun)

    metadata.touch = timed_touch
    _, without = create_session_sandbox(workspace_root=root)
    (without.workspace / ".metadata.json").unlink()
    with with_metadata, without:
        cells: dict[LocalSandbox, list[float]] = {with_metadata: [], without: []}
        for turn in range(rounds + 20):
            for sandbox in sorted(cells, key=id, reverse=bool(turn % 2)):
                taken = timed(lambda sandbox=sandbox: sandbox.execute("1"))  # type: ignore[misc]
                if turn >= 20:
                    cells[sandbox].append(taken)
        metadata.touch = touch
        own = with_metadata.folders
        alone = [timed(lambda: touch(own.workspace, name, own.private)) for _ in range(rounds)]
    kept, bare = median(cells[with_metadata]), median(cells[without])
    return (
        f"a tiny cell: {kept * 1e3:.2f} ms with metadata, {bare * 1e3:.2f} ms without, "
        f"difference {(kept - bare) * 1e3:+.3f} ms; the metadata inside a cell "
        f"{median(inside) * 1e3:.3f} ms (of a hundred the tenth worst "
        f"{sorted(inside)[len(inside) * 9 // 10] * 1e3:.3f} ms), alone {median(alone) * 1e3:.3f} ms"
    )


def make(root: Path, count: int) -> None:
    """Sessions of three files each, half of them old."""
    for number in range(count):
        name = ids.new()
        with closing(folders_of(root / name)) as folders:
            for file in ("present", "lock"):
                (folders.private_path / file).touch()
        text = (datetime.now(UTC) - YEAR * (number % 2)).isoformat()
        fields = {"session_id": name, "created_at": text, "updated_at": text, "version": 1}
        (root / name / ".metadata.json").write_text(json.dumps(fields))
        for file in ("a.csv", "b.csv", "c.csv"):
            (root / name / file).write_bytes(b"x" * 1000)


def plainly(root: Path) -> int:
    """What a short script would do: no locks, no checks, no second thoughts."""
    gone = 0
    for workspace in root.iterdir():
        fields = json.loads((workspace / ".metadata.json").read_text())
        age = datetime.now(UTC) - datetime.fromisoformat(fields["updated_at"])
        if age > timedelta(hours=24):
            sum(path.stat().st_size for path in workspace.rglob("*") if path.is_file())
            shutil.rmtree(workspace)
            gone += 1
    return gone


def pruning(root: Path, count: int) -> str:
    """A dry run and a real one, and the plain script on a copy."""
    make(root / "ours", count)
    shutil.copytree(root / "ours", root / "theirs")
    dry = timed(lambda: prune_sessions(24, root / "ours", dry_run=True))
    real = timed(lambda: prune_sessions(24, root / "ours"))
    plain = timed(lambda: plainly(root / "theirs"))
    left = len(list((root / "ours").iterdir()))
    assert left == len(list((root / "theirs").iterdir())) == count - count // 2
    return (
        f"pruning {count:,} sessions, half of them old: {real:.2f} s ({real / count * 1e6:.0f} us "
        f"each), a dry run {dry:.2f} s; a plain script {plain:.2f} s, ratio {real / plain:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sessions")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wasm-kernel-bench-") as folder:
        print(cell_cost(Path(folder), given.rounds))
        print(pruning(Path(folder, "prune"), given.sessions))


if __name__ == "__main__":
    main()
