"""The facts about Python that are known without a running guest. Little is imported for them."""

from __future__ import annotations

from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import BundleError
from wasm_kernel.guests.base import LanguageInfo
from wasm_kernel.guests.python.files import guest_files

_HELP_LINKS = (
    ("Python Reference", "https://docs.python.org/3.15"),
    ("IPython Reference", "https://ipython.readthedocs.io/en/stable/"),
    ("NumPy Reference", "https://numpy.org/doc/stable/reference/"),
    ("pandas Reference", "https://pandas.pydata.org/docs/reference/"),
    ("Matplotlib Reference", "https://matplotlib.org/stable/api/"),
)


def info() -> LanguageInfo:
    """Returns the facts; the version is that of the guest's files."""
    try:
        version = guest_files(Cache()).python_version
    except (BundleError, OSError):
        version = "unknown"  # the first cell says which file is missing
    language = {
        "name": "python",
        "version": version,
        "mimetype": "text/x-python",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
        "file_extension": ".py",
    }
    return LanguageInfo(f"Python {version}", language, _HELP_LINKS)
