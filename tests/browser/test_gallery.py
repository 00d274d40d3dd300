"""Everyday outputs look the same in `safe`, in `trusted`, and in ipykernel.

The screenshots are left in `build/browser/`, for people to look at.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.browser.gallery import BEGIN, GALLERY
from tests.browser.jupyterlab import NATIVE, Lab, Server

# Shows one output at a time, so that each is at the same place to the fraction of a pixel.
ALONE = (
    ".jp-Notebook .jp-Cell:not([data-shown]), .jp-Cell-inputWrapper, .jp-Notebook-footer"
    " {display: none !important}"
)
SHOW = """number => document.querySelectorAll('.jp-Notebook .jp-Cell').forEach(
    (cell, place) => cell.toggleAttribute('data-shown', place === number))"""
NOTICE = "[wasm-kernel]"
# Outputs that Python 3.15 changes, whose positions in a line are finer.
DIFFERENT = {"error"}
TOLERANCE = 0.004  # share of pixels; edges of letters may be half a pixel off

# The share of pixels whose difference is visible, or 1 if the sizes differ.
COMPARE = """async ([first, second]) => {
    const pixels = async data => {
        const image = new Image();
        image.src = 'data:image/png;base64,' + data;
        await image.decode();
        const canvas = new OffscreenCanvas(image.width, image.height);
        const context = canvas.getContext('2d');
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, image.width, image.height);
    };
    const [a, b] = [await pixels(first), await pixels(second)];
    // half an em of room below may be there or not, as an element without looks comes last or not
    if (a.width !== b.width || Math.abs(a.height - b.height) > 8) return 1;
    let wrong = 0;
    const [width, height] = [Math.min(a.width, b.width), Math.min(a.height, b.height)];
    for (let y = 0; y < height; y++)
        for (let x = 0; x < width; x++) {
            const [i, j] = [4 * (y * a.width + x), 4 * (y * b.width + x)];
            let apart = 0;
            for (let c = 0; c < 3; c++) apart += Math.abs(a.data[i + c] - b.data[j + c]);
            wrong += apart > 90;
        }
    return wrong / (width * height);
}"""

Pictures = dict[str, bytes]


def taken(lab: Lab, server: Server, kernel: str, folder: Path, gallery: dict[str, str]) -> Pictures:
    """A picture of each output of a gallery."""
    sources = [BEGIN, *gallery.values()]
    lab.page.set_viewport_size({"width": 1200, "height": 1500})
    lab.open(server.notebook(f"gallery-{kernel}", sources, kernel))
    lab.run_all()
    lab.page.evaluate("document.fonts.ready")
    lab.page.evaluate("document.activeElement.blur()")
    style = lab.page.add_style_tag(content=ALONE)
    pictures = {}
    for number, name in enumerate(gallery, start=1):
        lab.page.evaluate(SHOW, number)
        outputs = lab.output(number).locator(".jp-OutputArea-child")
        found = outputs.filter(has_not_text=NOTICE).first
        notices = outputs.filter(has_text=NOTICE)
        assert notices.count() == 0, (name, notices.all_inner_texts())
        pictures[name] = found.screenshot(animations="disabled")
        (folder / f"{name}-{kernel}.png").write_bytes(pictures[name])
    style.evaluate("style => style.remove()")
    return pictures


def different(lab: Lab, first: Pictures, second: Pictures) -> list[str]:
    """The outputs whose pictures differ by more than edges of letters."""

    def apart(name: str) -> float:
        pair = [base64.b64encode(pictures[name]).decode() for pictures in (first, second)]
        return float(lab.page.evaluate(COMPARE, pair)) if pair[0] != pair[1] else 0.0

    return [name for name in first if apart(name) >= TOLERANCE]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("other", "gallery"),
    [("wasm-trusted", GALLERY), ("native", GALLERY)],
    ids=["trusted", "ipykernel"],
)
def test_outputs_look_as_in(
    shared: Lab, server: Server, portraits: Path, other: str, gallery: dict[str, str]
) -> None:
    """ipykernel has other versions of Python and of some libraries: see `DIFFERENT`."""
    if other == "native" and not NATIVE.exists():
        pytest.skip(f"{NATIVE} is missing; make soak makes it")
    safe, theirs = (
        taken(shared, server, kernel, portraits, gallery) for kernel in ("wasm-python", other)
    )
    assert set(different(shared, safe, theirs)) <= (DIFFERENT if other == "native" else set())
