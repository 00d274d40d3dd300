"""Helpers of tests of forks."""

from __future__ import annotations

from collections.abc import Callable

from tests.local import LocalSandbox

Opening = Callable[..., LocalSandbox]
Forking = Callable[..., LocalSandbox]
TRAP = "import os; os._exit(3)"
