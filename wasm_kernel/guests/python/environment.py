"""What this Python environment brings for the guest: the artifact, the packages, the agent.

Finding out takes a tenth of a second, most of it for imports; so the answer is kept in the cache,
together with a stamp of everything that would change it, and found out anew when the stamp differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import BundleError
from wasm_kernel.record import record

_PACKAGE = Path(__file__).parents[2]
_LAYOUT = "3"
_BINARY, _STDLIB = "python-snapshot.wasm", "python-stdlib.zip"

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
    "ipywidgets": "ipywidgets",
    "jedi": "jedi",
    "parso": "parso",
    "prompt_toolkit": "prompt-toolkit",
    "wcwidth": "wcwidth",
}
"""Import name to distribution name of what the agent needs inside the guest."""

_METADATA = re.compile(r"([^/-]+)-([^/-]+)\.dist-info/METADATA")
OPTIONAL = {"decorator"}  # IPython dropped it in 9.7


@record
class Environment:
    """The guest's sources.

    Attributes:
        key: Names this combination of guest, agent and packages.
        binary: The wasm file.
        binary_digest: Its SHA-256, as its package notes it; checked before compiling.
        stdlib: The zip of the guest's standard library.
        python_version: The guest's Python version, such as `3.15.0`.
        packages: The packages that are built in: distribution names to versions.
    """

    key: str
    binary: str
    binary_digest: str
    stdlib: str
    python_version: str
    packages: Mapping[str, str]


def environment(cache: Cache) -> Environment:
    """The guest's sources, remembered or found.

    Raises:
        BundleError: something is missing; the text says what to install.
    """
    stamp = _stamp()
    known = _recall(cache, _note_name(), stamp)
    if known is not None:
        return known
    found = find()
    text = json.dumps({"stamp": stamp, "environment": asdict(found)})
    with contextlib.suppress(PermissionError):  # a confined kernel may only read the cache
        cache.prepare()
        cache.write(_note_name(), lambda path: _write(path, text))
    return found


def remembered(cache: Cache) -> Environment | None:
    """The guest's sources, where they were found earlier and nothing has changed since."""
    return _recall(cache, _note_name(), _stamp())


def _note_name() -> str:
    return f"environment-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:16]}.json"


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _recall(cache: Cache, name: str, stamp: str) -> Environment | None:
    path = cache.trusted(name)
    if path is None:
        return None
    try:
        noted = json.loads(path.read_text())
        return Environment(**noted["environment"]) if noted["stamp"] == stamp else None
    except (ValueError, TypeError, KeyError):
        cache.discard(name, "is damaged")
        return None


def _stamp() -> str:
    """Changes whenever a package is installed or removed, or a file of the agent is touched."""
    parts = [_LAYOUT]
    installed = [entry for entry in sys.path if entry.endswith("-packages")]
    agent = sorted(
        f"{folder}/{name}"
        for folder, _, names in os.walk(runtimes_folder() / "python")
        for name in names
        if name.endswith(".py")
    )
    for path in installed + agent:
        try:
            status = os.stat(path)  # noqa: PTH116 - a `Path` a file costs more than looking at it
        except OSError:
            continue
        parts.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def find() -> Environment:
    """The guest's sources, found the slow way.

    Raises:
        BundleError: something is missing; the text says what to install.
    """
    folder = guest_folder()
    try:
        manifest = (folder / "MANIFEST").read_text().splitlines()
        sums = (folder / "SHA256SUMS").read_text().splitlines()
    except OSError as problem:
        raise BundleError(
            "the Python guest's files are missing. Reinstall wasm-kernel."
        ) from problem
    digests = {name.lstrip("*"): digest for digest, name in map(str.split, filter(None, sums))}
    versions = [line.split()[1] for line in manifest if line.startswith("python ")]
    try:
        binary_digest, stdlib_digest, python_version = (
            digests[_BINARY],
            digests[_STDLIB],
            versions[0],
        )
    except (KeyError, IndexError):
        raise BundleError(
            "the Python guest's description is incomplete. Reinstall wasm-kernel."
        ) from None
    return Environment(
        key=_key(binary_digest, stdlib_digest),
        binary=str(folder / _BINARY),
        binary_digest=binary_digest,
        stdlib=str(folder / _STDLIB),
        python_version=python_version,
        packages=_built_in(folder / _STDLIB),
    )


def _built_in(stdlib: Path) -> dict[str, str]:
    """The packages in the guest's own zip, and those that it is given."""
    import zipfile

    with zipfile.ZipFile(stdlib) as bundle:
        found = filter(None, map(_METADATA.fullmatch, bundle.namelist()))
        theirs = {match[1].replace("_", "-"): match[2] for match in found}
    ours = {distribution: _version(name, distribution) for name, distribution in PACKAGES.items()}
    return theirs | {name: version for name, version in ours.items() if version != "none"}


def _key(*digests: str) -> str:
    digest = hashlib.sha256(" ".join([_LAYOUT, *digests]).encode())
    for name, distribution in PACKAGES.items():
        digest.update(f"{name}={_version(name, distribution)}\n".encode())
    for name, path in agent_files():
        digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _version(name: str, distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        if name in OPTIONAL:
            return "none"
        raise BundleError(
            f"{distribution} is not installed here, and the sandbox needs it. "
            f"Run: pip install {distribution}"
        ) from None


def guest_folder() -> Path:
    """The folder of the guest's files: inside the package, or where an editable install puts it."""
    packaged = _PACKAGE / "_guest"
    if packaged.is_dir():
        return packaged
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return Path(str(distribution("wasm-kernel").locate_file("wasm_kernel/_guest")))
    except PackageNotFoundError:
        return packaged


def runtimes_folder() -> Path:
    """The folder of guest sources: inside the installed package, or the checkout's own."""
    packaged = _PACKAGE / "_runtimes"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "runtimes"


def agent_files() -> list[tuple[str, Path]]:
    """The agent's files: names inside the guest's bundle, and where they lie.

    Raises:
        BundleError: there are none.
    """
    folder = runtimes_folder() / "python"
    found = sorted(folder.rglob("*.py"))
    if not found:
        raise BundleError("the guest agent's files are missing. Reinstall wasm-kernel.")
    return [(path.relative_to(folder).as_posix(), path) for path in found]
