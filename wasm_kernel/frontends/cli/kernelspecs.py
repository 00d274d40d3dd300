"""Kernelspecs, which make Jupyter offer this kernel in its picker."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_core.paths import SYSTEM_JUPYTER_PATH, jupyter_data_dir

from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.policy import RuntimeType

NAME = "wasm-python"


def name_of(runtime: RuntimeType) -> str:
    """Returns the default name of a language's kernelspec."""
    return f"wasm-{runtime.value}"


@dataclass(frozen=True)
class KernelspecPlace:
    """A place for kernelspecs: the user's, a prefix's, or the system's if neither is given."""

    user: bool = False
    prefix: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of the kernelspecs in this place."""
        if self.user:
            return Path(jupyter_data_dir(), "kernels")
        if self.prefix is not None:
            return Path(self.prefix, "share", "jupyter", "kernels")
        return Path(SYSTEM_JUPYTER_PATH[0], "kernels")


@dataclass(frozen=True)
class InstalledKernelspec:
    """An installed kernelspec of ours: its folder, and the command that it starts."""

    name: str
    folder: Path
    argv: tuple[str, ...]

    @property
    def interpreter(self) -> str:
        """The interpreter that the kernelspec starts."""
        return self.argv[0]

    @property
    def arguments(self) -> list[str]:
        """The arguments after the module's name, without the connection file."""
        words = [*self.argv[self.argv.index("wasm_kernel") + 1 :]]
        return [word for word in words if word not in ("-f", "{connection_file}")]


def source(runtime: RuntimeType) -> Path:
    """Returns the folder of a language's kernelspec in the package."""
    return Path(__file__).parents[1] / "jupyter" / "kernelspec" / runtime.value


def install(
    place: KernelspecPlace,
    name: str = NAME,
    display_name: str | None = None,
    env: Mapping[str, str] = {},
    runtime: RuntimeType = RuntimeType.PYTHON,
) -> Path:
    """Installs a language's kernelspec that starts this interpreter; returns its folder.

    It names our provisioner in this interpreter's own environment alone.

    Raises `WasmKernelError` if the place can't be written, or the name is not valid.
    """
    with tempfile.TemporaryDirectory() as staging:
        staged = Path(staging, NAME)
        shutil.copytree(source(runtime), staged)
        file = staged / "kernel.json"
        spec = json.loads(file.read_text(encoding="utf-8"))
        spec["argv"][0] = sys.executable
        if place.prefix != sys.prefix:  # Jupyter hides it if its own environment lacks this package
            spec["metadata"].pop("kernel_provisioner")
        spec["env"] |= env
        if display_name is not None:
            spec["display_name"] = display_name
        file.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        try:
            made = KernelSpecManager().install_kernel_spec(
                str(staged), kernel_name=name, user=place.user, prefix=place.prefix
            )
        except OSError as problem:
            raise WasmKernelError(
                f"{place.folder} can't be written ({describe(problem)}). Nothing was installed. "
                "Try --user, or --sys-prefix for this environment."
            ) from problem
        except ValueError as problem:
            raise WasmKernelError(f"{problem} Nothing was installed.") from problem
    return Path(made)


def uninstall(place: KernelspecPlace | None, name: str = NAME) -> Path:
    """Removes a kernelspec of ours from `place`, or from the place where Jupyter finds it first.

    Raises `WasmKernelError` if no kernelspec exists, it is another kernel's, or can't be removed.
    """
    if place is None:
        try:
            folder = Path(KernelSpecManager().get_kernel_spec(name).resource_dir)
        except NoSuchKernel as problem:
            raise WasmKernelError(f"There is no kernelspec named {name}.") from problem
    else:
        folder = place.folder / name
    if _argv(folder) is None:
        raise WasmKernelError(f"{folder} holds no kernelspec of wasm-kernel. Nothing was removed.")
    try:
        shutil.rmtree(folder)
    except OSError as problem:
        raise WasmKernelError(f"{folder} can't be removed ({problem.strerror}).") from problem
    return folder


def installed() -> list[InstalledKernelspec]:
    """Returns our kernelspecs that Jupyter offers."""
    found = []
    for name, folder in sorted(KernelSpecManager().find_kernel_specs().items()):
        argv = _argv(Path(folder))
        if argv is not None:
            found.append(InstalledKernelspec(name, Path(folder), argv))
    return found


def offered() -> InstalledKernelspec:
    """Returns our kernelspec for a new console or notebook; `WasmKernelError` without one."""
    found = installed()
    if not found:
        raise WasmKernelError(
            "Jupyter offers no kernel of wasm-kernel here. Nothing was opened. `wasm-kernel "
            "install --user` changes that."
        )
    return next((spec for spec in found if spec.name == NAME), found[0])


def empty_notebook() -> str:
    """Returns a notebook without cells, for the offered kernel."""
    spec = offered()
    found = json.loads((spec.folder / "kernel.json").read_text(encoding="utf-8"))
    kernel = {"name": spec.name} | {key: found[key] for key in ("display_name", "language")}
    book = {"cells": [], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1) + "\n"


def _argv(folder: Path) -> tuple[str, ...] | None:
    """Returns the command of a kernelspec of ours; None if it belongs to another kernel."""
    try:
        argv = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))["argv"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuple(map(str, argv)) if isinstance(argv, list) and "wasm_kernel" in argv else None
