"""The command `wasm-kernel run` and its options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import PolicyError, WasmKernelError
from wasm_kernel.policy import size_of
from wasm_kernel.service import fork_process
from wasm_kernel.service.named_functions import (
    add_functions,
    add_repeated,
    named_functions,
    path_of,
)

if TYPE_CHECKING:
    from wasm_kernel.frontends.batch.outcome import Budgets, Outcome
    from wasm_kernel.frontends.batch.reporting import Progress

_USAGE = 2
_PASSED_ON = (
    *("jobs", "folder", "mounts", "network", "record", "replay", "inputs", "requirements"),
    *("resume", "compare", "ignored", "deterministic", "shared"),
)
"""The options that are arguments of `run_notebooks` by the same names."""
_ABOUT = (
    "Runs notebooks in sandboxes, and writes each one, as executed, after each of its cells. The "
    "status is 0 if all are ok, 1 if one is not, 2 if nothing was run."
)


def add_run(commands: Any, root: Callable[[], Path]) -> None:
    """Adds the command to those of `wasm-kernel`; `root` returns the default sessions' folder."""
    parser = commands.add_parser("run", help="run untrusted notebooks", description=_ABOUT)
    add, repeat = parser.add_argument, partial(add_repeated, parser)
    add("notebooks", nargs="+", metavar="NOTEBOOK", help=_NOTEBOOKS)
    add("-o", "--out", required=True, metavar="OUT", help=_OUT)
    repeat("-p --parameter", ("NAME", "VALUE"), "a value for the cell tagged parameters", nargs=2)
    repeat("-f --parameters", "FILE", "a YAML file of such values", type=path_of)
    add("--resume", action="store_true", help="go on where an earlier run into OUT ended")
    add("--folder", choices=("none", "read", "write"), default="read", help=_FOLDER)
    repeat("--mount", "HOST:GUEST", _MOUNT, dest="mounts")
    repeat("--network", "URL", _NETWORK)
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--record", type=path_of, metavar="FOLDER", help=_RECORD)
    add_replay(kept)
    add("--deterministic", action="store_true", help=_DETERMINISTIC)
    add_functions(parser)
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument("--cluster", metavar="ADDRESS", help=_CLUSTER)
    workers.add_argument("--local-cluster", type=int, metavar="N", help=_LOCAL_CLUSTER)
    add(
        "--shared",
        type=path_of,
        metavar="FOLDER",
        help="a folder that all of its workers share",
    )
    add("--compare", action="store_true", help=_COMPARE)
    repeat("--ignore", None, "a part of outputs that may differ", choices=_PARTS, dest="ignored")
    add_reports(parser)
    add("--html", type=path_of, metavar="FILE", help="also write a page with links and figures")
    add_running(parser)
    parser.set_defaults(run=lambda options: guarded(lambda: _run(options, root)))


_NOTEBOOKS = "a file, a folder, a glob, or - for standard input"
_OUT = "the folder for executed notebooks, or the file for a single one"
_FOLDER = "what cells see of the notebook's folder; by default read"
_MOUNT = "a further folder that cells see, read-only unless :rw follows"
_NETWORK = "a host that cells may send requests to, such as https://example.org"
_RECORD = "keep requests and calls of functions, with their answers, in a folder"
_REPLAY = "answer them from a folder of an earlier --record, without network and functions"
_DETERMINISTIC = "fixed random numbers, a clock that moves by steps, sorted folders"
_CLUSTER = "run on the workers of this Dask scheduler"
_LOCAL_CLUSTER = "run on N Dask workers of this machine"
_COMPARE = "fail notebooks whose outputs are not those that they were stored with"
_PARTS = ("images", "counts", "addresses", "metadata")
_JOBS = "how many at a time; by default one a processor"
_INPUT = "a file that is copied into /app first"
_REQUIREMENTS = "a requirements file, whose packages notebooks in Python have"


def add_replay(parser: Any) -> None:
    """Adds the option for recorded answers."""
    parser.add_argument("--replay", type=path_of, metavar="FOLDER", help=_REPLAY)


def add_running(parser: argparse.ArgumentParser) -> None:
    """Adds the options about running notebooks, which several commands share."""
    add, repeat = parser.add_argument, partial(add_repeated, parser)
    add("--jobs", type=int, metavar="N", help=_JOBS)
    repeat("--input", "FILE", _INPUT, type=path_of, dest="inputs")
    repeat("-r --requirements", "FILE", _REQUIREMENTS, type=path_of)
    add("--sessions", type=path_of, metavar="FOLDER", help="the folder of the notebooks' sessions")
    for field, (name, kind, about) in _BUDGETS.items():
        add(name, dest=field, type=kind, metavar=_METAVARS[kind], help=about)


def add_reports(parser: argparse.ArgumentParser) -> None:
    """Adds the options for reports."""
    about = "write one JSON object a line instead of words"
    parser.add_argument("--json", action="store_true", help=about)
    parser.add_argument("--junit", type=path_of, metavar="FILE", help="also write JUnit XML")


def size(text: str) -> int:
    """Returns a number of bytes."""
    try:
        return size_of(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


_METAVARS: dict[Any, str] = {float: "SECONDS", int: "NUMBER", size: "SIZE"}
_BUDGETS: dict[str, tuple[str, Any, str]] = {
    "cell_seconds": ("--cell-seconds", float, "the most that a cell may take"),
    "notebook_seconds": ("--notebook-seconds", float, "the most that a notebook may take"),
    "memory_bytes": ("--memory", size, "the most memory that a notebook may take, such as 512M"),
    "fuel": ("--fuel", int, "the most fuel that a cell may burn, roughly one an instruction"),
    "output_bytes": ("--output", size, "the most that a notebook may show; by default 64M"),
    "disk_bytes": ("--disk", size, "the most that a notebook's files may hold"),
}


def budgets_of(options: argparse.Namespace, others: Budgets | None = None) -> Budgets:
    """Returns the budgets in `options`, else those of `others`; raises `PolicyError`."""
    from msgspec.structs import replace

    from wasm_kernel.frontends.batch.outcome import Budgets

    named = {name: getattr(options, name) for name in _BUDGETS}
    given = {name: value for name, value in named.items() if value is not None}
    try:
        return replace(others or Budgets(), **given)
    except PolicyError as problem:
        raise PolicyError(_BUDGETS[problem.field][0], problem.rule) from None


def roots_of(options: argparse.Namespace, root: Callable[[], Path]) -> tuple[Path, Path | None]:
    """Returns the sessions' folder, and the folder of private folders if one is named."""
    if options.sessions is None:
        return root(), None
    return options.sessions / "sessions", options.sessions / "private"


@contextmanager
def progress_of(options: argparse.Namespace) -> Iterator[Progress]:
    """Returns the display of a run's progress: a table on a terminal, lines elsewhere."""
    from wasm_kernel.frontends.batch.reporting import JsonLines, Lines

    if options.json:
        yield JsonLines(sys.stdout)
    elif sys.stdout.isatty() and find_spec("rich") is not None:
        from wasm_kernel.frontends.batch.live_table import LiveTable

        table = LiveTable()
        with table.live:
            yield table
    else:
        yield Lines(sys.stdout)


def check_reports(options: argparse.Namespace, *files: Path) -> None:
    """Raises `BatchError` if a report that was asked for could not be written after the run."""
    from wasm_kernel.frontends.batch.outcome import require
    from wasm_kernel.frontends.batch.report_files import check_report

    if options.junit is not None:
        require("--junit", "junitparser")
        check_report(options.junit)
    for file in files:
        check_report(file)


def guarded(command: Callable[[], int]) -> int:
    """Returns a command's status; prints the error of one that can't begin or go on."""
    fork_process.start_early()
    from wasm_kernel.frontends.batch.outcome import BatchStopped

    try:
        return command()
    except WasmKernelError as problem:
        print(f"wasm-kernel: {problem}", file=sys.stderr)
        return 1 if isinstance(problem, BatchStopped) else _USAGE


def _run(options: argparse.Namespace, root: Callable[[], Path]) -> int:
    from wasm_kernel.frontends.batch.parameters import read_parameters
    from wasm_kernel.frontends.batch.runner import run_notebooks

    check_reports(options, *filter(None, [options.html]))
    workspace_root, private_root = roots_of(options, root)
    are_given = options.parameter or options.parameters
    parameters = read_parameters(options.parameters, options.parameter) if are_given else {}
    with progress_of(options) as progress:
        outcomes = run_notebooks(
            options.notebooks,
            options.out,
            workspace_root=workspace_root,
            private_root=private_root,
            progress=progress,
            budgets=budgets_of(options),
            parameters=parameters,
            functions=named_functions(options.functions),
            cluster=options.local_cluster if options.cluster is None else options.cluster,
            **{name: getattr(options, name) for name in _PASSED_ON},
        )
    return _write_reports(options, outcomes)


def _write_reports(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> int:
    """Writes the reports of a run; returns the command's status."""
    from wasm_kernel.frontends.batch.report_files import junit_report, page, write_reports
    from wasm_kernel.frontends.batch.reporting import summary

    reports: dict[Path, Callable[[], bytes]] = {}
    if options.junit is not None:
        reports[options.junit] = partial(junit_report, outcomes)
    if options.html is not None:
        reports[options.html] = partial(page, options.html, outcomes)
    are_written = write_reports(reports)
    if not options.json:
        print(summary(outcomes))
    return int(not (are_written and all(each.is_complete for each in outcomes)))
