"""The broker's handlers for the Python guest: they fill the cache, and fetch packages.

An attacker who has taken over the confined process can send these requests. So they hold only names
and versions, which are checked again here, and the name of a folder inside the session's own.
"""

from __future__ import annotations

from collections.abc import Callable

from wasm_kernel.errors import PackageError
from wasm_kernel.folders.private import OpenPrivate
from wasm_kernel.guests.base import (
    CompileInBackground,
    Fetched,
    PrepareGuest,
    fetch_place,
    preparing,
)
from wasm_kernel.guests.python.broker_requests import FetchWheels
from wasm_kernel.linux.broker import Done, Handlers
from wasm_kernel.linux.files import link_or_copy
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import RuntimeType

_PACKAGES_MOST = 100


def broker_handlers(private: OpenPrivate, fetched: Fetched, *, pip: bool = True) -> Handlers:
    """Returns the broker's handlers for the guest of one sandbox; with `pip`, also for wheels."""
    handlers: Handlers = {
        PrepareGuest: preparing(RuntimeType.PYTHON),
        CompileInBackground: _compile_in_background,
    }
    return {**handlers, FetchWheels: _fetching(private, fetched)} if pip else handlers


def _compile_in_background(request: CompileInBackground, _: Task) -> Done:
    from wasm_kernel.engine.cache import Cache
    from wasm_kernel.engine.flavours import named
    from wasm_kernel.guests.python import background

    background.begin(Cache(), named(request.flavour))
    return Done()


def _fetching(private: OpenPrivate, fetched: Fetched) -> Callable[[FetchWheels, Task], Done]:
    def fetch_wheels(request: FetchWheels, task: Task) -> Done:
        from wasm_kernel.guests.python.language import shared_language
        from wasm_kernel.guests.python.packages.pip import Pip

        if len(request.requirements) > _PACKAGES_MOST:
            raise PackageError("these are too many packages.")
        pip = Pip(shared_language(None).files.python_version, fetched)
        with fetch_place(private, request.into) as (place, own), Folder.open(own) as folder:
            pip.download(request.requirements, own, pre=request.pre, task=task)
            for name in folder.names():
                if name.endswith(".whl"):
                    link_or_copy(folder.fd, name, name, place.fd)
        return Done()

    return fetch_wheels
