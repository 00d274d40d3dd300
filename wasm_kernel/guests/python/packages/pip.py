"""Finding and fetching packages by pip, with the user's own configuration, and wheels only.

A source distribution is never fetched, so no build code of a package ever runs here. pip is told to
take universal wheels for the guest's Python, and no dependencies, which are read from the wheels
(`requirements.py`). pip runs in an empty folder, and its output is read for a few facts alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.broker_handlers import FetchedBytes
from wasm_kernel.guests.fetcher import plain, run_fetcher
from wasm_kernel.guests.python.packages.requirements import requirement
from wasm_kernel.linux.broker import tied_command
from wasm_kernel.linux.task import Task

_DOWNLOAD = (
    *("download", "--no-deps", "--only-binary=:all:", "--implementation", "py", "--abi", "none"),
    *("--platform", "any", "--dest", "."),
)
_PROBE = ("install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:")
_PROBE_SECONDS = 60.0
_PIP = """
import runpy, sys
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_QUIET = {
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_COLOR": "1",
    "PIP_PROGRESS_BAR": "off",
}
_FOUND = re.compile(
    r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?([\w.+!-]+\.whl)(?: \(([\d.]+ ?\w?B)\))?"
)
_NONE = re.compile(
    r"No matching distribution found for ([A-Za-z0-9._-]+)|Cannot install ([A-Za-z0-9._-]+)"
)
_UNREACHED = re.compile(r"Retrying \(Retry|connection broken|Max retries|Temporary failure in name")
_OTHER_PYTHON = re.compile(r"Requires-Python|require a different python version")


class Pip:
    """Fetches with the pip that is installed beside the kernel. Any thread may call it."""

    def __init__(self, python_version: str, fetched: FetchedBytes | None = None) -> None:
        self._version = ".".join(python_version.split(".")[:2])
        self._fetched = fetched or FetchedBytes()

    def download(self, requirements: Sequence[str], folder: Path, *, pre: bool, task: Task) -> None:
        """Puts a universal wheel for each requirement, such as `rich>=13`, into an empty folder.

        Raises `PackageError`, in words, if one can't be fetched, or `task` was cancelled.
        """
        wanted = [str(requirement(each)) for each in requirements]
        words = [*_DOWNLOAD, "--python-version", self._version, *(["--pre"] if pre else [])]
        said, code = self._run([*words, "--", *wanted], folder, task)
        if code:
            raise PackageError(self._why(said, wanted, folder, task))

    def _why(self, said: str, wanted: Sequence[str], folder: Path, task: Task) -> str:
        """Returns the reason of a failure, without a path or an address of the host."""
        if "No module named pip" in said:
            return "pip is not installed beside the kernel. Install it there to use %pip."
        if _UNREACHED.search(said):
            return "the package index can't be reached from the kernel's machine."
        lacking = _NONE.search(said)
        if lacking is None:
            errors = [line[7:] for line in said.splitlines() if line.startswith("ERROR: ")]
            return f"pip could not fetch {', '.join(wanted)}: {plain(' '.join(errors[-3:]))}"
        name = lacking[1] or lacking[2]
        if _OTHER_PYTHON.search(said):
            return f"{name} is not there for Python {self._version}, which the sandbox runs."
        needed = next((each for each in wanted if each.startswith(name)), name)
        if self._is_compiled(needed, folder, task):
            return f"{name} needs compiled code, which the sandbox can't run."
        ruled_out = "be one that a constraint of pip's configuration excludes, "
        return (
            f"{needed} has no pure-Python wheel that pip finds. It may be misspelt, have no such "
            f"version, {ruled_out if '(constraint)' in said else ''}or be there as source code "
            "only, which is never built here."
        )

    def _is_compiled(self, needed: str, folder: Path, task: Task) -> bool:
        """Returns whether there is a wheel for this machine, if there is no universal one.

        The answer is yes as soon as pip begins to fetch one, as some are larger than the limit.
        """
        probe = _Probe(task)
        try:
            return not self._run([*_PROBE, "--", needed], folder, probe)[1]
        except PackageError:
            return probe.begun

    def _run(self, words: Sequence[str], folder: Path, task: Task) -> tuple[str, int]:
        """Runs pip; returns its output and exit status. Reports each file that it fetches."""

        def report(line: str) -> None:
            if found := _FOUND.match(line):
                task.report(f"Fetching {found[1]}" + (f" ({found[2]})" if found[2] else ""))

        command = [*tied_command(_PIP), *words]
        return run_fetcher(command, folder, task, fetched=self._fetched, env=_QUIET, on_line=report)


class _Probe:
    """A task that is over as soon as pip begins to fetch something, or after some time."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._end = time.monotonic() + _PROBE_SECONDS
        self.begun = False

    @property
    def cancelled(self) -> bool:
        return self.begun or self._task.cancelled or time.monotonic() > self._end

    def report(self, _: str) -> None:
        self.begun = True
