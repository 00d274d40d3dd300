"""Wheels made for a test, and an index of them that a real pip reads."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.forking import forked
from wasm_kernel.guests.python.packages import pip

Make = Callable[..., Path]


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    files: Mapping[str, str | bytes] | None = None,
    *,
    needs: tuple[str, ...] = (),
    tags: str = "py3-none-any",
    pure: bool = True,
    record: bool = True,
    metadata: str = "",
    extra: Callable[[zipfile.ZipFile], None] = lambda archive: None,
) -> Path:
    """A wheel with these files; by default, with a module of its name that knows its version."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    inside: dict[str, str | bytes] = dict(files or {f"{module}.py": f"version = {version!r}\n"})
    headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    headers += [f"Requires-Dist: {need}" for need in needs]
    inside[f"{info}/METADATA"] = "\n".join(headers) + "\n" + metadata
    kind = "true" if pure else "false"
    inside[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: {kind}\nTag: {tags}\n"
    rows = []
    path = folder / f"{module}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in inside.items():
            data = content.encode() if isinstance(content, str) else content
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{place},sha256={digest},{len(data)}")
            archive.writestr(place, data)
        extra(archive)
        if record:
            archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes wheels in a folder of this test."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    return lambda *args, **options: make_wheel(folder, *args, **options)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes wheels in an index; the host's pip is configured to use only this index."""
    return index_in(tmp_path / "index", monkeypatch)


@pytest.fixture(scope="module")
def forked_pip() -> Iterator[None]:
    """Does the work of `fork_pip` for a file."""
    with pytest.MonkeyPatch.context() as patch:
        fork_pip(patch)
        yield


def fork_pip(patch: pytest.MonkeyPatch) -> None:
    """Forks pip from a process that has imported it, which takes most of its time."""
    patch.setattr(pip, "tied_command", lambda _: forked(program="pip._internal.cli"))


def index_in(root: Path, patch: pytest.MonkeyPatch) -> Make:
    """Does the work of `index` in a folder, until the patch ends."""
    root.mkdir()
    for name in [each for each in os.environ if each.startswith("PIP_")]:
        patch.delenv(name)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_INDEX_URL", root.as_uri())

    def add(name: str, *args: object, **options: object) -> Path:
        folder = root / name
        folder.mkdir(exist_ok=True)
        path = make_wheel(folder, name, *args, **options)  # type: ignore[arg-type]
        links = (f'<a href="{each.name}">{each.name}</a>' for each in folder.glob("*.whl"))
        (folder / "index.html").write_text(f"<!DOCTYPE html><body>{''.join(links)}</body>")
        return path

    return add
