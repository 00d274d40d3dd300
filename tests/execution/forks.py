"""What tests of forks say and ask."""

from __future__ import annotations

from collections.abc import Callable

from wasm_kernel import BaseSandbox

Opening = Callable[..., BaseSandbox]
Forking = Callable[..., BaseSandbox]
TRAP = "import os; os._exit(3)"
