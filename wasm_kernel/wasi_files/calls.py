"""The guest's file calls, answered by the host.

wasmtime gets no folder at all: the guest reaches the disk only through these calls. They walk every
path by descriptor (`paths.py`), note changes in the workspace (`changes.py`), and refuse growth
beyond the quota (`quota.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import BoundGuest, Handler, Import, OutOfBounds
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.content import ContentCalls
from wasm_kernel.wasi_files.edits import EditCalls
from wasm_kernel.wasi_files.file_history import FileHistory
from wasm_kernel.wasi_files.listing import Listings
from wasm_kernel.wasi_files.lookups import LookupCalls
from wasm_kernel.wasi_files.open_files import Device, OpenFile, OpenFiles
from wasm_kernel.wasi_files.opening import OpeningCalls, Reopener
from wasm_kernel.wasi_files.path_walk import Outside
from wasm_kernel.wasi_files.paths import GuestPaths
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, Preopens, Refused
from wasm_kernel.wasi_files.quota import Quota

_LOOKS = ("path_filestat_get", "path_filestat_set_times", "path_readlink")
_OPEN, _OPEN_FLAGS = "path_open", 4  # a call, and the index of its argument `oflags`
_CALLS = sorted(abi.SHAPES.keys() - {"clock_time_get", "poll_oneoff"})


class WasiFiles:
    """The file calls of one instance: a `HostFunctions`. Only the guest's thread uses it; close it.

    `changes` and `history` outlive the instance. `devices` maps descriptors below those of the
    preopened folders to the streams behind them. With `sorts`, folders are listed by name.
    """

    imports: Mapping[Import, str] = {(abi.WASI, name): abi.SHAPES[name] for name in _CALLS}

    def __init__(
        self,
        preopens: Preopens,
        changes: FileChanges,
        quota: Quota,
        history: FileHistory,
        *,
        open_files: int,
        should_stop: Callable[[], bool],
        devices: Mapping[int, Device],
        sorts: bool = False,
    ) -> None:
        self._preopens = preopens
        self._changes = changes
        self._quota = quota
        self._history = history
        self._should_stop = should_stop
        self._open_files = OpenFiles(preopens, open_files, quota, changes, devices)
        self._listings = Listings(sorts=sorts)
        self._reopener = Reopener(preopens, self._open_files, history)

    def bind(self, guest: BoundGuest) -> Mapping[Import, Handler]:
        """Returns the handlers for a guest."""
        memory, files = guest.memory, self._open_files
        shared = (
            memory,
            GuestPaths(self._preopens, memory, files),
            files,
            self._listings,
            self._changes,
            self._quota,
            self._history,
            self._should_stop,
        )
        parts = [kind(*shared) for kind in (LookupCalls, ContentCalls, OpeningCalls, EditCalls)]
        handlers = {name: handler for part in parts for name, handler in part.handlers().items()}
        return {(abi.WASI, name): _guarded(name, handlers[name]) for name in _CALLS}

    def folders(self) -> dict[str, int]:
        """Returns the descriptors of the fixed folders, by guest path."""
        return {
            each.guest: FIRST_DESCRIPTOR + index for index, each in enumerate(self._preopens.fixed)
        }

    def begin_turn(self) -> None:
        """Begins a turn: no limit was met in it."""
        self._quota.begin_turn()

    @property
    def limit_met(self) -> str:
        """The name of the quota's limit that this turn has met, empty for none."""
        return self._quota.limit_met

    def opened(self) -> tuple[OpenFile, ...]:
        """Returns records of the open files, between turns."""
        return self._reopener.save()

    def reopen(self, files: Sequence[OpenFile]) -> list[OpenFile]:
        """Opens files again for memory that has their descriptors; returns those that failed."""
        return self._reopener.reopen(files)

    def close(self) -> None:
        """Closes the guest's open files. Safe to call twice."""
        self._listings.clear()
        self._open_files.close()


def _guarded(name: str, handler: Handler) -> Handler:
    """Returns a handler that answers with an error number for each refusal and error.

    A file outside of the guest's folders is missing to the guest, as programs expect.
    """

    def guarded(*args: int) -> int:
        try:
            return handler(*args)
        except Outside as outside:
            opens = name == _OPEN and not args[_OPEN_FLAGS] & abi.O_CREAT
            return abi.ENOENT if opens or name in _LOOKS else outside.errno
        except Refused as refused:
            return refused.errno
        except OutOfBounds:
            return abi.EFAULT
        except OSError as problem:
            return abi.errno_of(problem)
        except (OverflowError, ValueError):
            return abi.EINVAL  # a number or a name that system calls don't take

    return guarded
