"""Helpers of tests of forks."""

from __future__ import annotations

from collections.abc import Callable

from wasm_kernel import Sandbox

Opening = Callable[..., Sandbox]
Forking = Callable[..., Sandbox]
TRAP = "import os; os._exit(3)"
