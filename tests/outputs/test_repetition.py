"""Images that repeat their parts are shown; those that would take for ever to draw are refused."""

from __future__ import annotations

import time

import pytest

from wasm_kernel.outputs.bundle import CleanOutput, Mode, clean

SVG, HTML = "image/svg+xml", "text/html"
WHOLE = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{}</svg>'
SQUARE = '<rect width="9" height="9"/>'


def safe(mime: str, parts: str) -> CleanOutput:
    return clean({mime: WHOLE.format(parts)}, {}, Mode.SAFE)


def scatter(points: int) -> str:
    clip = f'<defs><path id="m" d="M0 0h3v3z"/><clipPath id="c">{SQUARE}</clipPath></defs>'
    return clip + '<g clip-path="url(#c)"><use href="#m" x="1" y="2"/></g>' * points


def uses(levels: int) -> str:
    groups = [f'<g id="a0">{SQUARE}</g>']
    for n in range(levels):
        again = f'<use href="#a{n}"/>' * 10
        groups.append(f'<g id="a{n + 1}">{again}</g>')
    return f'<defs>{"".join(groups)}</defs><use href="#a{levels}"/>'


def painted(levels: int, attribute: str) -> str:
    inner = [SQUARE.replace("/>", f" {attribute.format(n)}/>") * 10 for n in range(levels)]
    return "".join(f'<pattern id="p{n + 1}">{squares}</pattern>' for n, squares in enumerate(inner))


def around(count: int) -> str:
    return "".join(
        f'<g id="a{n}"><use href="#a{(n + 1) % count}"/><use href="#a{(n + 1) % count}"/></g>'
        for n in range(count)
    )


@pytest.mark.parametrize("mime", [SVG, HTML])
@pytest.mark.parametrize("parts", [scatter(5), scatter(5000), uses(3)])
def test_an_image_that_repeats_its_parts_passes(mime: str, parts: str) -> None:
    clean = safe(mime, parts)
    assert clean.removed == ()
    assert clean.data[mime].count("<use") == parts.count("<use")


@pytest.mark.parametrize("mime", [SVG, HTML])
@pytest.mark.parametrize(
    "parts",
    [
        uses(7),
        uses(7).replace("href", "xlink:href"),
        uses(2000),
        painted(9, 'fill="url(#p{})"'),
        painted(9, 'style="fill:url(#p{})"'),
        painted(9, 'mask="url(#p{})"'),
        around(1),
        around(30),
    ],
)
def test_an_image_that_would_never_be_drawn_is_refused(mime: str, parts: str) -> None:
    begun = time.process_time()
    clean = safe(mime, parts)
    assert mime not in clean.data
    assert len(clean.removed) == 1
    assert time.process_time() - begun < 8


def test_parts_that_could_not_be_counted_are_not_used() -> None:
    sheet = "<style>rect {fill: url(#p8); stroke: red}</style>"
    assert "url(" not in safe(SVG, sheet + SQUARE).data[SVG]
    clean = safe(SVG, '<style><a title="x"><style>b{}</style></a></style>')
    assert clean.removed == ("an image with elements in its style sheet",)
    assert safe(HTML, '<use href="#a9"/>').removed == (
        "an image that is made of parts of another one",
    )


def test_a_pattern_of_the_image_itself_stays() -> None:
    parts = f'<pattern id="h">{SQUARE}</pattern><path d="M0 0h9v9z" style="fill: url(#h)"/>'
    clean = safe(SVG, parts)
    assert 'style="fill: url(#wk-h)"' in clean.data[SVG]
    assert clean.removed == ()
