"""`%fork`: another session that begins where this cell ends; the host makes it."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from wasm_kernel_agent.errands import send_out

_BEGUN = re.compile(r"(?:.*=\s*)?%?fork\s")


def _options(_: Any, event: Any) -> list[str]:
    """The option of `%fork`, for IPython's completer."""
    return ["--deterministic"] if event.symbol.startswith("-") else []


@magics_class
class ForkMagics(Magics):
    """The magic that has the host fork the session."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        shell.set_hook("complete_command", _options, re_key=_BEGUN)

    @no_var_expand
    @line_magic
    def fork(self, line: str) -> Any:
        """Make another session with these variables and files: `new = %fork`.

        It begins with what the cell leaves, and goes its own way from there; this session goes on
        as if nothing had happened. The value is its id. Generators of random numbers are seeded
        afresh in it; `%fork --deterministic` keeps their state.
        """
        made = send_out(self.shell, "fork", line)
        print(made["said"], end="")
        return made["id"]
