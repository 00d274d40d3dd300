"""The programs that run kernels find this one, and get from it what they expect."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from jupyter_client.manager import KernelManager
from papermill.exceptions import PapermillExecutionError

from tests.end_to_end.real_kernel import RealKernel
from tests.faces import completed

KERNEL = "wasm-python"
SECONDS = 120

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # papermill's own


def notebook(folder: Path, *cells: str, tags: dict[int, str] | None = None) -> Path:
    """A notebook of code cells, some with a tag."""
    made = [nbformat.v4.new_code_cell(source) for source in cells]  # type: ignore[no-untyped-call]
    for at, tag in (tags or {}).items():
        made[at].metadata["tags"] = [tag]
    book = nbformat.v4.new_notebook(cells=made)  # type: ignore[no-untyped-call]
    book.metadata["kernelspec"] = {"name": KERNEL, "display_name": "x", "language": "python"}
    path = folder / "book.ipynb"
    nbformat.write(book, path)  # type: ignore[no-untyped-call]
    return path


def jupyter(*words: str, stdin: str | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a `jupyter` command to its end."""
    return completed([sys.executable, "-m", *words], input=stdin, cwd=cwd)


def streams(cell: Any) -> str:
    return "".join(o["text"] for o in cell["outputs"] if o["output_type"] == "stream")


def test_papermill_hands_parameters_over_and_tells_which_cell_failed(tmp_path: Path) -> None:
    cells = ("x = 1", "print(x * 2, name)", "raise ValueError('in the sandbox')", "print('never')")
    book, out = notebook(tmp_path, *cells, tags={0: "parameters"}), tmp_path / "out.ipynb"
    with pytest.raises(PapermillExecutionError, match="in the sandbox") as failed:
        papermill.execute_notebook(str(book), str(out), {"x": 21, "name": "é"}, progress_bar=False)
    assert failed.value.exec_count == 4  # papermill inserts a cell of parameters
    executed = nbformat.read(out, as_version=4)  # type: ignore[no-untyped-call]
    said = [streams(cell) for cell in executed.cells if cell.cell_type == "code"]
    assert "42 é\n" in said
    assert "never\n" not in said


def test_papermill_stops_a_cell_at_its_time_limit(tmp_path: Path) -> None:
    book = notebook(tmp_path, "kept = 1", "while True: pass")
    with pytest.raises(Exception, match="timed out"):
        papermill.execute_notebook(
            str(book), str(tmp_path / "out.ipynb"), execution_timeout=1, progress_bar=False
        )
    assert "crashed" not in (tmp_path / "out.ipynb").read_text()


def test_jupyter_run_runs_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint('ran on', sys.platform)\nprint('bad', file=sys.stderr)\n"
        "print(dict(os.environ))\n"
    )
    done = jupyter("jupyter_client.runapp", f"--kernel={KERNEL}", script.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ran on wasi" in done.stdout
    assert "bad" in done.stderr
    assert "HOME" in done.stdout
    assert "secret" not in done.stdout  # the environment of the host stays there


def test_jupyter_console_holds_a_conversation(tmp_path: Path) -> None:
    said = "x = 20\nprint(x + 22)\n%checkpoints\nx +\nexit\n"
    options = ("--simple-prompt", f"--kernel={KERNEL}")
    done = jupyter("jupyter_console", *options, stdin=said, cwd=tmp_path)
    assert "42" in done.stdout, done.stderr
    assert "the beginning" in done.stdout
    assert "SyntaxError" in done.stdout + done.stderr


def test_a_cell_runs_over_ipc_and_an_encrypted_transport() -> None:
    with tempfile.TemporaryDirectory(prefix="wk-") as folder:  # a socket's path has 107 bytes
        file = str(Path(folder, "kernel.json"))
        manager = KernelManager(kernel_name=KERNEL, transport="ipc", connection_file=file)
        with RealKernel(manager=manager) as kernel:
            assert kernel.run("1 + 1").value == "2"
    manager = KernelManager(kernel_name=KERNEL, transport_encryption="required")
    with RealKernel(manager=manager) as kernel:
        assert kernel.run("1 + 1").value == "2"
    assert manager.curve_publickey
