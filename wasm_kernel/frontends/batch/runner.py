"""`run_notebooks`: runs many notebooks, some at a time, each in its own sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wasm_kernel.frontends.batch.local_run import check, locked, run_sources
from wasm_kernel.frontends.batch.notebook_run import RunSettings
from wasm_kernel.frontends.batch.notebooks import find_sources
from wasm_kernel.frontends.batch.outcome import (
    BatchError,
    Budgets,
    Outcome,
    items_in,
    out_in,
    paths_in,
    require,
)
from wasm_kernel.frontends.batch.packages import installed, read_requirements
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.policy import NetworkMode, user_path
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.host_function import Function, HostFunction
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.root import SessionsRoot


def run_notebooks(
    notebooks: Sequence[Path | str],
    out: Path | str,
    *,
    workspace_root: Path | str = WORKSPACE_ROOT,
    private_root: Path | str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    budgets: Budgets | None = None,
    folder: str = "read",
    mounts: Sequence[str] = (),
    network: Sequence[str] = (),
    record: Path | str | None = None,
    replay: Path | str | None = None,
    inputs: Sequence[Path | str] = (),
    requirements: Sequence[Path | str] = (),
    parameters: Mapping[str, Any] | None = None,
    resume: bool = False,
    compare: bool = False,
    ignored: Sequence[str] = (),
    deterministic: bool = False,
    hooks: Mapping[str, Callable[..., Any]] | None = None,
    functions: Iterable[Function | HostFunction] = (),
    cluster: str | int | None = None,
    shared: Path | str | None = None,
) -> list[Outcome]:
    """Runs notebooks in sandboxes, and writes each executed notebook after each of its cells.

    The notebooks' own kernelspecs are ignored. Ctrl-C ends the running ones; all that is done is
    kept.

    Args:
        notebooks: Files, folders, globs, or `-` for standard input; `~` is the user's home, as in
            all paths here.
        out: The folder for executed notebooks, or the file for a single one.
        workspace_root: The folder that holds the sessions in which notebooks run.
        private_root: The folder that holds their private folders; one of the user's by default.
        jobs: How many run at a time; by default as many as this process has processors.
        progress: Gets the events of the run.
        budgets: The limits of each notebook.
        folder: The cells' access to the notebook's folder: `none`, `read` or `write`.
        mounts: Further folders of the host that cells see, as `HOST:GUEST` or `HOST:GUEST:rw`.
        network: Hosts that cells may send requests to, as `https://HOST/PATH`; by default none.
        record: A folder that keeps these requests, and calls of `functions`, with their answers, in
            a subfolder a notebook.
        replay: A folder of an earlier `record` that answers them, in place of hosts and functions.
        inputs: Files that are copied into `/app` first.
        requirements: Requirements files, whose packages notebooks in Python get.
        parameters: Values for the cell that is tagged `parameters`.
        resume: Whether to go on where an earlier run with the same `out` ended.
        compare: Whether outputs must equal the notebooks' stored ones.
        ignored: The parts of outputs that may differ, some of `comparing.IGNORABLE`.
        deterministic: Whether two runs give the same outputs, as far as possible.
        hooks: nbclient's hooks of cells, by their names, such as `on_cell_executed`; not on a
            cluster. An error of a hook ends its notebook.
        functions: Functions of this program that cells may call, as `Sandbox.offer_functions` says;
            not on a cluster. Notebooks that run at the same time call them from several threads.
        cluster: The address of a Dask scheduler whose workers run the notebooks, or how many
            workers to start on this machine; by default none.
        shared: A folder that all of its workers share; by default there is none.

    Returns:
        The outcome of each notebook, in their order.

    Raises:
        BatchError: the run can't begin, and nothing was run.
        BatchStopped: `out` can't be written any more.
        PolicyError: a budget is not valid.
        TypeError, ValueError: a function can't be offered.
    """
    sources = find_sources(paths_in("notebooks", notebooks), out_in(out))
    kept = replay if record is None else record
    settings = RunSettings(
        root=SessionsRoot(workspace_root, private_root),
        budgets=budgets or Budgets(),
        folder=folder,
        mounts=items_in("mounts", mounts),
        network=items_in("network", network),
        network_mode=_mode_of(record, replay),
        exchanges=None if kept is None else user_path(kept),
        inputs=tuple(user_path(each) for each in paths_in("inputs", inputs)),
        parameters=dict(parameters or {}),
        resume=resume,
        compare=compare,
        ignored=items_in("ignored", ignored),
        deterministic=deterministic,
        hooks=dict(hooks or {}),
        functions=Functions(functions),
        shared="" if shared is None else str(user_path(shared)),
    )
    _check_place(settings, jobs, cluster)
    if cluster is not None:
        require("A cluster", "distributed", *(["cryptography"] if isinstance(cluster, int) else []))
    told, words = progress or Progress(), read_requirements(requirements)
    if cluster is None:
        if words:  # before they are fetched: the run may not be able to begin
            check(sources, settings)
        with installed(settings, words) as with_packages:
            return run_sources(sources, with_packages, jobs, told)
    from wasm_kernel.frontends.batch.cluster import run_on_cluster

    check(sources, settings)
    with locked(sources):
        return run_on_cluster(sources, settings, words, told, cluster)


def _mode_of(record: Path | str | None, replay: Path | str | None) -> str:
    """Returns the policy's `network_mode`; raises `BatchError` if both folders are named."""
    if record is not None and replay is not None:
        raise BatchError("A run records requests or replays them, not both. Nothing was run.")
    if record is not None:
        return NetworkMode.RECORD.value
    return NetworkMode.LIVE.value if replay is None else NetworkMode.REPLAY.value


def _check_place(settings: RunSettings, jobs: int | None, cluster: str | int | None) -> None:
    """Raises `BatchError` for options that a cluster lacks, or that only a cluster has."""
    if cluster is None:
        if settings.shared:
            raise BatchError("A shared folder is a cluster's, and none is named. Nothing was run.")
        return
    if isinstance(cluster, int) and cluster < 1:
        raise BatchError(f"A cluster has at least 1 worker, not {cluster}. Nothing was run.")
    absent = {
        "jobs: each worker runs as many as it has threads": jobs is not None,
        "hooks": bool(settings.hooks),
        "functions, as its workers are other programs": bool(settings.functions.offered),
        "record or replay": settings.exchanges is not None,
        "folder=write: its workers have nothing of the notebook's folder": (
            settings.folder == "write"
        ),
    }
    if named := [what for what, is_wanted in absent.items() if is_wanted]:
        raise BatchError(f"On a cluster there is no {named[0]}. Nothing was run.")
