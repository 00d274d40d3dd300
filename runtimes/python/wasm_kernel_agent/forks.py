"""`%fork`: another session that begins where this cell ends; the host makes it."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from wasm_kernel_agent.errands import send_out


@magics_class
class ForkMagics(Magics):
    """The magic that has the host fork the session."""

    shell: Any

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
