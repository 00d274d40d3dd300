"""A codec is compiled once on a machine, when a cell first needs it, and that cell says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks import LocalBroker
from wasm_kernel.codecs.table import CODECS
from wasm_kernel.engine.cache import ENVIRONMENT, Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.engine.streams import NAMES, OutputStreams, limit_of
from wasm_kernel.errors import CacheWarning, CompileError
from wasm_kernel.guests.broker_handlers import PrepareCodec, prepare_codec
from wasm_kernel.guests.python.language import compiled_codec
from wasm_kernel.linux.broker import EmptyReply

WAIT = "compiling the codec that reads JPEG, once"
BROKER = LocalBroker({PrepareCodec: prepare_codec})


def said_for(cache: Cache) -> str:
    """Returns the notice that a cell gets when it needs a codec in a process that has used none."""
    said: list[str] = []
    streams = OutputStreams()
    limits = {name: limit_of(name, 1000) for name in NAMES.values()}
    streams.begin(lambda name, text: said.append(text), limits)
    compiled_codec(CODECS["jpeg"], UNCHECKED, Compiler(cache), BROKER, streams)
    return "".join(said)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    tmp_path.chmod(0o700)
    return Cache()


def test_only_the_first_cell_waits(cache: Cache) -> None:
    assert WAIT in said_for(cache)
    assert said_for(cache) == ""


def swap(code: Path) -> None:
    code.write_bytes(code.read_bytes()[:-1] + b"x")


def link(code: Path) -> None:
    code.symlink_to(code.rename(code.with_suffix(".other")))


def test_case_36_code_that_was_swapped_is_refused_and_made_anew(cache: Cache) -> None:
    said_for(cache)
    (code,) = cache.folder.glob("*.cwasm")
    for damage in (swap, link):
        damage(code)
        with pytest.warns(CacheWarning, match="not used and is made anew"):
            assert WAIT in said_for(cache)
        assert said_for(cache) == ""


def test_the_broker_compiles_codecs_alone() -> None:
    with pytest.raises(CompileError, match="no such codec"):
        BROKER.call(PrepareCodec("../python", "unchecked"), EmptyReply)
