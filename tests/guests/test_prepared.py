"""`PreparedFiles`: carried to another machine, and found damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.cache_archive import read_archive, write_archive
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.errors import CacheWarning
from wasm_kernel.guests.base import load, prepare_on_own_thread
from wasm_kernel.guests.javascript.language import JavaScriptLanguage
from wasm_kernel.policy import RuntimeType


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An archive of the files that this machine has made for JavaScript, and its digest."""
    language = load(RuntimeType.JAVASCRIPT)
    prepare_on_own_thread(language, UNCHECKED, lambda text: None)
    target = tmp_path_factory.mktemp("archive") / "guests"
    return target, write_archive(language.prepared.paths(UNCHECKED), target)


def taken(cache: Cache, archive: tuple[Path, str]) -> tuple[str, ...]:
    with JavaScriptLanguage(cache).prepared.being_imported() as known:
        return read_archive(*archive, cache, known)


def test_a_language_is_carried_to_another_machine(
    archive: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", tmp_path / "none")
    assert len(taken(cache, archive)) == 4  # two modules, the image and its record
    assert taken(cache, archive) == ()
    monkeypatch.setattr(Compiler, "_compile", lambda *_: pytest.fail("compiled"))
    here = load(RuntimeType.JAVASCRIPT).prepared.image_at_hand()
    there = prepare_on_own_thread(JavaScriptLanguage(cache), UNCHECKED, lambda text: None)
    assert here is not None
    assert there.id == here.id


def test_a_damaged_record_is_written_anew(archive: tuple[Path, str], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", tmp_path / "none")
    taken(cache, archive)
    prepared = JavaScriptLanguage(cache).prepared
    with pytest.warns(CacheWarning, match="is damaged"):
        cache.write(prepared.record_name, Path.touch)
        assert prepared.image_at_hand() is None
