"""The pages of the reference that the code writes: `python -m tests.reference_pages`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import documented
from wasm_kernel import events
from wasm_kernel.kernels.settings import KernelSettings
from wasm_kernel.policy import POLICY_FIELDS

ROOT = Path(__file__).resolve().parent.parent

_SETTINGS = """\
# Settings

Every setting is a trait of `WasmKernel`: on the kernel's command line (`--WasmKernel.NAME=VALUE`,
also in a kernelspec's `argv`) or in `jupyter_wasm_kernel_config.py`, in `~/.jupyter` or another
folder for configuration that `jupyter --paths` lists:

```py
c.WasmKernel.cell_timeout = 600
```

The limits are also the fields of `ExecutionPolicy` in Python, and the keys of a TOML file
(`WasmKernel.policy_file`, `ExecutionPolicy.from_toml`). This page is written from the code
(`python -m tests.reference_pages`).

`WASM_KERNEL_FORKER=0` in a kernel's environment (`wasm-kernel install --env WASM_KERNEL_FORKER 0`)
has each kernel started anew. By default it is forked from a process that has everything loaded,
which the first kernel starts, and which ends some minutes after the last one
([how](architecture.md#a-kernels-start)).
"""

_MAGICS = """\
# Magics

The magics that this kernel adds to IPython's own, or replaces. `%undo?` in a cell shows the same
text. [JavaScript](javascript.md#what-cells-find) has some of them, at the top of a cell. This page
is written from the code (`python -m tests.reference_pages`).

`%ls`, `%ll`, `%cat`, `%mkdir`, `%rmdir`, `%rm`, `%cp` and `%mv` run the commands of a shell.
"""

_EVENTS = """\
# Events

Give `create_sandbox` a `SandboxLogger` over structlog or `logging`, or the kernel a file
(`WasmKernel.event_log`, one JSON object a line). No event holds the text of a cell. Every event of
a session has its `session_id`, and a field without a value is left out. This page is written from
the code (`python -m tests.reference_pages`).
"""

_LOGGER = """\
## The logger

::: wasm_kernel.SandboxLogger
"""

_MAGICS_OF = {
    "travel": "Going back, and forks",
    "files": "Files of the session",
    "session": "The session and its limits",
    "pip": "Packages",
    "scripts": "Scripts",
    "basics": "Limits of one cell, and files",
}
_EVENTS_OF = {
    "execution": "Cells",
    "memory": "Variables",
    "session": "Sessions",
    "network": "Network",
    "session.file": "Files",
    "session.metadata": "Metadata",
    "session.prune": "Pruning",
}


def settings() -> str:
    """Every setting of the kernel, from its trait."""
    traits: dict[str, Any] = KernelSettings.class_traits(config=True)
    own = [name for name in sorted(traits) if name not in POLICY_FIELDS]
    parts = [_SETTINGS, "## The session and the kernel\n"]
    parts += [_setting(name, traits[name]) for name in own]
    parts += ["## Limits\n", *(_setting(name, traits[name]) for name in POLICY_FIELDS)]
    return "\n".join(parts)


def _setting(name: str, trait: Any) -> str:
    choices = getattr(trait, "values", None)
    kind = f" One of {', '.join(f'`{each}`' for each in choices)}." if choices else ""
    return f"### `{name}`\n\n{trait.help}{kind} {_default(trait)}".rstrip() + "\n"


def _default(trait: Any) -> str:
    value = trait.default_value
    if value is None:
        return "Default: none."
    if isinstance(value, bool | float | str) and value != "":
        return f"Default: `{value}`."
    return f"Default: {value:,}." if isinstance(value, int) else ""


def magics() -> str:
    """Every magic of the Python guest's agent, from its docstring."""
    parts = [_MAGICS]
    for module, title in _MAGICS_OF.items():
        parts.append(f"## {title}\n")
        parts += [f"### `{sign}{name}`\n\n{text}\n" for sign, name, text in magics_of(module)]
    return "\n".join(parts)


def magics_of(module: str) -> Iterator[tuple[str, str, str]]:
    """Yields sign, name and docstring of each magic of a module; the guest alone can import it."""
    file = ROOT / "runtimes/python/wasm_kernel_agent/magics" / f"{module}.py"
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            kinds = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
            if kinds & {"line_magic", "cell_magic", "line_cell_magic"}:
                sign = "%" if "line_magic" in kinds else "%%"
                yield sign, node.name, ast.get_docstring(node) or ""


def events_page() -> str:
    """Every event with its fields, from the comment beside its name."""
    parts = [_EVENTS]
    for about, title in _EVENTS_OF.items():
        rows = [_event(name) for name in documented.meanings() if name.rpartition(".")[0] == about]
        parts += [f"## {title}\n", "| event | fields | meaning |\n|---|---|---|", *rows, ""]
    return "\n".join([*parts, _LOGGER])


def _event(name: str) -> str:
    fields = ", ".join(f"`{each}`" for each in documented.fields_in_order(name))
    level = "a warning" if name in events.WARNINGS else ""
    said = ": ".join(filter(None, (level, documented.meanings()[name].strip())))
    return f"| `{name}` | {fields} | {said[:1].upper()}{said[1:]} |"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings,
    "magics.md": magics,
    "events.md": events_page,
}


def main() -> None:
    """Writes all of them."""
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
