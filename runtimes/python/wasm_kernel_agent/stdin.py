"""`input()` and `getpass()`, answered by the front end."""

from __future__ import annotations

import builtins
import getpass as getpass_module
import warnings
from typing import Any

from IPython.core.error import StdinNotImplementedError

from wasm_kernel_agent.door import Door
from wasm_kernel_agent.outbox import flush

_REFUSED_INPUT = "raw_input was called, but this frontend does not support input requests."
_REFUSED_GETPASS = "getpass was called, but this frontend does not support input requests."
_END_OF_FILE = "\x04"


class Stdin:
    """Asks the front end for lines; `allowed` is what the running cell's request said."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.allowed = False

    def install(self, allowed: bool) -> None:
        """Be the interpreter's `input` and `getpass.getpass` for the coming cell."""
        self.allowed = allowed
        builtins.input = self.input
        getpass_module.getpass = self.getpass

    def input(self, prompt: object = "", /) -> str:
        """Read a line from the user, without its newline.

        Raises:
            EOFError: the user ended the input.
            KeyboardInterrupt: the user interrupted the cell.
            StdinNotImplementedError: the front end takes no input.
        """
        __tracebackhide__ = True
        if not self.allowed:
            raise StdinNotImplementedError(_REFUSED_INPUT)
        return self._ask(str(prompt), password=False)

    def getpass(
        self, prompt: str = "Password: ", stream: Any = None, *, echo_char: str | None = None
    ) -> str:
        """Read a line from the user without showing it; raises as `input` does."""
        __tracebackhide__ = True
        if not self.allowed:
            raise StdinNotImplementedError(_REFUSED_GETPASS)
        for name, value in (("stream", stream), ("echo_char", echo_char)):
            if value is not None:
                warnings.warn(
                    f"The `{name}` parameter of `getpass.getpass` has no effect in a notebook",
                    UserWarning,
                    stacklevel=2,
                )
        return self._ask(str(prompt), password=True)

    def _ask(self, prompt: str, *, password: bool) -> str:
        __tracebackhide__ = True
        flush()
        answer = self._door.send({"op": "input", "prompt": prompt, "password": password})
        if answer.get("interrupted"):
            raise KeyboardInterrupt("Interrupted by user")
        refused = answer.get("refused")
        if refused:
            raise StdinNotImplementedError(str(refused))
        value = str(answer.get("value", ""))
        if value == _END_OF_FILE:
            raise EOFError
        return value
