"""The page of settings, from the code: `python -m tests.settings_page > docs/settings.md`."""

from __future__ import annotations

from typing import Any

from wasm_kernel.frontends.jupyter.settings import KernelSettings
from wasm_kernel.policy import POLICY_FIELDS

HEAD = """\
# Settings

Every setting is a trait of `WasmKernel`: on the kernel's command line (`--WasmKernel.NAME=VALUE`,
also in a kernelspec's `argv`) or in `jupyter_wasm_kernel_config.py`, in `~/.jupyter` or another
folder for configuration that `jupyter --paths` lists:

```text
c.WasmKernel.cell_timeout = 600
```

The limits are also the fields of `ExecutionPolicy` in Python, and the keys of a TOML file
(`WasmKernel.policy_file`, `ExecutionPolicy.from_toml`). This page is written from the code
(`python -m tests.settings_page`).

`WASM_KERNEL_FORKER=0` in a kernel's environment (`wasm-kernel install --env WASM_KERNEL_FORKER 0`)
has each kernel started anew. By default it is forked from a process that has everything loaded,
which the first kernel starts, and which ends some minutes after the last one
([how](architecture.md#a-kernels-start)).
"""


def page() -> str:
    """The whole page, in Markdown."""
    traits: dict[str, Any] = KernelSettings.class_traits(config=True)
    own = [name for name in sorted(traits) if name not in POLICY_FIELDS]
    parts = [HEAD, "## The session and the kernel\n", *(_entry(name, traits[name]) for name in own)]
    parts += ["## Limits\n", *(_entry(name, traits[name]) for name in POLICY_FIELDS)]
    return "\n".join(parts)


def _entry(name: str, trait: Any) -> str:
    choices = getattr(trait, "values", None)
    kind = f" (one of {', '.join(map(repr, choices))})" if choices else ""
    return f"- `{name}`{kind}: {trait.help} {_default(trait)}\n"


def _default(trait: Any) -> str:
    value = trait.default_value
    if value is None:
        return "Default: none."
    if isinstance(value, bool | float | str) and value != "":
        return f"Default: `{value}`."
    return f"Default: {value:,}." if isinstance(value, int) else ""


if __name__ == "__main__":
    print(page(), end="")
