"""The broker's part for the Python guest: it compiles in the background, and fetches wheels."""

from __future__ import annotations

from pathlib import Path

from wasm_kernel.guests.broker_handlers import FetchedBytes, FetchedPackages, FetchPackages
from wasm_kernel.linux.files import link_or_copy
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import Task


def compile_in_background() -> None:
    """Begins to compile the guest with the optimizing compiler, in a process of its own."""
    from wasm_kernel.engine.cache import Cache
    from wasm_kernel.guests.python import background

    background.begin(Cache())


def fetch_packages(
    request: FetchPackages, place: Folder, own: Path, task: Task, fetched: FetchedBytes
) -> FetchedPackages:
    """Puts wheels into `place`, by way of the temporary folder `own`."""
    from wasm_kernel.guests.python.language import PythonLanguage
    from wasm_kernel.guests.python.packages.pip import Pip

    pip = Pip(PythonLanguage.shared(None).files.python_version, fetched)
    with Folder.open(own) as folder:
        pip.download(request.wanted, own, pre=request.pre, task=task)
        for name in folder.names():
            if name.endswith(".whl"):
                link_or_copy(folder.fd, name, name, place.fd)
    return FetchedPackages()
