"""The contract that a guest language fulfils."""

from __future__ import annotations

from typing import Protocol

from wasm_kernel.engine.compiler import Progress
from wasm_kernel.engine.instance import Instance, Surroundings
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.wasi_files.descriptors import OpenFile
from wasm_kernel.wasi_files.preopens import Preopens


class Driver(Protocol):
    """How a language gets into an instance. One driver serves every sandbox of a process."""

    name: str
    turn_source: bytes
    """What the host runs in the guest to begin a turn: always the same."""

    @property
    def image_id(self) -> str:
        """Names the very base image that memory is saved relative to; known after `prepare`."""

    @property
    def image_files(self) -> tuple[OpenFile, ...]:
        """What the base image has open; known after `prepare`."""

    def prepare(self, metered: bool, progress: Progress) -> None:
        """Make everything that takes long, once a machine; quick where it is there already.

        Call it on a guest thread: it runs guests.

        Raises:
            WasmKernelError: it can't be made; the text says what to do.
        """

    def preopens(self, folders: SandboxFolders, policy: ExecutionPolicy) -> Preopens:
        """The folders that a guest sees."""

    def instance(self, around: Surroundings, *, metered: bool) -> Instance:
        """A guest with the base image's memory, in milliseconds, after `prepare`.

        Its open files are not open yet: that is the timeline's to do.
        """
