"""A smolagents agent's code that answers with what would harm the program: it gets plain text."""

from __future__ import annotations

import struct
import zlib

from PIL import Image
from smolagents import FinalAnswerTool

from wasm_kernel.integrations.smolagents import SandboxExecutor

SHOWS = "class Shows:\n    def __init__(self, data): self.data = data\n"
PICTURE = SHOWS + "    def _repr_png_(self): return self.data\n"
TEXT = SHOWS + "    def __repr__(self): return self.data\n"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


def chunk(name: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    check = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + check


def png(side: int) -> bytes:
    """Returns a small file that claims to be a large picture."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


executor = SandboxExecutor()
executor.send_tools({"final_answer": FinalAnswerTool()})
for data in (EPS, b"no picture", png(60_000)):
    value = executor(f"{PICTURE}Shows({data!r})").output
    print(type(value).__name__)
assert isinstance(executor(f"{PICTURE}Shows({png(10)!r})").output, Image.Image)
for text in ("'[' + '[],' * 50_000 + ']'", "'{[]}'", "'-' * 50_000 + '1'"):
    value = executor(f"{TEXT}Shows({text})").output
    print(type(value).__name__)
print(executor("[{'a': 1}]").output)
MADE = "from PIL import Image\nfinal_answer(Image.new('RGB', (10, 10)))"
assert executor(MADE).output.size == (10, 10)
for data in (EPS, b"no picture", png(60_000)):
    print(executor(f"{PICTURE}final_answer(Shows({data!r}))").output)
executor.cleanup()
