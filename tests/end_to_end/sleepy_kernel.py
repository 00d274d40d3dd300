"""A kernel that sleeps soon: `python -m tests.end_to_end.sleepy_kernel -f FILE`."""

from __future__ import annotations

from typing import Any

from wasm_kernel.frontends.jupyter import app

if __name__ == "__main__":
    patched: Any = app
    patched.AWAKE_SECONDS = 0.5
    app.main()
