"""Whether notebooks give the same kinds of output here as under ipykernel.

    python -m tests.foreign.compare_notebooks FOLDER --native PYTHON [--keep FOLDER]

Every notebook of FOLDER is executed twice: by ipykernel in the environment of PYTHON, which should
have the packages of the guest, and by our kernel in this environment. Cells that fail do not stop
a notebook. The table counts the cells whose kinds of output are the same; each other cell follows
with both sides. The command ends with status 1 if there is one.
"""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NATIVE, OURS = "compare-native", "compare-ours"
CELL_SECONDS = 900

Notebook = Any


@dataclass(frozen=True)
class Difference:
    """A code cell, counted from 1, whose kinds of output differ."""

    number: int
    source: str
    native: str
    ours: str


@dataclass(frozen=True)
class Comparison:
    """One notebook under both kernels; the times are in seconds."""

    name: str
    cells: int
    differences: tuple[Difference, ...]
    native_seconds: float
    our_seconds: float


def kinds(cell: Notebook) -> str:
    """The kinds of a cell's output: its streams, then MIME types and errors in their order.

    Streams come first and once each, since how they are cut and interleaved is chance.
    """
    outputs = cell.get("outputs", [])
    streams = {each["name"] for each in outputs if each["output_type"] == "stream"}
    others = [_kind(each) for each in outputs if each["output_type"] != "stream"]
    return ", ".join([*sorted(streams), *others]) or "nothing"


def _kind(output: Notebook) -> str:
    if output["output_type"] == "error":
        return str(output["ename"])
    return f"{output['output_type']}({' '.join(sorted(output['data']))})"


def execute(path: Path, kernel: str) -> Notebook:
    """The notebook at `path` after every cell of it ran, in its own folder."""
    notebook: Notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name=kernel,
        timeout=CELL_SECONDS,
        startup_timeout=CELL_SECONDS,
        allow_errors=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    return client.execute()


def compare(path: Path, keep: Path | None) -> Comparison:
    """Run the notebook at `path` twice; its executed copies go to `keep`."""
    begun = time.monotonic()
    native = execute(path, NATIVE)
    between = time.monotonic()
    ours = execute(path, OURS)
    ended = time.monotonic()
    if keep is not None:
        nbformat.write(native, keep / f"{path.stem}.native.ipynb")
        nbformat.write(ours, keep / f"{path.stem}.ours.ipynb")
    pairs = [
        (theirs, own)
        for theirs, own in zip(native.cells, ours.cells, strict=True)
        if theirs.cell_type == "code"
    ]
    differences = tuple(_differences(pairs))
    return Comparison(path.stem, len(pairs), differences, between - begun, ended - between)


def _differences(pairs: Sequence[tuple[Notebook, Notebook]]) -> Iterator[Difference]:
    for number, (native, ours) in enumerate(pairs, start=1):
        if kinds(native) != kinds(ours):
            yield Difference(number, native.source, kinds(native), kinds(ours))


def install_kernels(folder: Path, native: str) -> None:
    """Make both kernels known to this process, under names of their own."""
    ours_env = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "WASM_KERNEL_WORKSPACE_ROOT": str(folder / "sessions"),
    }
    _install(folder, NATIVE, [native, "-m", "ipykernel_launcher"], {})
    _install(folder, OURS, [sys.executable, "-m", "wasm_kernel"], ours_env)
    os.environ["JUPYTER_PATH"] = str(folder)


def _install(folder: Path, name: str, command: list[str], env: dict[str, str]) -> None:
    place = folder / "kernels" / name
    place.mkdir(parents=True)
    spec = {
        "argv": [*command, "-f", "{connection_file}"],
        "display_name": name,
        "language": "python",
        "env": env,
    }
    (place / "kernel.json").write_text(json.dumps(spec))


def row(found: Comparison) -> str:
    """One line of the table."""
    same = found.cells - len(found.differences)
    times = f"{found.native_seconds:7.1f} {found.our_seconds:7.1f}"
    return f"{found.name:44} {same:4} of {found.cells:3} {times}"


def details(found: Comparison) -> Iterator[str]:
    """What differs in one notebook."""
    for each in found.differences:
        first = (each.source.strip().splitlines() or [""])[0]
        yield f"  {found.name}, code cell {each.number}: {first[:70]}"
        yield f"    ipykernel: {each.native}"
        yield f"    ours:      {each.ours}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all notebooks of a folder, print what was found, and say whether all is the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--native", required=True, help="the Python that has ipykernel")
    parser.add_argument("--keep", type=Path, help="where the executed notebooks go")
    options = parser.parse_args(arguments)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    found = []
    print(f"{'notebook':44} {'same kinds':>11} {'native s':>7} {'ours s':>7}")
    with TemporaryDirectory(ignore_cleanup_errors=True) as place:
        install_kernels(Path(place), options.native)
        for path in sorted(options.folder.resolve().glob("*.ipynb")):
            found.append(compare(path, options.keep))
            print(row(found[-1]), flush=True)
    differing = [each for each in found if each.differences]
    print(f"{len(found) - len(differing)} of {len(found)} notebooks have the same kinds of output.")
    print("\n".join(line for each in differing for line in details(each)))
    return 1 if differing else 0


if __name__ == "__main__":
    # nbclient wants a policy that Windows does not have by default
    if sys.platform == "win32":
        asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
    sys.exit(main())
