"""What a session's files cost from outside: `python -m tests.benchmarks.workspace`.

Each of ours against what a short script would do without any check, by turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from wasm_kernel import (
    export_session,
    import_session,
    list_session_files,
    read_session_file,
    write_session_file,
)

ID = "measured"
MIB = 1024 * 1024


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def against(name: str, ours: Callable[[], object], plain: Callable[[], object], rounds: int) -> str:
    """The medians of both, by turns."""
    pairs = [(timed(ours), timed(plain)) for _ in range(rounds)]
    mine, theirs = (median(side) * 1e3 for side in zip(*pairs, strict=True))
    return f"{name}: {mine:.2f} ms, plainly {theirs:.2f} ms, ratio {mine / theirs:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.workspace")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wasm-kernel-bench-") as folder:
        root, app = Path(folder), Path(folder, ID)
        for number in range(given.files):
            path = app / f"folder-{number % 100}" / f"{number}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 100)
        small, large = "folder-1/1.csv", b"x" * MIB
        read = (app / small).read_bytes

        def plainly_listed() -> list[str]:
            return sorted(str(p.relative_to(app)) for p in app.rglob("*") if p.is_file())

        assert list_session_files(ID, root) == plainly_listed()
        rows = (
            (f"list {given.files:,} files", lambda: list_session_files(ID, root), plainly_listed),
            (
                "read 100 bytes",
                lambda: read_session_file(ID, small, root),
                read,
            ),
            (
                "write 1 MiB",
                lambda: write_session_file(ID, "ours", large, root),
                lambda: (app / "plain").write_bytes(large),
            ),
        )
        for name, ours, plain in rows:
            print(against(name, ours, plain, given.rounds))
        archive = root / "session.tar.gz"
        print(f"export them: {timed(lambda: export_session(ID, archive, root)):.2f} s")
        print(f"import them: {timed(lambda: import_session(archive, root)):.2f} s")


if __name__ == "__main__":
    main()
