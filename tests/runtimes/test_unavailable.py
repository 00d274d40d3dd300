"""Substitutes for packages that can't work here."""

from __future__ import annotations

import pytest
from wasm_kernel_agent.unavailable import PACKAGES, STAND_INS, advice_on_packages


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("install torch>=2", "torch"),
        ("install 'Opencv_Python'", "cv2"),
        ("polars-runtime-32 needs compiled code. It is needed by polars 1.3.", "polars"),
    ],
)
def test_what_pip_can_not_install_has_a_stand_in(text: str, module: str) -> None:
    assert advice_on_packages(text) == f" In place of {module}: {STAND_INS[module]}."


def test_nothing_is_said_of_others() -> None:
    assert advice_on_packages("install rich needs compiled code") == ""


def test_names_are_of_known_modules() -> None:
    assert not [text for text in STAND_INS.values() if text.endswith(".")]
    assert {"cv2", "skimage", "umap"} <= STAND_INS.keys() & PACKAGES.keys()
