"""A codec is compiled once on a machine, when a cell first needs it, and that cell says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from wasm_kernel.codecs.table import CODECS
from wasm_kernel.engine.cache import ENVIRONMENT, Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.engine.streams import NAMES, OutputStreams, limit_of
from wasm_kernel.errors import CompileError
from wasm_kernel.guests.broker_handlers import PrepareCodec, prepare_codec
from wasm_kernel.guests.codecs import compiled_codec
from wasm_kernel.linux.broker import Done, LocalBroker

BROKER = LocalBroker({PrepareCodec: prepare_codec})


def said_for(cache: Cache) -> str:
    """Returns the notice that a cell gets when it needs a codec in a process that has used none."""
    said: list[str] = []
    streams = OutputStreams()
    limits = {name: limit_of(name, 1000) for name in NAMES.values()}
    streams.begin(lambda name, text: said.append(text), limits)
    compiled_codec(CODECS["jpeg"], UNCHECKED, Compiler(cache), BROKER, streams)
    return "".join(said)


def test_only_the_first_cell_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    tmp_path.chmod(0o700)
    assert "compiling the codec that reads JPEG, once" in said_for(Cache())
    assert said_for(Cache()) == ""


def test_the_broker_compiles_codecs_alone() -> None:
    with pytest.raises(CompileError, match="no such codec"):
        BROKER.call(PrepareCodec("../python", "unchecked"), Done)
