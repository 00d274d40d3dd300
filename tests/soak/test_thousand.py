"""A thousand notebooks: the runner is killed in the middle, and its memory stays flat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from tests.peak import of_process
from wasm_kernel.frontends.batch.notebooks import METADATA

pytestmark = pytest.mark.soak
NOTEBOOKS = int(os.environ.get("BATCH_NOTEBOOKS", "1000"))
CELLS = (
    "open('/app/log', 'a').write('a')",
    "open('/app/log', 'a').write('b')",
    "open('/app/log').read()",
)
MIB = 1024 * 1024


def command(folder: Path, *more: str) -> list[str]:
    words = ["run", str(folder / "in"), "-o", str(folder / "out"), "--json", *more]
    words += ["--sessions", str(folder / "kept")]
    return [sys.executable, "-P", "-m", "wasm_kernel.frontends.cli.main", *words]


def verdicts(folder: Path) -> dict[str, str]:
    found = {}
    for file in (folder / "out").glob("*.ipynb"):
        found[file.name] = json.loads(file.read_text())["metadata"][METADATA]["verdict"]
    return found


def test_a_thousand_notebooks_and_a_kill_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(NOTEBOOKS):
        cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]  # type: ignore[no-untyped-call]
        book = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
        nbformat.write(book, tmp_path / "in" / f"{number:04}.ipynb")  # type: ignore[no-untyped-call]
    first = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL)
    try:
        while [*verdicts(tmp_path).values()].count("ok") < NOTEBOOKS // 2:
            assert first.poll() is None
            time.sleep(0.5)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    done = {name for name, verdict in verdicts(tmp_path).items() if verdict == "ok"}
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in done}
    ends: dict[str, dict[str, object]] = {}
    sizes: list[int] = []
    with subprocess.Popen(command(tmp_path, "--resume"), stdout=subprocess.PIPE) as second:
        assert second.stdout is not None
        for line in second.stdout:
            event = json.loads(line)
            if event["event"] == "ended":
                assert event["notebook"] not in ends
                ends[event["notebook"]] = event
                if event["notebook"] not in done:
                    sizes.append(of_process(second.pid, "VmRSS"))
    assert second.returncode == 0
    assert set(verdicts(tmp_path).values()) == {"ok"} and len(ends) == NOTEBOOKS
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == times[name] for name in done)
    for file in (tmp_path / "out").glob("*.ipynb"):
        last = json.loads(file.read_text())["cells"][-1]["outputs"][0]["data"]["text/plain"]
        assert last == ["'ab'"], file.name
    early, late = sizes[len(sizes) // 4], sizes[-1]
    print(f"{NOTEBOOKS} notebooks; resident {early / MIB:.0f} MiB early, {late / MIB:.0f} MiB late")
    assert late < early + 24 * MIB
