"""A forker for tests: `python -P -m tests.end_to_end.probed_forker IDLE_SECONDS FILE`.

Its kernels contain the probe of `tests.linux.probed_kernel`. It takes `FILE` for its whole
installation, and prints its name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.linux.probed_kernel import watch
from wasm_kernel.frontends.jupyter import forker, kernel_launch, launcher
from wasm_kernel.policy import RuntimeType

if TYPE_CHECKING:
    from tests.local import LocalSandbox
    from wasm_kernel.sessions.session import Session

its_own, load = kernel_launch.create, forker._load
loaded: set[str] = set()


def loading() -> Any:
    """Loads everything and notes the modules that are loaded."""
    made = load()
    loaded.update(sys.modules)
    return made


def watched(workspace: Path) -> None:
    """Runs the kernel, and reports the modules that were imported after the fork."""
    watch(workspace)
    (workspace / "imported.aside").write_text("\n".join({*sys.modules} - loaded))
    (workspace / "imported.aside").rename(workspace / "imported")


def probed(runtime: RuntimeType, session: Session, *given: Any, **options: Any) -> LocalSandbox:
    """Makes the real sandbox, beside a thread that waits for the order to probe."""
    threading.Thread(target=watched, args=(session.workspace,), daemon=True).start()
    return its_own(runtime, session, *given, **options)


def files() -> Iterator[tuple[str, int]]:
    """The only file of the installation."""
    yield sys.argv[2], Path(sys.argv[2]).stat().st_mtime_ns


if __name__ == "__main__":
    patched: Any = forker
    patched.IDLE_SECONDS, patched.create, patched._files = float(sys.argv[1]), probed, files
    patched._load = loading
    print(name := launcher.forker_name(), flush=True)
    forker.main(name, kernel_launch._lock())
