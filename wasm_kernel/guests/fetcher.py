"""Running a program that fetches packages, such as pip or npm, for a cell that waits for it.

The program gets only checked names from the guest, runs in an empty folder, and ends with the
process that started it. Its output is read for a few facts alone.
"""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.broker_handlers import FetchedBytes
from wasm_kernel.linux.task import Task

_POLL_SECONDS = 0.1
_PIECE_BYTES = 65_536
_OUTPUT_CHARACTERS = 200_000
MEMORY_BYTES = 1024**3
"""The most memory that a fetching program may take: it reads hostile files and archives whole."""
BYTES_MOST = 300 * 1024**2
"""The most bytes that one request may fetch, unfinished files among it."""
TOTAL_BYTES = 3 * 1024**3
"""The most bytes that one sandbox may fetch: the program's own cache keeps the fetched files."""
_NO_MEMORY = re.compile(r"MemoryError|out of memory|Allocation failed|ENOMEM")
_FILES_MOST = 100_000
_REASON_CHARACTERS = 2_000  # characters of its output that are read for the reason of a failure
_ADDRESS = re.compile(r"\S+://\S+")
_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\][^\s'\",;]+")


def run_fetcher(
    command: Sequence[str],
    folder: Path,
    task: Task,
    *,
    fetched: FetchedBytes,
    env: Mapping[str, str],
    on_line: Callable[[str], None] = lambda line: None,
) -> tuple[str, int]:
    """Runs a program that fetches packages; returns its output, and its exit status.

    Each argument is ours or checked. `env` is added to this process's own variables. The folder is
    empty and may grow to `BYTES_MOST`. `on_line` gets each line of output. Raises `PackageError` if
    the program was stopped, fetched too much, or needed too much memory.
    """
    left = TOTAL_BYTES - fetched.bytes
    if left <= 0:
        raise PackageError(
            f"{TOTAL_BYTES >> 20:,} MiB were fetched since this session was opened; open it anew "
            "to fetch more."
        )
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    process = subprocess.Popen(  # noqa: S603 - every word is ours or was checked
        command,
        cwd=folder,
        env={**own, **env, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        said = _output(process, folder, task, most=min(BYTES_MOST, left), on_line=on_line)
        if (code := process.wait()) and _NO_MEMORY.search(said):
            most = f"{MEMORY_BYTES >> 20:,} MiB"
            raise PackageError(f"fetching this takes more memory than the {most} allowed.")
        return said, code
    finally:
        fetched.bytes += _size(folder)[0]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _output(
    process: subprocess.Popen[bytes],
    folder: Path,
    task: Task,
    *,
    most: int,
    on_line: Callable[[str], None],
) -> str:
    assert process.stdout is not None
    said, line, measured = "", "", time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not task.cancelled:
            if time.monotonic() - measured > 1:
                measured = time.monotonic()
                _check_size(folder, most)
            if not selector.select(_POLL_SECONDS):
                continue
            data = os.read(process.stdout.fileno(), _PIECE_BYTES)
            if not data:
                _check_size(folder, most)
                return said
            text = data.decode("utf-8", "replace")
            said = (said + text)[-_OUTPUT_CHARACTERS:]
            *whole, line = (line + text)[-_OUTPUT_CHARACTERS:].split("\n")
            for each in whole:
                on_line(each)
    raise PackageError("the fetching of packages was stopped.")


def _check_size(folder: Path, most: int) -> None:
    """Raises `PackageError` if a folder holds too much."""
    size, count = _size(folder)
    if size > most:
        raise PackageError(f"this would fetch more than {most / 2**20:,.0f} MiB.")
    if count > _FILES_MOST:
        raise PackageError(f"this would fetch more than {_FILES_MOST:,} files.")


def _size(folder: Path) -> tuple[int, int]:
    """Returns how many bytes and files a folder holds; stops counting at too many files."""
    size = count = 0
    for here, folders, names in os.walk(folder):
        count += len(folders) + len(names)
        for name in names:
            with suppress(OSError):
                size += Path(here, name).lstat().st_size
        if count > _FILES_MOST:
            break
    return size, count


def plain(text: str) -> str:
    """Returns a program's output without addresses, paths and control characters."""
    text = _PATH.sub("…", _ADDRESS.sub("the package index", text[:_REASON_CHARACTERS]))
    return "".join(c if c.isprintable() else " " for c in text)[:600] or "it did not say why."
