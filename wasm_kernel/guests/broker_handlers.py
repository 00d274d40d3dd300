"""The broker's handlers for guests: they fill the cache, and fetch packages.

An attacker who has taken over the confined process can send these requests. So they hold only names
and versions, which are checked again here, and the name of a folder inside the session's own. Each
language has a module `broker_handlers` with its own part.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from wasm_kernel.engine.flavours import FlavourName
from wasm_kernel.errors import CompileError, PackageError, host_failures
from wasm_kernel.folders.private import OpenPrivate
from wasm_kernel.guests.base import GuestLanguage, load, prepare_on_own_thread
from wasm_kernel.linux.broker import EmptyReply, Handlers
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import RuntimeType

_FETCH_NAME = re.compile(r"[a-z0-9_]{1,40}")
_PACKAGES_MOST = 100
_SHELL = f"wasm_kernel.guests.{RuntimeType.JAVASCRIPT.value}.shell"


class PrepareGuest(Struct, frozen=True):
    """A request to fill the cache with a guest's files: code of a flavour, and its base image.

    With `shell`, the guest is the shell's.
    """

    flavour: FlavourName
    shell: bool = False


class CompileInBackground(Struct, frozen=True):
    """A request to compile the guest in a process of its own, at low priority.

    The baseline compiler's code is used until then.
    """


class PrepareCodec(Struct, frozen=True):
    """A request to compile a codec into the cache."""

    name: str
    flavour: FlavourName


class FetchPackages(Struct, frozen=True):
    """A request to put packages into a folder within the sandbox's private folder.

    `wanted` are names of the language's registry, which may have versions, such as `rich>=13`;
    `into` is the folder's name; `pre` allows pre-releases.
    """

    wanted: tuple[str, ...]
    into: str
    pre: bool = False


class FetchedPackages(Struct, frozen=True):
    """The reply to `FetchPackages`: the versions of packages, by name; empty if files tell them."""

    versions: Mapping[str, str] = {}


class FetchedBytes:
    """The bytes that one sandbox has fetched so far. The thread that fetches uses it."""

    bytes = 0


@contextlib.contextmanager
def fetch_place(private: OpenPrivate, name: str) -> Iterator[tuple[Folder, Path]]:
    """Opens the folder of a sandbox that a broker puts packages into, and makes a temporary one.

    Programs that open files by path work in the temporary one, where the sandbox's process can't
    put links in their way. Raises `PackageError` if the sandbox has no such folder.
    """
    from tempfile import TemporaryDirectory

    from wasm_kernel.folders.folders import FETCHED

    with contextlib.ExitStack() as held:
        try:
            folder, path = held.enter_context(private())
            if not _FETCH_NAME.fullmatch(name):
                raise FileNotFoundError
            place = held.enter_context(folder.enter(FETCHED, name))
        except OSError:
            raise PackageError("there is no such folder for packages.") from None
        beside = TemporaryDirectory(prefix=".fetched-", dir=path.parent)
        yield place, Path(held.enter_context(beside))


def broker_handlers(
    runtime: RuntimeType | str,
    private: OpenPrivate,
    *,
    pip: bool = True,
    fetched: FetchedBytes | None = None,
) -> Handlers:
    """Returns a broker's handlers for the guest of one sandbox; with `pip`, also to fetch packages.

    `fetched` counts the bytes that the sandbox has fetched so far; by default none. A language's
    part is loaded when it is first needed, so that a broker can be forked before wasmtime is.
    """
    kind, counter = RuntimeType(runtime), fetched or FetchedBytes()
    part = partial(import_module, f"wasm_kernel.guests.{kind.value}.broker_handlers")

    def prepare_guest(request: PrepareGuest, task: Task) -> EmptyReply:
        from wasm_kernel.engine.flavours import FLAVOURS

        shell = request.shell and import_module(_SHELL).ShellLanguage.shared(None)
        language: GuestLanguage = shell or load(kind)
        with host_failures():
            prepare_on_own_thread(language, FLAVOURS[request.flavour], task.report)
        return EmptyReply()

    def compile_in_background(*_: object) -> EmptyReply:
        part().compile_in_background()
        return EmptyReply()

    def fetch(request: FetchPackages, task: Task) -> FetchedPackages:
        if len(request.wanted) > _PACKAGES_MOST:
            raise PackageError("these are too many packages.")
        with fetch_place(private, request.into) as (place, own):
            found: FetchedPackages = part().fetch_packages(request, place, own, task, counter)
        return found

    handlers: Handlers = {
        PrepareGuest: prepare_guest,
        PrepareCodec: prepare_codec,
        CompileInBackground: compile_in_background,
    }
    return {**handlers, FetchPackages: fetch} if pip else handlers


def prepare_codec(request: PrepareCodec, task: Task) -> EmptyReply:
    """Compiles a codec, if the cache lacks it."""
    from wasm_kernel.codecs.table import CODECS
    from wasm_kernel.engine.cache import Cache
    from wasm_kernel.engine.compiler import Compiler
    from wasm_kernel.engine.flavours import FLAVOURS

    if request.name not in CODECS:
        raise CompileError("there is no such codec.")
    with host_failures():
        Compiler(Cache()).module(
            CODECS[request.name].binary, FLAVOURS[request.flavour], task.report
        )
    return EmptyReply()
