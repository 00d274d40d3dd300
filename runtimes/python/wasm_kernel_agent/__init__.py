"""The guest agent: the code inside the sandbox that answers the host's turns.

The host calls `turn()` once, in the boot turn (see `runtimes/PROTOCOL.md`). It makes the one
`Agent`, which is `sys.displayhook` between the turns that follow.
"""

from __future__ import annotations

import sys
import zipimport
from typing import Any


def _find_modules_without_their_code() -> None:
    """Halves the cost of an import from a zip; must run before the first import.

    Python asks for a module's path before it loads the module, and `zipimport` answers by loading
    it. So each module was decompressed and compiled twice.
    """
    module: Any = zipimport
    importer = module.zipimporter

    def get_filename(self: Any, fullname: str) -> str:
        """Returns the path of a module."""
        path = module._get_module_path(self, fullname)
        for suffix, _, _ in module._zip_searchorder:
            entry = self._get_files().get(path + suffix)
            if entry is not None:
                return str(entry[0])
        raise module.ZipImportError(f"can't find module {fullname!r}", name=fullname)

    importer.get_filename = get_filename


if sys.platform == "wasi":
    _find_modules_without_their_code()

from wasm_kernel_agent.agent import turn  # noqa: E402 - after what makes importing it quick

__all__ = ["turn"]
