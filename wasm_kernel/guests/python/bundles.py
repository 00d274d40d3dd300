"""The guest's files, laid out for the guest.

The guest sees `/usr/local/lib` with its own standard library (`python315.zip`, from the guest's
files) and `wasm-kernel.zip`: the guest agent and the pure-Python packages it stands on, taken from
this environment, where ipykernel needs them anyway. Packages that read files beside their code lie
in the folder `wasm-kernel`. The layout is made once for each combination of
versions and kept in the cache.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import BundleError
from wasm_kernel.guests.python.environment import OPTIONAL, PACKAGES, Environment, agent_files
from wasm_kernel.record import record

STDLIB_NAME = "python315.zip"  # baked into the artifact's sys.path
BUNDLE_NAME = "wasm-kernel.zip"
LIB_GUEST = "/usr/local/lib"
DATA_GUEST = f"{LIB_GUEST}/{STDLIB_NAME}/matplotlib/mpl-data"
PACKAGES_GUEST = "/usr/local/lib/python3.15"
"""Where the guest sees the packages of its session; it imports from `site-packages` in there."""

_DATA_MEMBER = "matplotlib/mpl-data.zip"
_UNPACKED, _FOLDER = {"jedi", "parso"}, "wasm-kernel"
_LEFT_OUT = ("/tests/", "/test/", "/__pycache__/", "/third_party/django-stubs/", "/typeshed/stubs/")


@record
class Layout:
    """The laid-out files: host folders behind the guest's fixed, read-only paths."""

    lib: Path
    data: Path
    root: Path


def lay_out(environment: Environment, cache: Cache) -> Layout:
    """The laid-out files, made if they are not there yet.

    Raises:
        BundleError: a package that the agent needs is not installed.
    """
    cache.prepare()
    name = folder_name(environment)
    folder = cache.path(name)
    if cache.folder_of(name) is None:
        with cache.lock("bundle", lambda seconds: None):
            if cache.folder_of(name) is None:
                _make(environment, folder)
    return Layout(folder / "lib", folder / "mpl-data", folder / "root")


def folder_name(environment: Environment) -> str:
    """The cache's name for the laid-out files."""
    return f"bundle-{environment.key}"


def _make(environment: Environment, folder: Path) -> None:
    import zipfile

    aside = Path(tempfile.mkdtemp(prefix=".bundle-", dir=folder.parent))
    lib = aside / "lib"
    lib.mkdir()
    shutil.copyfile(environment.stdlib, lib / STDLIB_NAME)
    with (
        zipfile.ZipFile(environment.stdlib) as outer,
        outer.open(_DATA_MEMBER) as inner,
        zipfile.ZipFile(inner) as data,
    ):
        data.extractall(aside / "mpl-data")
    with zipfile.ZipFile(lib / BUNDLE_NAME, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, path in _bundle_files():
            if name.partition("/")[0] in _UNPACKED:
                target = lib / _FOLDER / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            else:
                bundle.write(path, name)
        for name, text in _metadata(environment):
            bundle.writestr(name, text)
    for name in ("app", "tmp", "usr"):
        (aside / "root" / name).mkdir(parents=True)
    aside.rename(folder)


def _metadata(environment: Environment) -> Iterator[tuple[str, str]]:
    """What `importlib.metadata` reads of the packages that the guest is given."""
    for name in sorted(set(PACKAGES.values()) & set(environment.packages)):
        version = environment.packages[name]
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        yield f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        yield f"{folder}/INSTALLER", "wasm-kernel\n"


def _bundle_files() -> Iterator[tuple[str, Path]]:
    yield from agent_files()
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            if name in OPTIONAL:
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
