"""The parts of the cache that tests need: compiled guests and their base images.

`python -m tests.prepare` makes all of it, before the first test; `conftest.py` makes what a single
file needs. Once a machine it takes some minutes.
"""

from __future__ import annotations

import sys

from wasm_kernel.engine.flavours import FUEL, UNCHECKED, Flavour
from wasm_kernel.guests.base import languages, prepare_on_own_thread
from wasm_kernel.guests.javascript.shell import ShellLanguage


def prepare(flavour: Flavour) -> None:
    """Compiles the guests of all languages, and builds their base images, if they are missing."""
    for language in languages():
        prepare_on_own_thread(language, flavour, lambda text: None)
        language.prepared.compile_codecs(flavour, lambda text: None)
    prepare_on_own_thread(ShellLanguage.shared(None), flavour, lambda text: None)


if __name__ == "__main__":
    for each in (UNCHECKED, FUEL):
        sys.stderr.write(f"preparing guests for the tests: {each.name}\n")
        prepare(each)
