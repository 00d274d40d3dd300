"""`wasm-kernel warm`: prepares the guests, so that the first kernel need not wait for them; exports
and imports prepared guests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.cache_archive import Check, read_archive, write_archive
from wasm_kernel.engine.flavours import FUEL, UNCHECKED
from wasm_kernel.guests.base import languages, prepare_on_own_thread
from wasm_kernel.guests.javascript.shell import ShellLanguage

_THROTTLE = 5.0  # seconds between two lines about the same topic


def warm(say: Callable[[str], None], *, fuel: bool) -> None:
    """Compiles each guest and its codecs, and builds its base image, if they are missing.

    With `fuel`, compiles the code that counts fuel, for sessions with a fuel budget. `say` gets one
    line at a time. Raises `WasmKernelError`, which says what to do.
    """
    begun = time.monotonic()
    said: dict[str, float] = {}  # when a line about each topic was last written

    def tell(sentence: str) -> None:
        topic, now = sentence.partition(":")[0], time.monotonic()
        if now - said.get(topic, -_THROTTLE) >= _THROTTLE:
            said[topic] = now
            say(sentence)

    flavour = FUEL if fuel else UNCHECKED
    for language in languages():
        prepare_on_own_thread(language, flavour, tell)
        language.prepared.compile_codecs(flavour, tell)
    prepare_on_own_thread(ShellLanguage.shared(None), flavour, tell)
    ready = f"done in {time.monotonic() - begun:.0f} s" if said else "ready"
    which = "sessions with a fuel budget" if fuel else "sessions"
    say(f"{ready}: {which} {'now ' if said else ''}start at once")


def export_archive(say: Callable[[str], None], target: Path, *, fuel: bool) -> None:
    """Writes the prepared guests into an archive, and `say`s how to import it elsewhere."""
    flavour = FUEL if fuel else UNCHECKED
    paths = (each.prepared.paths(flavour) for each in (*languages(), ShellLanguage.shared(None)))
    digest = write_archive(dict.fromkeys(chain.from_iterable(paths)), target)
    say(f"exported to {target} ({target.stat().st_size / 1e6:.0f} MB); to take it elsewhere:")
    say(f"wasm-kernel warm --import {target.name} --sha256 {digest}")


def import_archive(say: Callable[[str], None], source: Path, sha256: str) -> None:
    """Imports prepared guests from an archive with this digest; raises `WasmKernelError`."""
    known: dict[str, Check | None] = {}
    with ExitStack() as held:
        for language in (*languages(), ShellLanguage.shared(None)):
            known.update(held.enter_context(language.prepared.being_imported()))
        taken = read_archive(source, sha256, Cache(), known)
    say(f"imported {len(taken)} files" if taken else "nothing to import: it is all there")
