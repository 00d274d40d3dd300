"""Whether the cells of a sandbox may install packages. A sandbox of its own accord lets none."""

from __future__ import annotations

from typing import Any

from wasm_kernel.execution.errands import Caller, Errand, switched_off
from wasm_kernel.execution.sandbox import BaseSandbox
from wasm_kernel.folders.folders import FETCHED, PACKAGES
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.guests.python.packages.fetch import Fetch

_OFF = (
    "%pip is switched off in this kernel (WasmKernel.pip). Packages of your own can lie in /app "
    "and be imported from there."
)


def offer_pip(sandbox: BaseSandbox, fetch: Fetch | None = None) -> None:
    """Let the cells of a sandbox install pure-Python packages with `%pip`.

    They are kept in the sandbox's own workspace, where the guest reads and can't change them.
    Nothing of them runs outside of the guest.

    Args:
        sandbox: Whose cells.
        fetch: Gets wheels; by default the pip does that is installed beside this package, with
            the configuration of the user it runs as.
    """
    sandbox.errands.offer("pip", _late(sandbox, fetch))


def refuse_pip(sandbox: BaseSandbox) -> None:
    """Answer `%pip` with a sentence that says what to set."""
    sandbox.errands.offer("pip", switched_off(_OFF))


def _late(sandbox: BaseSandbox, fetch: Fetch | None) -> Errand:
    """The errand, made when a cell first asks: until then nothing of it is imported."""
    made: list[Errand] = []

    def errand(order: CommandLine, caller: Caller, /) -> Any:
        if not made:
            from wasm_kernel.guests.python.language import shared_language
            from wasm_kernel.guests.python.packages.errand import PipErrand
            from wasm_kernel.guests.python.packages.fetching import Pip
            from wasm_kernel.guests.python.packages.site import Site

            guest = shared_language().files
            site = Site(sandbox.folders.private_path / PACKAGES)
            pip = fetch or Pip(guest.python_version)
            made.append(PipErrand(site, pip, sandbox.folders.private_path / FETCHED, guest))
        return made[0](order, caller)

    return errand
