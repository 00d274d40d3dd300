"""The packages of a run (`--requirements`): installed once, then copied into all sessions.

They are installed as by a cell's `%pip`, in a sandbox behind both walls, since an index sends
untrusted code.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from wasm_kernel.errors import PackageError
from wasm_kernel.frontends.batch.batch_session import BatchSession
from wasm_kernel.frontends.batch.local_run import run_folder, run_sources
from wasm_kernel.frontends.batch.notebook_run import RunSettings
from wasm_kernel.frontends.batch.notebooks import source_of
from wasm_kernel.frontends.batch.outcome import BatchError, paths_in
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.guests.python.packages.pip_line import words_of
from wasm_kernel.policy import user_path


def read_requirements(files: Sequence[Path | str]) -> tuple[str, ...]:
    """Returns the content of requirements files, as words of a `%pip install` line.

    Raises `BatchError` if a file can't be read, or asks for more than `%pip` can do.
    """
    try:
        return tuple(
            word for file in paths_in("requirements", files) for word in words_of(user_path(file))
        )
    except PackageError as problem:
        raise BatchError(f"{problem} Nothing was run.") from None


@contextmanager
def installed(settings: RunSettings, words: Sequence[str]) -> Iterator[RunSettings]:
    """Installs packages; yields settings with which each notebook gets them.

    Raises `BatchError` if they can't be installed.
    """
    if not words:
        yield settings
        return
    with run_folder() as place:
        source = source_of(place, "requirements", f"%pip install {shlex.join(words)}")
        session = BatchSession(settings.root, source.output)
        alone = RunSettings(root=settings.root, folder="none", keeps_session=True, lasts=False)
        try:
            (outcome,) = run_sources([source], alone, 1, Progress())
            if not outcome.ok:
                raise BatchError(f"The requirements can't be met. {outcome.why} Nothing was run.")
            yield replace(settings, packages=session)
        finally:
            session.discard()
