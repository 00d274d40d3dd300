"""JPEG and WebP in the sandbox, beside what Pillow with libjpeg and libwebp does (`pictures/`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codecs.as_pyarrow import said
from tests.faces import error_of
from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox

FILES = Path(__file__).parent / "pictures"
FOLDERS = (FILES,)
SETUP = """
import io, warnings
import numpy as np
from PIL import Image

def difference(one, other):
    one, other = (np.asarray(each).astype(int) for each in (one, other))
    return np.abs(one - other).max() if one.shape == other.shape else (one.shape, other.shape)
"""


MODES = {
    "baseline.jpg": "RGB",
    "progressive.jpg": "RGB",
    "grey.jpg": "L",
    "lossless.webp": "RGB",
    "lossy.webp": "RGB",
    "transparent.webp": "RGBA",
}


def test_a_picture_has_the_pixels_that_it_has_elsewhere_and_its_inks(sandbox: BaseSandbox) -> None:
    code = f"for name in {[*MODES]}:\n    p = Image.open(name)\n"
    code += "    print(name, p.mode, difference(p, Image.open(name + '.png')))"
    assert said(sandbox, code).splitlines() == [f"{name} {MODES[name]} 0" for name in MODES]
    code = "p = Image.open('cmyk.jpg'); print(p.mode)\n"
    code += "print(difference(p.convert('RGB'), Image.open('cmyk.jpg.png')))"
    assert said(sandbox, code).split() == ["CMYK", "0"]


def test_a_cut_picture_is_read_in_part_and_pillow_reports_on_itself(sandbox: BaseSandbox) -> None:
    code = """
from PIL import ImageFile
cut = Image.open(io.BytesIO(open("baseline.jpg", "rb").read()[:-60]))
ImageFile.LOAD_TRUNCATED_IMAGES = True
whole, cut = np.asarray(Image.open("baseline.jpg")), np.asarray(cut)
ImageFile.LOAD_TRUNCATED_IMAGES = False
print((whole[:8] == cut[:8]).all(), (whole == cut).all())
"""
    assert said(sandbox, code) == "True False"
    code = "from PIL import features; features.pilinfo(supported_formats=False)"
    assert "--- JPEG support ok" in said(sandbox, code)


def test_webp_is_read_frame_by_frame_or_once_it_is_whole(sandbox: BaseSandbox) -> None:
    code = "p = Image.open('animated.webp'); p.seek(2); p.load()\n"
    code += "print(p.n_frames, p.info['loop'], p.info['duration'], p.info['timestamp'])\n"
    code += "print(difference(p, Image.open('animated.webp.png').convert(p.mode)))"
    assert said(sandbox, code).split() == ["3", "2", "100", "200", "0"]
    code = "p = Image.open('lossy.webp'); print(p.info['background'], p.info['loop'])\n"
    code += "from PIL.ImageFile import Parser\n"
    code += "parser, data = Parser(), open(p.filename, 'rb').read()\n"
    code += "parser.feed(data[:100]); print(parser.image)\n"
    code += "parser.feed(data[100:]); print(parser.close().size == p.size)"
    assert said(sandbox, code) == "(255, 255, 255, 255) 1\nNone\nTrue"


def test_exif_profile_and_resolution_are_read_and_written(sandbox: BaseSandbox) -> None:
    code = """
p = Image.open("baseline.jpg")
p.save("copy.jpg", quality=95, exif=p.getexif(), icc_profile=p.info["icc_profile"], dpi=(72, 72))
p.save("copy.webp", exif=p.getexif(), icc_profile=p.info["icc_profile"])
for name in ("baseline.jpg", "copy.jpg", "copy.webp"):
    o = Image.open(name)
    print(o.getexif()[274], o.info["icc_profile"], o.info.get("comment"), o.info.get("dpi"))
print(difference(p, Image.open("copy.jpg")) < 8, difference(p, Image.open("copy.webp")))
"""
    assert said(sandbox, code).splitlines() == [
        "6 b'a profile' b'a comment' (300, 300)",
        "6 b'a profile' b'a comment' (72, 72)",
        "6 b'a profile' None None",
        "True 0",
    ]


def test_matplotlib_and_thumbnails_work_with_both(sandbox: BaseSandbox) -> None:
    code = """
import matplotlib.pyplot as plt
figure = plt.figure(figsize=(2, 1)); plt.plot([1, 2])
for name in ("figure.jpg", "figure.webp"):
    figure.savefig(name)
    print(plt.imread(name).shape[:2])
plt.close(figure)
"""
    assert said(sandbox, code) == "(100, 200)\n(100, 200)"
    code = "p = Image.open('baseline.jpg'); p.thumbnail((8, 8)); print(p.size, p.mode)\n"
    code += "p = Image.open('baseline.jpg'); p.draft('L', (8, 6)); p.load(); print(p.size, p.mode)"
    assert said(sandbox, code) == "(8, 6) RGB\n(8, 6) L"


# The arguments of `save`, by the first digits of the SHA-256 of the file that Pillow 13.0.0 writes
# with libjpeg-turbo 3.2.0 elsewhere.
WRITTEN = {
    "307041a7": "",
    "7a0b52de": "progressive=True, optimize=True, subsampling='4:2:2'",
    "de7107f2": "subsampling=3, smooth=30, restart_marker_rows=1, restart_marker_blocks=3",
    "290b2e61": "quality=10, qtables=[[*range(1, 65)], [*range(2, 66)], [9] * 64]",
    "8e0d7dc9": "dpi=(72, 300), comment='a', exif=b'Exif\\0\\0b', icc_profile=b'p' * 70000",
    "e2bf2c50": "mode='YCbCr'",
    "81e9a04a": "mode='CMYK', subsampling=2, dpi=(3, 4)",
    "8e31b523": "quality=0, comment='ünï'",
}


@pytest.mark.parametrize("digest", WRITTEN)
def test_a_jpeg_is_written_byte_for_byte_as_elsewhere(sandbox: BaseSandbox, digest: str) -> None:
    code = f"""
import hashlib
def written(mode='RGB', **options):
    file = io.BytesIO()
    Image.open('baseline.jpg.png').convert(mode).save(file, 'JPEG', **options)
    return hashlib.sha256(file.getvalue()).hexdigest()
print(written({WRITTEN[digest]})[:8])
"""
    assert said(sandbox, code) == digest


HOSTILE = {
    "cut": ("jpeg[:-30]", "image file is truncated"),
    "junk in the pixels": ("jpeg[:scan] + b'\\xff\\xc4' * 40 + jpeg[-2:]", "can't be decoded"),
    "a size beyond all memory": (
        "jpeg[:size] + b'\\xff\\xf0\\xff\\xf0' + jpeg[size + 4 :]",
        "decompression bomb",
    ),
    "a WebP of lies": ("b'RIFF\\xff\\xff\\xff\\xffWEBPVP8L' + b'\\x7f' * 40", ""),
    "a WebP without pixels": ("webp[:20]", ""),
    "a cut frame": ("anim[: anim.index(b'ANMF')] + b'ANMF\\4\\0\\0\\0' + bytes(4)", "cut off"),
    "an animation of lies": ("anim[:200] + b'\\xff' * 300", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_picture_is_an_error_in_words(sandbox: BaseSandbox, name: str) -> None:
    data, words = HOSTILE[name]
    code = f"""
names = "baseline.jpg", "lossy.webp", "animated.webp"
jpeg, webp, anim = (open(each, "rb").read() for each in names)
size, scan = jpeg.index(b"\\xff\\xc0") + 5, jpeg.rindex(b"\\xff\\xda") + 14
with Image.open(io.BytesIO({data})) as p:
    p.seek(getattr(p, "n_frames", 1) - 1)
    p.load()
"""
    assert words in error_of(sandbox.execute(code))
    assert said(sandbox, "print(Image.open('baseline.jpg').convert('L').size)") == "(32, 24)"


JPEG = '{"codec": "jpeg_writer", "function": "encode", "at": 8, "length": %s, "numbers": %s}'


FORGED = [
    '{"codec": "webp", "function": "decode", "at": 4294967295, "length": 4294967295}',
    '{"codec": "pictures", "function": "close", "at": 0, "length": 1}',
    '{"codec": "os", "function": "decode", "at": 0, "length": 1}',
    '{"codec": "webp", "function": "decode", "at": 0, "length": 8, "numbers": [1, 2, 3]}',
    '{"codec": "pictures", "function": "encode_webp", "at": 0, "length": 8, "numbers": [9, 9]}',
    JPEG % (8, [1, 1, 8]),
    JPEG % (8, [2, 4, 1, 999, 77, 0, 0, 0]),
    JPEG % (0, [0, 0, 3, 75, 2, 0, 0, 0]),
    JPEG % (0, [65_500, 65_500, 0, 75, 2, 0, 0, 0]),
    JPEG % (12, [2, 2, 3, 75, 2, 0, 0xFFFF_FFFF, 5]),
    '{"codec": "webp", "function": "decode", "at": 0, "length": 0}',
    "[" * 100_000,
]


def test_a_forged_request_is_answered_with_a_refusal(sandbox: BaseSandbox) -> None:
    for request in FORGED:
        code = f"import _host; print(_host.call(b'\\0' + {request.encode()!r})[0])"
        assert said(sandbox, code) == "1", request


def test_a_codec_burns_the_fuel_of_its_cell(warm_metered: None, tmp_path: Path) -> None:
    budget = 500_000_000
    policy = ExecutionPolicy(fuel_budget=budget)
    with create_sandbox(workspace=tmp_path, policy=policy) as sandbox:
        sandbox.execute(SETUP + "p = Image.new('RGB', (1000, 1000)); p.save('once.jpg')")
        burnt = sandbox.execute("p.save('twice.jpg')").fuel_consumed
        assert burnt is not None
        assert burnt > 20_000_000
        assert "fuel" in error_of(sandbox.execute("for _ in range(1000): p.save('often.jpg')"))


def test_a_codec_has_no_more_memory_than_the_guest(tmp_path: Path) -> None:
    policy = ExecutionPolicy(memory_bytes=512 * 1024 * 1024)
    with create_sandbox(workspace=tmp_path, policy=policy) as sandbox:
        code = SETUP + "from wasm_kernel_agent.codecs.calls import call\n"
        code += "call('pictures', 'encode_webp', np.zeros(7000 * 6000 * 4, 'u1'), 7000, 6000)"
        assert "more memory" in error_of(sandbox.execute(code))
        assert said(sandbox, "print(1)") == "1"
