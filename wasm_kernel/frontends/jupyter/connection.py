"""Where the kernel listens and how its messages are signed: the connection file."""

from __future__ import annotations

from pathlib import Path

from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.session import Session, new_id_bytes
from traitlets import Bytes, TraitError, Type

from wasm_kernel.errors import WasmKernelError

_LOOPBACK = "127.0.0.1"


class ConnectionFileError(WasmKernelError):
    """The connection file can't be used; no kernel was started."""


class Connection(ConnectionFileMixin):
    """The kernel's side of a connection file; the main thread's own.

    A file that is there is read; one that is not is written, for its owner alone, and removed at
    the end.
    """

    curve_publickey = Bytes(allow_none=True, default_value=None)
    curve_secretkey = Bytes(allow_none=True, default_value=None)
    blocking_class = Type(None, klass=object, help="A kernel makes no clients: none is imported.")

    def _ip_default(self) -> str:
        """This machine alone. Jupyter looks the same address up with psutil, which takes long, and
        does so also where the file names one.
        """
        return _LOOPBACK if self.transport == "tcp" else str(super()._ip_default())

    def open(self, *, allow_unsigned: bool) -> None:
        """Read the connection file, or prepare to write one.

        Raises:
            ConnectionFileError: it can't be read, or holds no key and `allow_unsigned` is not set.
        """
        self.session = Session(parent=self.parent)
        path = Path(self.connection_file)
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.session.key = self.session.key or new_id_bytes()
            return
        try:
            self.load_connection_file(str(path))
        except (OSError, ValueError, TypeError, AttributeError, TraitError) as problem:
            raise ConnectionFileError(
                "The connection file can't be read. No kernel was started."
            ) from (problem)
        if not self.session.key and not allow_unsigned:
            raise ConnectionFileError(
                "The connection file holds no key, so anyone who reaches the kernel's ports could "
                "run code. No kernel was started. Use a file with a key, or set "
                "WasmKernel.allow_unsigned=True."
            )

    def save(self) -> None:
        """Write the file where there is none; all ports must be known."""
        if not Path(self.connection_file).exists():
            self.write_connection_file()

    def cleanup(self) -> None:
        """Remove what `save` wrote."""
        if self._connection_file_written:
            self.cleanup_connection_file()
            self.cleanup_ipc_files()


def ports_of(connection: Connection) -> dict[str, int]:
    """The ports by name, as `connect_request` asks for them."""
    names = ("shell", "iopub", "stdin", "hb", "control")
    return {f"{name}_port": getattr(connection, f"{name}_port") for name in names}
