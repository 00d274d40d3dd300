"""What the kernel says of itself before any guest runs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from wasm_kernel import __version__
from wasm_kernel.errors import BundleError

PROTOCOL = "5.3"  # the version of Jupyter's messages, as ipykernel's base class speaks it

_LINKS = (
    ("wasm-kernel", "https://pypi.org/project/wasm-kernel/"),
    ("Python Reference", "https://docs.python.org/3.15"),
    ("IPython Reference", "https://ipython.readthedocs.io/en/stable/"),
    ("NumPy Reference", "https://numpy.org/doc/stable/reference/"),
    ("pandas Reference", "https://pandas.pydata.org/docs/reference/"),
    ("Matplotlib Reference", "https://matplotlib.org/stable/api/"),
)


@lru_cache(maxsize=1)
def language_version() -> str:
    """The guest's Python version, such as `3.15.0`."""
    from wasm_kernel.guests.python.language import shared_language

    try:
        return shared_language().environment.python_version
    except BundleError:
        return "unknown"  # the first cell says what is missing


def kernel_info() -> dict[str, Any]:
    """The content of `kernel_info_reply`, without its status."""
    version = language_version()
    return {
        "protocol_version": PROTOCOL,
        "implementation": "wasm-kernel",
        "implementation_version": __version__,
        "banner": f"Python {version} in a WebAssembly sandbox (wasm-kernel {__version__})",
        "help_links": [{"text": text, "url": url} for text, url in _LINKS],
        "supported_features": [],
        "debugger": False,
        "language_info": {
            "name": "python",
            "version": version,
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        },
    }
