"""Workers that stay with the baseline compiler's code."""

from __future__ import annotations

from typing import Any

from tests.faults import Fault
from wasm_kernel.engine.flavours import BASELINE
from wasm_kernel.guests.python import background
from wasm_kernel.guests.python.language import PythonLanguage


def arm(_: Fault) -> None:
    """Does without the fault."""
    language: Any = PythonLanguage
    language.code_for = lambda *_: BASELINE
    background.begin = lambda *_: None
