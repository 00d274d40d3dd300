"""The parts of the cache that tests need: compiled guests and their base images.

`python -m tests.prepare` makes all of it, before the first test; `conftest.py` makes what a single
file needs. Once a machine it takes some minutes. Most tests' guests run in the tests' own process,
and so have code with epochs; those of workers have none.
"""

from __future__ import annotations

import sys

from wasm_kernel.engine.flavours import EPOCH, FUEL, FUEL_EPOCH, UNCHECKED, Flavour
from wasm_kernel.guests.base import languages, prepare_on_own_thread

PLAIN = (UNCHECKED, EPOCH)
METERED = (FUEL, FUEL_EPOCH)


def prepare(*flavours: Flavour) -> None:
    """Compiles the guests of all languages, and builds their base images, if they are missing."""
    for flavour in flavours:
        for language in languages():
            prepare_on_own_thread(language, flavour, lambda text: None)
            language.prepared.compile_codecs(flavour, lambda text: None)


if __name__ == "__main__":
    for each in (*PLAIN, *METERED):
        sys.stderr.write(f"preparing guests for the tests: {each.name}\n")
        prepare(each)
