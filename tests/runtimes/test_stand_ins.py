"""The stand-ins for compiled modules, mapped files and packages, beside real ones."""

from __future__ import annotations

import _ssl
import importlib
import mmap as real
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import rpds
from wasm_kernel_agent import mapped_files
from wasm_kernel_agent.package_hooks import (
    Change,
    ChangingFinder,
    name_plotlys_renderer,
    show_plotly,
    show_vegalite,
)
from wasm_kernel_agent.stand_ins import _ssl as our_ssl
from wasm_kernel_agent.stand_ins import jiter
from wasm_kernel_agent.stand_ins import rpds as ours
from wasm_kernel_agent.unavailable import (
    PACKAGES,
    STAND_INS,
    advice_on_import_error,
    advice_on_module,
    advice_on_packages,
)

KINDS = ("OP_", "SSL_ERROR_", "VERIFY_", "PROTOCOL_", "PROTO_", "CERT_")
DIFFERENT = {"OP_ALL", "OP_NO_SSLv2", "PROTO_MAXIMUM_SUPPORTED", "PROTO_MINIMUM_SUPPORTED"}


def test_the_numbers_of_ssl_are_openssls() -> None:
    known = {name for name in vars(_ssl) if name.startswith(KINDS)} - DIFFERENT
    shared = {name: getattr(our_ssl, name) for name in known if hasattr(our_ssl, name)}
    assert len(shared) > 40
    assert shared == {name: getattr(_ssl, name) for name in shared}


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, as plain values, or the type of its error."""
    try:
        value = call()
    except (KeyError, IndexError) as problem:
        return type(problem)
    if type(value).__name__ == "HashTrieMap":
        return dict(value)
    return list(value) if hasattr(value, "__iter__") else value


@pytest.mark.parametrize(
    "act",
    [
        lambda r: r.HashTrieMap({"a": 1}).insert("b", 2),
        lambda r: r.HashTrieMap({"a": 1}).insert("a", 2).remove("a"),
        lambda r: r.HashTrieMap({"a": 1}).remove("b"),
        lambda r: r.HashTrieMap([("a", 1)], b=2) == r.HashTrieMap({"a": 1, "b": 2}),
        lambda r: r.HashTrieMap({"a": 1}).update({"c": 3}, d=4),
        lambda r: r.HashTrieMap.convert({"a": 1}),
        lambda r: r.List([1, 2]).push_front(0),
        lambda r: (len(r.List([1])), r.List([1]) == r.List([1])),
        lambda r: hash(r.HashTrieMap({"a": 1})) == hash(r.HashTrieMap({"a": 1})),
        lambda r: r.HashTrieSet([1]).insert(1).insert(1).discard(2),
        lambda r: r.HashTrieSet([1]) == r.HashTrieSet([1]).update([1]),
    ],
)
def test_collections_behave_as_those_of_rpds(act: Callable[[Any], Any]) -> None:
    assert outcome(lambda: act(ours)) == outcome(lambda: act(rpds))


@pytest.mark.parametrize(
    ("text", "found", "with_strings"),
    [
        ('{"a": [1, "b', {"a": [1]}, {"a": [1, "b"]}),
        ('{"a": 1, "b', {"a": 1}, {"a": 1}),
        ("[1, tru", [1], [1]),
        ('["a\\n\\u00', [], ["a\n"]),
        ('{"a": {"b": [{}', {"a": {"b": [{}]}}, {"a": {"b": [{}]}}),
        ('{"a": "b", "c": [1]} ', {"a": "b", "c": [1]}, {"a": "b", "c": [1]}),
    ],
)
def test_unfinished_json_is_read_as_by_jiter(text: str, found: Any, with_strings: Any) -> None:
    """The values are those of jiter 0.19."""
    data = text.encode()
    assert jiter.from_json(data, partial_mode=True) == found
    assert jiter.from_json(data, partial_mode="trailing-strings") == with_strings
    assert jiter.from_json('["é'.encode()[:-1], partial_mode="trailing-strings") == [""]
    assert jiter.from_json(b'{"a": [1]}') == {"a": [1]}


def test_json_that_is_not_json_is_refused() -> None:
    for data, mode in ((b"[1, 2", False), (b"[1 2", True), (b"", True), (b"[x, 2", True)):
        with pytest.raises(ValueError, match="line 1"):
            jiter.from_json(data, partial_mode=mode)


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("install torch>=2", "torch"),
        ("install 'Opencv_Python'", "cv2"),
        ("install psutil", "psutil"),
        ("faiss-cpu needs compiled code", "faiss"),
        ("pymupdf needs compiled code", "fitz"),
        ("polars-runtime-32 needs compiled code. It is needed by polars 1.3.", "polars"),
    ],
)
def test_packages_that_pip_can_not_install_have_a_stand_in(text: str, module: str) -> None:
    assert advice_on_packages(text) == f" In place of {module}: {STAND_INS[module]}."


@pytest.mark.parametrize(
    ("module", "words"),
    [("docx", "%pip install python-docx"), ("google", "in Google's Colab only")],
)
def test_a_module_of_another_package_than_its_name_says(module: str, words: str) -> None:
    assert words in advice_on_module(module)
    assert words not in advice_on_import_error(f"install {module}.x for this")


def test_names_are_of_known_modules_and_nothing_is_said_of_others() -> None:
    assert advice_on_packages("install rich needs compiled code") == ""
    assert not [text for text in STAND_INS.values() if text.endswith(".")]
    assert {"cv2", "skimage", "umap"} <= STAND_INS.keys() & PACKAGES.keys()


Import = Callable[[str, Change], ModuleType]


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a module of this text, with a change."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(text: str, change: Change) -> ModuleType:
        (tmp_path / "changed_here.py").write_text(text)
        monkeypatch.setattr(
            sys, "meta_path", [ChangingFinder({"changed_here": change}), *sys.meta_path]
        )
        monkeypatch.delitem(sys.modules, "changed_here", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("changed_here")

    return load


def test_a_figure_that_nothing_draws_says_what_would(changed: Import) -> None:
    text = "class PlotlyRenderer:\n    def to_mimebundle(self, figure): return {'plotly': figure}"
    module = changed(text, name_plotlys_renderer)
    bundle = module.PlotlyRenderer().to_mimebundle({"data": []})
    assert bundle.pop("plotly") == {"data": []}
    assert "pip install 'wasm-kernel[plots]'" in bundle["text/plain"]


@pytest.mark.parametrize(
    ("before", "after"), [("plotly_mimetype+notebook", "plotly_mimetype"), ("png", "png")]
)
def test_figures_are_sent_as_data_alone(changed: Import, before: str, after: str) -> None:
    text = f"class renderers:\n    default = {before!r}"
    assert changed(text, show_plotly).renderers.default == after


def test_charts_are_sent_in_a_form_that_jupyterlab_draws(changed: Import) -> None:
    text = "class renderers:\n    made = {}\n    register = made.__setitem__\n    enable = made.get"
    made = changed(text, show_vegalite).renderers.made
    data, metadata = made["mimetype"]({"mark": "bar"}, embed_options={})
    assert data["application/vnd.vegalite.v5+json"] == {"mark": "bar"}
    assert metadata == {"application/vnd.vegalite.v5+json": {"embed_options": {}}}


def test_another_version_of_a_package_is_left_alone(changed: Import) -> None:
    module = changed("number = 1", name_plotlys_renderer)
    assert module.number == 1
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"


our_mmap = ModuleType("mmap")
mapped_files.install(our_mmap)

TEXT = b"one\ntwo\n\nthree" + bytes(5_000)


def answers(module: Any, file: Path, work: Callable[[Any, Any], Any]) -> tuple[Any, bytes]:
    """Returns what some work on a map answers, or the error that it raises, and the file then."""
    file.write_bytes(TEXT)
    with file.open("r+b") as opened:
        try:
            found = work(module, opened.fileno())
        except (ValueError, TypeError, IndexError, OSError) as problem:
            found = type(problem), str(problem).replace("bytearray", "mmap")
    return found, file.read_bytes()


def lines(m: Any, fd: int) -> list[Any]:
    a = m.mmap(fd, 0, access=m.ACCESS_READ)
    return [a.readline() for _ in range(4)] + [a.tell(), a.read(3), a.read_byte(), a.seek(-2, 2)]


def searches(m: Any, fd: int) -> list[Any]:
    a = m.mmap(fd, 14, access=m.ACCESS_COPY)
    a.seek(2)
    return [a.find(b"o"), a.find(b"o", 7), a.rfind(b"t"), a.find(b"t", 0, 3), a.find(b""), len(a)]


def writes(m: Any, fd: int) -> list[Any]:
    a = m.mmap(fd, 20, access=m.ACCESS_COPY)
    a[0], a[1:3], a[-1] = 79, b"NE", 33
    a.seek(4)
    told = [a.write(b"TWO"), a.tell(), a[0], a[:8], a[::3], list(a)[:2]]
    a.write_byte(46)
    a.move(10, 0, 4)
    a.flush()
    a.close()
    return told


def with_block(m: Any, fd: int) -> Any:
    with m.mmap(fd, 0, access=m.ACCESS_READ) as a:
        a.flush()
    return a.closed


def part(m: Any, fd: int) -> list[bytes]:
    a = m.mmap(fd, 10, access=m.ACCESS_COPY, offset=4096)
    before = a[:]
    a[:] = b"0123456789"
    return [before, a[2:5]]


def private(m: Any, fd: int) -> list[Any]:
    found = []
    for options in ({"access": m.ACCESS_COPY}, {"flags": m.MAP_PRIVATE}):
        a = m.mmap(fd, 0, **options)
        a[:3] = b"new"
        found.append(a[:4])
        a.close()
    return found


def memory(m: Any, _: int) -> list[Any]:
    a = m.mmap(-1, 100)
    return [a.write(b"abc"), a[:4], len(a)]


@pytest.mark.parametrize(
    "work",
    [
        *(lines, searches, writes, with_block, part, private, memory),
        lambda m, fd: m.mmap(fd, 0, access=m.ACCESS_READ).madvise(m.MADV_SEQUENTIAL),
        lambda m, fd: m.mmap(fd, 0, access=m.ACCESS_READ).write(b"x"),
        lambda m, fd: m.mmap(fd, 0, prot=m.PROT_READ).__setitem__(0, 1),
        lambda m, fd: m.mmap(fd, 0, flags=m.MAP_PRIVATE).__setitem__(slice(0, 3), b"four"),
        lambda m, fd: m.mmap(fd, 0, flags=m.MAP_PRIVATE).__getitem__(9_999),
        lambda m, fd: m.mmap(fd, 9_999_999, flags=m.MAP_PRIVATE),
        lambda m, fd: m.mmap(fd, 10, flags=m.MAP_PRIVATE, offset=5),
        lambda m, fd: m.mmap(fd, 4, flags=m.MAP_PRIVATE, offset=8192),
        lambda m, fd: m.mmap(fd, 8, flags=m.MAP_PRIVATE).write(b"123456789"),
        lambda m, fd: m.mmap(fd, 8, flags=m.MAP_PRIVATE).seek(9),
        lambda m, fd: [
            m.mmap(fd, 8, flags=m.MAP_PRIVATE).seek(8),
            (a := m.mmap(fd, 8, flags=m.MAP_PRIVATE)).seek(8),
            a.read_byte(),
        ],
        lambda m, fd: m.mmap(fd, 8, flags=m.MAP_PRIVATE).move(4, 0, 6),
        lambda m, fd: [a := m.mmap(fd, 8, flags=m.MAP_PRIVATE), a.close(), a.read()][2],
    ],
)
def test_a_map_answers_and_leaves_the_file_as_the_real_one(
    work: Callable[[Any, Any], Any], tmp_path: Path
) -> None:
    assert answers(our_mmap, tmp_path / "a", work) == answers(real, tmp_path / "b", work)


def test_a_map_that_would_change_its_file_or_of_an_empty_one_is_refused(tmp_path: Path) -> None:
    found, content = answers(our_mmap, tmp_path / "a", lambda m, fd: m.mmap(fd, 0))
    assert "mode='r'" in found[1]
    assert content == TEXT
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open("rb") as file, pytest.raises(ValueError, match="empty"):
        mapped_files.MappedFile(file.fileno(), 0, access=our_mmap.ACCESS_READ)
