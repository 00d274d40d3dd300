"""F5, ATTACKS 45: an output is checked in proportion to its size, and drawn in bounded time."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.outputs.nasty import PIECES, PLACES, STRUCTURES, Build, repeated, values
from tests.sampled import sampled
from wasm_kernel.errors import FrameError
from wasm_kernel.guests import protocol
from wasm_kernel.guests.python.cell_reader import commands_in
from wasm_kernel.kernels import messages
from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.bundle import CleanOutput, Mode, clean
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.outputs.widgets import WidgetGate
from wasm_kernel.result import CommMessage

LARGEST, OF_ALL, STEPS = 120_000, 300_000, 3
FLOOR = 0.2  # seconds of processor time; ratios of shorter times mean nothing
GROWTH = 2.8**2  # for four times the size
TRIES = 4
SAMPLE = 48


@pytest.fixture(scope="module", autouse=True)
def collections_are_short() -> Iterator[None]:
    """Freezes the objects that earlier tests left, so that the collector does not visit them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def seconds(work: Callable[[Any], object], given: Any) -> float:
    gc.collect()
    gc.disable()  # a collection takes longer the more objects earlier tests left in memory
    try:
        begun = time.thread_time()
        work(given)
        return time.thread_time() - begun
    finally:
        gc.enable()


def is_linear(work: Callable[[Any], object], build: Build, largest: int = LARGEST) -> bool:
    """True if four times the size takes about four times as long, up to the largest size.

    A busy machine measures unevenly, so a bad result is measured again.
    """
    if seconds(work, build(largest)) <= FLOOR:
        return True
    sizes = [largest >> 2 * step for step in range(STEPS, -1, -1)]
    before = seconds(work, build(sizes[0]))
    for size in sizes[1:]:
        taken = seconds(work, build(size))
        for _ in range(TRIES):
            if taken <= max(FLOOR, GROWTH * before):
                break
            before = max(before, seconds(work, build(size // 4)))
            taken = min(taken, seconds(work, build(size)))
        else:
            return False
        before = taken
    return True


def show(output: tuple[str, Any]) -> None:
    mime, content = output
    clean({mime: content}, {}, Mode.SAFE)


def some(index: int) -> list[str]:
    """Some of the pieces, chosen by an index; the soak takes all of them."""
    return PIECES[index % SAMPLE :: SAMPLE]


def slow_in(place: str, pieces: Iterable[str], largest: int = LARGEST) -> list[str]:
    def build_of(piece: str) -> Build:
        return lambda size: PLACES[place](repeated(piece, size))

    return [name for name in pieces if not is_linear(show, build_of(name), largest)]


AMOUNTS = ["some", pytest.param("all", marks=pytest.mark.soak)]


@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("place", PLACES)
def test_f5_a_text_is_checked_in_linear_time(place: str, amount: str) -> None:
    if amount == "some":
        assert slow_in(place, some(list(PLACES).index(place))) == []
    else:
        assert slow_in(place, PIECES, OF_ALL) == []


@pytest.mark.parametrize(
    ("place", "piece"),
    [
        ("image/png", " "),
        ("in a sound", " "),
        ("text/markdown '{}!'", "\\begin{align}\n"),
        ("text/markdown '{}!'", "\\begin{align}\n\\end{align*}\n"),
        ("text/markdown 'x{}\\n\\n<b>'", "- [ ] a\n"),
        ("text/html", "&"),
        ("text/html", "\xa0"),
        ("in an attribute", "\xa0"),
        ("in an image's style sheet", "&"),
    ],
)
def test_f5_texts_that_took_quadratic_time_take_linear_time(place: str, piece: str) -> None:
    assert slow_in(place, [piece]) == []


@pytest.mark.parametrize("build", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_f5_a_structure_is_checked_in_linear_time(build: Build) -> None:
    assert is_linear(show, build)


@pytest.mark.parametrize("name", sampled({repr(piece): piece for piece in PIECES}, 10))
def test_f5_text_on_streams_is_cleaned_in_linear_time(name: str) -> None:
    def feed(text: str) -> None:
        stream = terminal.StreamCleaner()
        for at in range(0, len(text), 1000):
            stream.feed(text[at : at + 1000])
        stream.finish()

    assert is_linear(feed, lambda size: repeated(name, size))


FRAMES: dict[str, Callable[[str], dict[str, Any]]] = {
    "display": lambda text: {"data": {"x/json": {text: [text]}}, "metadata": {"a": text}},
    "update_display": lambda text: {"data": {"text/plain": text}, "transient": {"a": text}},
    "clear_output": lambda text: {"wait": text},
    "result": lambda text: {"execution_count": 1, "data": {"text/plain": text}},
    "error": lambda text: {"ename": text, "evalue": text, "traceback": [text]},
    "input": lambda text: {"prompt": text, "password": False},
    "limit": lambda text: {"seconds": text},
    "command": lambda text: {"name": text, "line": text, "cell": text},
    "comm_open": lambda text: {"comm_id": "a", "target_name": text, "data": {text: text}},
    "comm_msg": lambda text: {"comm_id": "a", "data": {text: text}, "buffers": [text]},
    "comm_close": lambda text: {"comm_id": text},
    "comm_target": lambda text: {"name": text},
    "immortal": lambda text: {"addresses": text},
    "done": lambda text: {"reply": {"status": text, "payload": [{"source": text}]}},
    "unknown": lambda text: {text: text},
}
RAW = [
    '"',
    "\\",
    '\\"',
    "[",
    '["',
    '{"":',
    '""',
    '"\\u',
    "0",
    "0,",
    "1e",
    "-",
    " ",
    "\xff",
    "9" * 40,
]


def take(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        protocol.decode(data)


def slow_frames(op: str, pieces: Iterable[str]) -> list[str]:
    def build_of(piece: str) -> Build:
        return lambda size: protocol.encode({"op": op} | FRAMES[op](repeated(piece, size)))

    return [name for name in pieces if not is_linear(take, build_of(name))]


@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("op", FRAMES)
def test_f5_a_frame_is_read_in_linear_time(op: str, amount: str) -> None:
    pieces = some(list(FRAMES).index(op)) if amount == "some" else PIECES
    assert slow_frames(op, pieces) == []


@pytest.mark.parametrize("form", ["{}", '{{"op":"done","reply":{}', '{{"op":"input","prompt":"{}'])
def test_f5_bytes_that_are_not_a_frame_are_refused_in_linear_time(form: str) -> None:
    def build_of(piece: str) -> Build:
        return lambda size: form.format(repeated(piece, size)).encode("latin-1")

    assert [piece for piece in RAW if not is_linear(take, build_of(piece))] == []


def gate() -> WidgetGate:
    made = WidgetGate(Mode.SAFE)
    made.admits(CommMessage("open", "c", {}, target_name="jupyter.widget.control"))
    for name in ("HTML", "Label", "Dropdown", "Image"):
        made.out(CommMessage("open", name, {"state": state(name)}, "jupyter.widget"), Removals())
    return made


def state(name: str) -> dict[str, Any]:
    module = "@jupyter-widgets/controls"
    return {
        "_model_module": module,
        "_model_name": f"{name}Model",
        "_view_module": module,
        "_view_name": f"{name}View",
    }


def tell(message: CommMessage) -> None:
    gate().out(message, Removals())


TRAITS = ("value", "description", "options", "_options_labels", "layout", "width", "tooltip")


@pytest.mark.parametrize("widget", ["HTML", "Label", "Dropdown", "Image"])
def test_f5_a_widget_is_told_in_linear_time(widget: str) -> None:
    def build_of(piece: str) -> Build:
        def build(size: int) -> CommMessage:
            text = repeated(piece, size)
            told = {"description_allow_html": True} | dict.fromkeys(TRAITS, text) | {text: text}
            return CommMessage("msg", widget, {"method": "update", "state": told})

        return build

    assert [name for name in some(0) if not is_linear(tell, build_of(name))] == []


def test_f5_all_widgets_states_are_told_in_linear_time() -> None:
    def build(size: int) -> CommMessage:
        states: dict[str, Any] = {f"w{n}": {"state": {}} for n in range(size // 30)}
        paths = [["w0", "state", "value"]] * min(size // 30, 10_000)
        data = {"method": "update_states", "states": states, "buffer_paths": paths}
        return CommMessage("msg", "c", data, buffers=(b"",) * len(paths))

    assert is_linear(tell, build)


# nested f-strings once took quadratic time: 14 seconds for 16 kB, which nothing could end
MAGICS = ["f'{", "[0]", "%fork a[0]", "%time ", "'\\", "f'{a:{", "%%time\n", "x = ", "{x:", 'f"{']
MAGICS += ["\\N{", 'f"\\N{', "{{", "f'{'", "\n\t", " \f", "x=%fork\n", "!", "?", "]", "\\\n"]


@pytest.mark.parametrize(
    "name",
    [
        *sampled({repr(piece): piece for piece in MAGICS}, 12),
        *sampled({repr(piece): piece for piece in PIECES}, 60),
    ],
)
def test_f6_case_45_the_magics_in_a_cell_are_read_in_linear_time(name: str) -> None:
    def read(text: str) -> None:
        commands_in(text, {"pip"})

    def build_of(form: str) -> Build:
        return lambda size: form.format(repeated(name, size)[:249_000])

    forms = ("{}", "x = f'{{{}", "%pip {}")
    assert [form for form in forms if not is_linear(read, build_of(form))] == []


def test_f5_replies_are_checked_in_linear_time() -> None:
    def build(size: int) -> dict[str, Any]:
        return {
            "matches": values(size // 3, str),
            "history": values(size // 3, lambda n: [0, n, "\x1b["]),
            "data": {f"text/{n}": "a" for n in range(size // 30)},
        }

    def reply(given: dict[str, Any]) -> None:
        messages.complete_reply(given, 0)
        messages.history_reply(given)
        messages.inspect_reply(given | {"found": True}, Cleaner(Mode.SAFE))

    assert is_linear(reply, build)


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


def test_parts_that_can_not_be_counted_are_not_used_and_patterns_stay() -> None:
    sheet = "<style>rect {fill: url(#p8); stroke: red}</style>"
    assert "url(" not in safe(SVG, sheet + SQUARE).data[SVG]
    clean = safe(SVG, '<style><a title="x"><style>b{}</style></a></style>')
    assert clean.removed == ("an image with elements in its style sheet",)
    assert safe(HTML, '<use href="#a9"/>').removed == (
        "an image that is made of parts of another one",
    )
    parts = f'<pattern id="h">{SQUARE}</pattern><path d="M0 0h9v9z" style="fill: url(#h)"/>'
    clean = safe(SVG, parts)
    assert 'style="fill: url(#wk-h)"' in clean.data[SVG]
    assert clean.removed == ()
