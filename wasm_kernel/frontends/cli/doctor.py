"""`wasm-kernel doctor`: reports what works on this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from wasm_kernel.engine.cache import ENVIRONMENT
from wasm_kernel.errors import BundleError, ImageError, describe
from wasm_kernel.frontends.cli import kernelspecs
from wasm_kernel.guests.base import Finding, languages

_PACKAGES = ("wasmtime", "ipykernel", "ipython", "jupyter-client")
_TRACKING = {
    "write-protect": Finding(
        "ok", "the system reports changed memory (userfaultfd): commits are cheap"
    ),
    "compare": Finding(
        "note", "changed memory is found by comparing it with a copy: Linux 6.7 does better"
    ),
}


def examine(workspace_root: Path) -> Iterator[Finding]:
    """Yields findings about everything that a kernel on this machine needs; changes nothing."""
    from wasm_kernel.state import pages

    yield from _versions()
    yield _host_numpy()
    for language in languages():
        try:
            yield from language.examine()
        except OSError as problem:  # such as a home folder of another user in $HOME
            words = f"the compile cache can't be read ({describe(problem)}): name another with"
            yield Finding("broken", f"{words} {ENVIRONMENT}")
    try:
        pages.check_pages()
    except ImageError as problem:
        yield Finding("broken", str(problem))
    else:
        yield Finding("ok", "kernels share the base image's memory (mapped copy-on-write)")
        yield _TRACKING[pages.available()]
    yield _confinement()
    yield _forkers()
    yield from _picker()
    yield from _settings()
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


def _host_numpy() -> Finding:
    try:
        used = f"numpy {version('numpy')} and threadpoolctl {version('threadpoolctl')}"
    except PackageNotFoundError:
        remedy = "pip install 'wasm-kernel[fast]' lets the host do it, several times as fast"
        return Finding("ok", f"large matrix products and sorts stay in the sandbox: {remedy}")
    return Finding("ok", f"large matrix products and sorts are done by the host ({used})")


def _confinement() -> Finding:
    from wasm_kernel.linux import confinement

    possible = confinement.possible()
    how = f"{possible.files}; {possible.calls}"
    if possible.is_complete:
        return Finding("ok", f"kernels confine their own process, too ({how})")
    return Finding("note", f"kernels can't confine their own process here ({how})")


def _forkers() -> Finding:
    from wasm_kernel.frontends.jupyter import launcher

    if os.environ.get(launcher.SETTING) == "0":
        return Finding("ok", f"each kernel is started anew ({launcher.SETTING}=0)")
    processes = ", ".join(map(str, sorted(launcher.running())))
    if processes:
        return Finding("ok", f"kernels are forked from a loaded process (running: {processes})")
    return Finding("ok", "kernels are forked from a loaded process, which the next one starts")


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


def _settings() -> Iterator[Finding]:
    """Reports whether kernels accept the settings in config files, and those of each kernelspec."""
    files, why = _examined()
    if why:
        yield Finding("broken", f"no kernel starts with these settings: {why}")
        return
    yield Finding("ok", f"kernels take their settings from {', '.join(files) or 'no config file'}")
    for spec in kernelspecs.installed():
        _, why = _examined(spec.arguments)
        if why:
            yield Finding("broken", f"{spec.name} does not start with its settings: {why}")


def _examined(arguments: Sequence[str] = ()) -> tuple[list[str], str]:
    """Returns the config files that a kernel reads, and the reason if it refuses its settings."""
    from wasm_kernel.frontends.jupyter import refusal
    from wasm_kernel.frontends.jupyter.app import WasmKernelApp
    from wasm_kernel.kernels import config_files

    app = WasmKernelApp()
    try:
        app.initialize(arguments)
        app.settings.check()
    except (Exception, SystemExit) as problem:
        return [], refusal.reason(problem, app)
    return [config_files.shown(file) for file in app.loaded_config_files], ""


def _workspaces(root: Path) -> Iterator[Finding]:
    nearest = next(p for p in (root, *root.parents) if os.access(p, os.F_OK))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        remedy = "set WASM_KERNEL_WORKSPACE_ROOT to another folder"
        yield Finding("broken", f"sessions can't be kept in {root}: {remedy}")
        return
    yield Finding("ok", f"sessions are kept in {root}")
    yield from _private_state(root)
    yield from _report_saved_by_others(root)
    yield _earlier_files(nearest)


def _private_state(root: Path) -> Iterator[Finding]:
    from wasm_kernel.folders import orphans
    from wasm_kernel.folders.places import PrivateFolderError, expected

    try:
        place, far = expected(root.resolve())
    except PrivateFolderError as problem:
        yield Finding("broken", str(problem))
        return
    words = f"private state of sessions, such as variables, is kept in {place}"
    if far:
        words += ", on another file system: earlier versions of files are copied (see private_root)"
    yield Finding("note" if far else "ok", words)
    orphans.remove_due()
    for sentence in orphans.describe():
        yield Finding("note", sentence)


def _report_saved_by_others(root: Path) -> Iterator[Finding]:
    """Reports sessions whose variables need another version, before this one opens them."""
    from wasm_kernel.sessions.overview import sessions_in
    from wasm_kernel.sessions.root import SessionsRoot

    ours = []
    try:
        for language in languages():
            images = [image.id for image in language.images()]
            ours += images or [f"{language.image_names[0]}."]
    except BundleError:
        return  # reported before
    found = [one for one in sessions_in(SessionsRoot(root)) if one.image]
    count = sum(not one.image.startswith(tuple(ours)) for one in found)
    if count:
        yield Finding(
            "note",
            f"{count} of {len(found)} sessions with variables were saved by another version of the "
            "sandbox, or before its cache was made anew: with this one their variables begin "
            "fresh, and their files stay. To carry values over, open them with the version that "
            "saved them, and write the values to files",
        )


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
