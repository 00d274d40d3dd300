"""What the kernel says of itself before any guest runs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from wasm_kernel import __version__
from wasm_kernel.guests import base
from wasm_kernel.policy import RuntimeType

PROTOCOL = "5.3"  # the version of Jupyter's messages, as ipykernel's base class speaks it

_LINKS = (("wasm-kernel", "https://pypi.org/project/wasm-kernel/"),)


@lru_cache(maxsize=1)
def _language() -> base.LanguageInfo:
    return base.load(RuntimeType.PYTHON).info


def kernel_info() -> dict[str, Any]:
    """Returns the content of `kernel_info_reply`, without its status."""
    language = _language()
    return {
        "protocol_version": PROTOCOL,
        "implementation": "wasm-kernel",
        "implementation_version": __version__,
        "banner": f"{language.title} in a WebAssembly sandbox (wasm-kernel {__version__})",
        "help_links": [{"text": text, "url": url} for text, url in (*_LINKS, *language.help_links)],
        "supported_features": [],
        "debugger": False,
        "language_info": dict(language.language_info),
    }
