"""The guest's files: found in this Python environment, and laid out as the guest sees them.

Finding the files takes a tenth of a second, most of it for imports. So the result is kept in the
cache with a stamp of everything that would change it, and found anew if the stamp differs.

The guest sees `/usr/local/lib` with its own standard library (`python315.zip`) and
`wasm-kernel.zip`: the guest agent and the pure-Python packages it stands on, taken from this
environment, where ipykernel needs them anyway. Packages that read files beside their code lie in
the folder `wasm-kernel`. The layout is made once for each combination of versions and kept in the
cache. A base image that was installed brings the packages that it was built of.

The zip of the same packages is the same everywhere, byte for byte: a base image holds the positions
of files in the zip, and may come from another machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wasm_kernel.engine.cache import REINSTALL, Cache, CacheError, built_folder, writing
from wasm_kernel.errors import BundleError
from wasm_kernel.guests.base import LanguageInfo, runtimes_folder
from wasm_kernel.wasi_files.preopens import NULL_DEVICE

if TYPE_CHECKING:
    from wasm_kernel.engine.compiler import GuestBinary

FOLDER = "_guest"
STDLIB_NAME = "python315.zip"  # baked into the artifact's sys.path
BUNDLE_NAME = "wasm-kernel.zip"
LIB_GUEST = "/usr/local/lib"
DATA_GUEST = f"{LIB_GUEST}/{STDLIB_NAME}/matplotlib/mpl-data"
PACKAGES_GUEST = "/usr/local/lib/python3.15"
"""The guest's path of its session's packages; it imports from `site-packages` in there."""

_STACK_BYTES = 8 * 1024 * 1024  # as the binary is linked
PACKAGES_NOTE = "packages.json"
"""The file beside an installed `lib` that says which packages are in it."""

_HELP_LINKS = (
    ("Python Reference", "https://docs.python.org/3.15"),
    ("IPython Reference", "https://ipython.readthedocs.io/en/stable/"),
    ("NumPy Reference", "https://numpy.org/doc/stable/reference/"),
    ("pandas Reference", "https://pandas.pydata.org/docs/reference/"),
    ("Matplotlib Reference", "https://matplotlib.org/stable/api/"),
)
_LAYOUT = "5"
_BINARY, _STDLIB = "python-snapshot.wasm", "python-stdlib.zip"
_DATA_MEMBER = "matplotlib/mpl-data.zip"
_UNPACKED, _FOLDER = {"jedi", "parso", "nbformat", "jsonschema_specifications"}, "wasm-kernel"
_LEFT_OUT = ("/tests/", "/test/", "/__pycache__/", "/third_party/django-stubs/", "/typeshed/stubs/")

PACKAGES = (
    *("IPython", "ipython_pygments_lexers", "traitlets", "pygments", "matplotlib_inline", "comm"),
    *("stack_data", "executing", "asttokens", "pure_eval", "ipywidgets", "jedi", "parso"),
    *("prompt_toolkit", "wcwidth"),
    # needed by Plotly and Altair to show a figure
    *("nbformat", "fastjsonschema", "jsonschema", "jsonschema_specifications", "referencing"),
)
"""The packages that are added to the guest's own, by the names that they are imported by."""

_STAND_INS = ("rpds_py",)
"""Compiled packages whose interface the agent brings in pure Python (its folder `stand_ins`)."""

OWN_PACKAGES = {"jiter": "0.99.0"}
"""Stand-ins of packages that are not installed here; the versions suit clients of AI services."""

_METADATA = r"([^/-]+)-([^/-]+)\.dist-info/METADATA"


class PythonFiles(msgspec.Struct, frozen=True):
    """The guest's sources: the paths of its wasm file and of its standard library's zip, and facts.

    The `key` names this combination of guest, agent and packages. The digest is the binary's
    SHA-256, as its package notes it; it is checked before compiling. The version is such as
    `3.15.0`; `packages` maps the names of built-in distributions to their versions; `patches` are
    the names of those that the recipe in `guest/` made to the binary.
    """

    key: str
    binary: str
    binary_digest: str
    stdlib: str
    python_version: str
    packages: Mapping[str, str]
    patches: tuple[str, ...] = ()

    @property
    def wasm(self) -> GuestBinary:
        """The wasm file, as the compiler takes it."""
        from wasm_kernel.engine.compiler import GuestBinary  # imports wasmtime

        return GuestBinary(
            Path(self.binary), self.binary_digest, "the Python guest", _STACK_BYTES, REINSTALL
        )


class _Note(msgspec.Struct):
    stamp: str
    files: PythonFiles


def guest_files(cache: Cache) -> PythonFiles:
    """Returns the guest's sources, remembered or found; `BundleError` says what to install."""
    stamp = _stamp()
    if (known := _recall(cache, stamp)) is not None:
        return known
    found = find(cache)
    note = msgspec.json.encode(_Note(stamp, found))
    try:
        cache.prepare()
        cache.write(_note_name(), lambda path: path.write_bytes(note))
    except CacheError as problem:  # a confined worker may only read the cache
        if not isinstance(problem.__cause__, PermissionError | None):
            raise
    return found


def info() -> LanguageInfo:
    """Returns the facts about the language; the version is that of the guest's files."""
    try:
        version = guest_files(Cache()).python_version
    except (BundleError, OSError):
        version = "unknown"  # the first cell says which file is missing
    language = {
        "name": "python",
        "version": version,
        "mimetype": "text/x-python",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
        "file_extension": ".py",
    }
    return LanguageInfo(f"Python {version}", language, _HELP_LINKS)


def remembered(cache: Cache) -> PythonFiles | None:
    """Returns the guest's sources if they were found earlier and nothing has changed since."""
    return _recall(cache, _stamp())


def _recall(cache: Cache, stamp: str) -> PythonFiles | None:
    path = cache.trusted(_note_name())
    if path is None:
        return None
    try:
        note = msgspec.json.decode(path.read_bytes(), type=_Note)
    except msgspec.MsgspecError:
        cache.discard(_note_name(), "is damaged")
        return None
    return note.files if note.stamp == stamp else None


def _installed() -> list[str]:
    """Returns the folders in which packages are found."""
    return [entry for entry in sys.path if entry.endswith("-packages")]


def _note_name() -> str:
    places = "\n".join((sys.prefix, str(runtimes_folder()), *_installed()))
    return f"guest-files-{hashlib.sha256(places.encode()).hexdigest()[:16]}.json"


def _stamp() -> str:
    """Returns a digest that changes when packages come or go, or a file of the agent changes."""
    parts = [_LAYOUT]
    agent = sorted(
        f"{folder}/{name}"
        for folder, _, names in os.walk(runtimes_folder() / "python")
        for name in names
        if name.endswith(".py")
    )
    for path in _installed() + agent:
        try:
            status = os.stat(path)  # noqa: PTH116 - a `Path` for each file costs more than the call
        except OSError:
            continue
        parts.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def find(cache: Cache) -> PythonFiles:
    """Finds the guest's sources the slow way; an installed base image decides on the packages."""
    folder = built_folder(FOLDER)
    try:
        manifest = (folder / "MANIFEST").read_text().splitlines()
        sums = (folder / "SHA256SUMS").read_text().splitlines()
        patches = (folder / "PATCHES").read_text().splitlines()
    except OSError as problem:
        raise BundleError(f"the Python guest's files are missing. {REINSTALL}") from problem
    digests = {name.lstrip("*"): digest for digest, name in map(str.split, filter(None, sums))}
    versions = [line.split()[1] for line in manifest if line.startswith("python ")]
    try:
        binary, stdlib, python_version = digests[_BINARY], digests[_STDLIB], versions[0]
    except (KeyError, IndexError):
        raise BundleError(f"the Python guest's description is incomplete. {REINSTALL}") from None
    added = _installed_packages(cache, binary, stdlib) or added_packages()
    return PythonFiles(
        key=_key(binary, stdlib, added=added),
        binary=str(folder / _BINARY),
        binary_digest=binary,
        stdlib=str(folder / _STDLIB),
        python_version=python_version,
        patches=tuple(line.split()[1][:-1] for line in patches if line.startswith("patch ")),
        packages=_built_in(folder / _STDLIB) | added,
    )


def _installed_packages(cache: Cache, binary: str, stdlib: str) -> dict[str, str] | None:
    """Returns the packages of an installed base image for this guest and agent, with versions."""
    for path in cache.installed_in.glob(f"bundle-*/{PACKAGES_NOTE}"):
        added = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        if path.parent.name == f"bundle-{_key(binary, stdlib, added=added)}":
            return added
    return None


def added_packages() -> dict[str, str]:
    """Returns the packages of this environment that are added to the guest's own, with versions."""
    found = {_distribution(package): _version(package) for package in PACKAGES + _STAND_INS}
    return found | OWN_PACKAGES


def _distribution(package: str) -> str:
    return package.lower().replace("_", "-")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    distribution = _distribution(package)
    try:
        return version(distribution)
    except PackageNotFoundError:
        raise BundleError(
            f"{distribution} is not installed here, and the sandbox needs it. "
            f"Run: pip install {distribution}"
        ) from None


def _built_in(stdlib: Path) -> dict[str, str]:
    import zipfile

    with zipfile.ZipFile(stdlib) as bundle:
        found = filter(None, map(re.compile(_METADATA).fullmatch, bundle.namelist()))
        return {match[1].replace("_", "-"): match[2] for match in found}


def _key(*parts: str, added: Mapping[str, str]) -> str:
    lines = [f"{name}={version}" for name, version in added.items()]
    digest = hashlib.sha256("\n".join([_LAYOUT, *parts, *lines]).encode())
    for name, path in agent_files():
        digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def agent_files() -> list[tuple[str, Path]]:
    """Returns the agent's files: names inside the guest's bundle, with their paths."""
    folder = runtimes_folder() / "python"
    found = sorted(folder.rglob("*.py"))
    if not found:
        raise BundleError(f"the guest agent's files are missing. {REINSTALL}")
    return [(path.relative_to(folder).as_posix(), path) for path in found]


def lay_out(files: PythonFiles, cache: Cache) -> Path:
    """Returns the folder of the laid-out files, which are made if they are not there yet.

    The folders `lib`, `mpl-data` and `root` in it lie behind fixed, read-only paths of the guest.
    """
    cache.prepare()
    name = folder_name(files)
    folder = cache.path(name)
    if cache.folder_of(name) is None:
        with cache.lock("bundle", lambda seconds: None):
            if cache.folder_of(name) is None:
                with writing():
                    _make(files, folder, cache.installed(f"{name}/lib"))
    return folder


def folder_name(files: PythonFiles) -> str:
    """Returns the cache's name for the laid-out files."""
    return f"bundle-{files.key}"


def _make(files: PythonFiles, folder: Path, installed: Path | None) -> None:
    import zipfile
    from shutil import copyfile, copytree
    from tempfile import mkdtemp

    aside = Path(mkdtemp(prefix=".bundle-", dir=folder.parent))
    lib = aside / "lib"
    if installed is not None:
        copytree(installed, lib, copy_function=copyfile)
    else:
        lib.mkdir()
        _add_packages(files, lib)
    copyfile(files.stdlib, lib / STDLIB_NAME)
    with (
        zipfile.ZipFile(files.stdlib) as outer,
        outer.open(_DATA_MEMBER) as inner,
        zipfile.ZipFile(inner) as data,
    ):
        data.extractall(aside / "mpl-data")
    for name in ("app", "tmp", "usr", "dev"):
        (aside / "root" / name).mkdir(parents=True)
    (aside / "root" / NULL_DEVICE).touch()
    aside.rename(folder)


def _add_packages(files: PythonFiles, lib: Path) -> None:
    """Writes the agent and the packages that it needs into a folder `lib`."""
    import zipfile
    from shutil import copyfile

    with zipfile.ZipFile(lib / BUNDLE_NAME, "w") as bundle:  # stored: deflate differs
        for name, path in _bundle_files():
            if name.partition("/")[0] in _UNPACKED:
                target = lib / _FOLDER / name
                target.parent.mkdir(parents=True, exist_ok=True)
                copyfile(path, target)
            else:
                bundle.writestr(zipfile.ZipInfo(name), path.read_bytes())
        for name, text in _metadata(files):
            bundle.writestr(zipfile.ZipInfo(name), text)


def _metadata(files: PythonFiles) -> Iterator[tuple[str, str]]:
    """Yields the metadata files that `importlib.metadata` reads of the guest's packages."""
    ours = {*map(_distribution, PACKAGES + _STAND_INS), *OWN_PACKAGES}
    for name in sorted(ours & set(files.packages)):
        version = files.packages[name]
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        yield f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        yield f"{folder}/INSTALLER", "wasm-kernel\n"


def _bundle_files() -> Iterator[tuple[str, Path]]:
    from importlib.util import find_spec

    yield from agent_files()
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise BundleError(f"{name} is not installed here, and the sandbox needs it.")
        origin = Path(spec.origin)
        if spec.submodule_search_locations is None:
            yield origin.name, origin
        else:
            yield from _package_files(origin.parent)


def _package_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for here, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(here, name)
            inside = path.relative_to(folder.parent).as_posix()
            if name.endswith(".pyc") or any(part in f"/{inside}" for part in _LEFT_OUT):
                continue
            yield inside, path
