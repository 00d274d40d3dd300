"""What people make every day looks in `safe` as it does in `trusted`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.browser.gallery import BEGIN, GALLERY
from tests.browser.jupyterlab import Lab, Server

# One output at a time, so that each lies at the same place to the fraction of a pixel.
ALONE = (
    ".jp-Notebook .jp-Cell:not([data-shown]), .jp-Cell-inputWrapper, .jp-Notebook-footer"
    " {display: none !important}"
)
SHOW = """number => document.querySelectorAll('.jp-Notebook .jp-Cell').forEach(
    (cell, place) => cell.toggleAttribute('data-shown', place === number))"""
NOTICE = "[wasm-kernel]"
TOLERANCE = 0.004  # of the pixels; edges of letters may lie half a pixel elsewhere

# The share of pixels that differ by more than can be seen, or 1 where sizes differ.
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


def taken(lab: Lab, server: Server, kernel: str, folder: Path) -> Pictures:
    """A picture of each output of the gallery."""
    sources = [BEGIN, *GALLERY.values()]
    lab.page.set_viewport_size({"width": 1200, "height": 6000})
    lab.open(server.notebook(f"gallery-{kernel}", sources, kernel))
    lab.run_all()
    lab.page.evaluate("document.fonts.ready")
    lab.page.evaluate("document.activeElement.blur()")
    lab.page.add_style_tag(content=ALONE)
    pictures = {}
    for number, name in enumerate(GALLERY, start=1):
        lab.page.evaluate(SHOW, number)
        outputs = lab.output(number).locator(".jp-OutputArea-child")
        found = outputs.filter(has_not_text=NOTICE).first
        notices = outputs.filter(has_text=NOTICE)
        assert notices.count() == 0, (name, notices.all_inner_texts())
        pictures[name] = found.screenshot(animations="disabled")
        (folder / f"{name}-{kernel}.png").write_bytes(pictures[name])
    return pictures


@pytest.fixture(scope="module")
def both(browser: Any, server: Server, portraits: Path) -> tuple[Pictures, Pictures, Any]:
    page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
    lab = Lab(page, server)
    return (
        taken(lab, server, "wasm-python", portraits),
        taken(lab, server, "wasm-trusted", portraits),
        page,
    )


@pytest.mark.parametrize("name", GALLERY)
def test_it_looks_the_same(name: str, both: tuple[Pictures, Pictures, Any]) -> None:
    safe, trusted, page = both
    texts = [base64.b64encode(pictures[name]).decode() for pictures in (safe, trusted)]
    assert page.evaluate(COMPARE, texts) < TOLERANCE
