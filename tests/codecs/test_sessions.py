"""Codecs in the life of a session: the first use on a machine, interrupts and undo."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.codecs.as_pyarrow import said
from tests.faces import put_back
from tests.tasks import LocalBroker
from wasm_kernel import ExecutionPolicy, Sandbox, SandboxResult, create_sandbox
from wasm_kernel.codecs.table import CODECS
from wasm_kernel.engine.cache import ENVIRONMENT, Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.engine.streams import NAMES, OutputStreams, limit_of
from wasm_kernel.errors import CacheWarning, CompileError
from wasm_kernel.guests.broker_handlers import PrepareCodec, prepare_codec
from wasm_kernel.guests.python.language import compiled_codec
from wasm_kernel.linux.broker import EmptyReply

PICTURES = Path(__file__).parent / "pictures"
SETUP = """
import io
import numpy as np, pandas as pd
from PIL import Image
df = pd.DataFrame({"n": range(1000), "t": ["a", "b"] * 500})
df.to_parquet("t.parquet"); df.to_feather("t.feather")
back = pd.read_parquet("t.parquet")
picture = Image.open("baseline.jpg")  # its pixels are not decoded yet
"""
USE = """
picture.convert("L")
print(back.equals(df), pd.read_feather("t.feather").equals(df), picture.size)
"""
WORKS = "True True (32, 24)"

PIXELS = """
from wasm_kernel_agent.codecs.calls import call
pixels = np.random.default_rng(1).integers(0, 255, (4000, 4000, 4), "u1")  # seconds of work
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The file's only sandbox, with tables and pictures."""
    policy = ExecutionPolicy(memory_bytes=2 << 30, cell_timeout=300, grace_seconds=0.3)
    with create_sandbox(workspace=tmp_path_factory.mktemp("app"), policy=policy) as made:
        shutil.copy(PICTURES / "baseline.jpg", made.workspace)
        said(made, SETUP)
        yield made


@pytest.fixture
def sandbox(opened: Sandbox) -> Sandbox:
    return put_back(opened)


def test_undo_takes_back_tables_and_with_files_pictures(sandbox: Sandbox) -> None:
    assert said(sandbox, "df['n'] = 0; df.to_parquet('t.parquet'); picture.save('new.jpg')") == ""
    assert "df['n'] = 0" in said(sandbox, "%undo --files")
    assert said(sandbox, USE) == WORKS
    assert said(sandbox, "print(pd.read_parquet('t.parquet').equals(df))") == "True"
    assert "No such file" in said(sandbox, "Image.open('new.jpg')")


def begun(sandbox: Sandbox, code: str) -> Future[SandboxResult]:
    """Begins a cell that calls a codec; returns its future once the codec is about to begin."""
    place = Path(sandbox.execute("1").workspace_path, "begun")
    future = sandbox.submit(f"open('begun', 'w').close()\n{code}")
    while not place.exists():
        assert not future.done(), future.result()
        time.sleep(0.01)
    time.sleep(0.3)
    assert not future.done()
    return future


def test_an_interrupt_ends_a_codec_and_keeps_the_variables(sandbox: Sandbox) -> None:
    sandbox.execute(PIXELS)
    future = begun(sandbox, "call('pictures', 'encode_webp', pixels, 4000, 4000)")
    sandbox.interrupt()
    error = future.result(60).error
    # the codec does not hear it: the call is ended with the worker, if it goes on beyond the grace
    assert error is not None and error.ename in ("Interrupted", "KeyboardInterrupt")
    assert said(sandbox, USE) == WORKS


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
