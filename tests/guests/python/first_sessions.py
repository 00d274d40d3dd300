"""Workers as on a machine without a whole base image, until the test says that it is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.faults import Fault
from wasm_kernel.engine.flavours import UNCHECKED, Flavour
from wasm_kernel.guests.prepared import PreparedFiles
from wasm_kernel.guests.python.guest import PythonAddresses
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.state.image import BaseImage

OWN_IMAGE = "WASM_KERNEL_TEST_IMAGE"
"""The variable with the path of the workers' small image, if it is not the cache's."""
BETTER = replace(UNCHECKED)


def small(language: PythonLanguage, *_: Flavour) -> PreparedFiles[PythonAddresses]:
    """The files of the small image, which may lie at a path of the test."""
    files, own = language.small, os.environ.get(OWN_IMAGE)
    image = files.image_at_hand()
    assert image is not None
    if own is not None and image.record.build != "own":
        files._image = replace(image, path=Path(own), record=replace(image.record, build="own"))
    return files


def arm(fault: Fault) -> None:
    """Lets workers begin with the small image. With the fault, better code is ready for them."""

    def code_for(language: PythonLanguage, flavour: Flavour) -> Flavour:
        return flavour if fault.passes() else BETTER

    def images(language: PythonLanguage) -> Iterator[BaseImage]:
        image = small(language).image_at_hand()
        assert image is not None
        yield image

    patched: Any = PythonLanguage
    patched._prepared_for, patched.code_for, patched.images = small, code_for, images
