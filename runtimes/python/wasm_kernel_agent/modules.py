"""Which modules can be imported: what `import num<Tab>` completes to.

IPython lists folders of `sys.path`; the guest's modules lie in zips, so they are listed here, once.
"""

from __future__ import annotations

import sys
import zipfile
from typing import Any

_CACHE = "rootmodules_cache"  # IPython's own: `sys.path` entries to the names below them
_ENDINGS = (".py", ".pyc")


def names_in(path: str) -> list[str]:
    """The modules and packages at the top of a zip."""
    found = set()
    with zipfile.ZipFile(path) as bundle:
        for member in bundle.namelist():
            top, slash, rest = member.partition("/")
            if slash and rest and "." not in top:
                found.add(top)
            for ending in _ENDINGS:
                if not slash and member.endswith(ending):
                    found.add(member.removesuffix(ending))
    return sorted(name for name in found if name.isidentifier())


def list_once(shell: Any) -> None:
    """Fill IPython's list for the zips of `sys.path`."""
    zips = [path for path in sys.path if path.endswith(".zip")]
    shell.db[_CACHE] = {path: names_in(path) for path in zips}
