"""IPython's colour themes, read out of the zip that IPython lies in."""

from __future__ import annotations

import json
import pkgutil
from typing import Any

from IPython.utils import PyColorize


def load() -> None:
    """Fill IPython's table of themes, which would otherwise look for files beside its code.

    IPython before 9.15 keeps its themes in code and needs nothing.
    """
    modules: Any = PyColorize
    names: dict[str, str] = getattr(modules, "_BUILTIN_THEMES", {})
    for name, stem in names.items():
        data = pkgutil.get_data("IPython.utils", f"themes/{modules._theme_filename(stem)}")
        assert data is not None
        modules.theme_table._by_name[name] = modules.Theme.from_dict(json.loads(data))
