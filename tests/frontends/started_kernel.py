"""A kernel that prints which modules it had imported at two moments of its start."""

from __future__ import annotations

import json
import sys
from typing import Any

from wasm_kernel.frontends.jupyter.app import WasmKernelApp, main


def tell(moment: str) -> None:
    sys.stderr.write(json.dumps({moment: sorted(sys.modules)}) + "\n")
    sys.stderr.flush()


def serve(app: WasmKernelApp, *args: Any) -> None:
    tell("guest")
    its_own(app, *args)


def loop(app: WasmKernelApp, kernel: Any, *args: Any) -> None:
    answer = kernel.do_execute

    async def execute(*given: Any, **named: Any) -> Any:
        reply = await answer(*given, **named)
        tell("reply")
        return reply

    kernel.do_execute = execute
    its_own_loop(app, kernel, *args)


its_own, its_own_loop = WasmKernelApp._serve, WasmKernelApp._loop

if __name__ == "__main__":
    patched: Any = WasmKernelApp
    patched._serve, patched._loop = serve, loop
    main()
