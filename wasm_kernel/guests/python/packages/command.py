"""`%pip` on the host: packages are found, fetched, checked and put in place.

The command is only run if it stands in a cell's own text (`execution/commands.py`). No fetched code
runs on the host: wheels are taken apart into a folder that the guest reads.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from wasm_kernel.errors import PackageError, WasmKernelError, describe
from wasm_kernel.guests.base import CommandContext, CommandLine
from wasm_kernel.guests.broker_handlers import FetchedPackages, FetchPackages
from wasm_kernel.guests.python.files import PythonFiles
from wasm_kernel.guests.python.packages import pip_line, requirements
from wasm_kernel.guests.python.packages.pip_line import PipLine
from wasm_kernel.guests.python.packages.requirements import KnownPackage, NeededPackage
from wasm_kernel.guests.python.packages.site import SitePackages
from wasm_kernel.guests.python.packages.wheel import Wheel, open_wheel
from wasm_kernel.linux.broker import Broker
from wasm_kernel.linux.task import Cancelled, OfCell, Task

ROUNDS_MOST = requirements.PACKAGES_MOST
"""The most rounds of fetching for one line: fetched packages may need further ones."""
_BUILT_IN = (
    "Built in are numpy, pandas, scipy, scikit-learn, statsmodels, matplotlib, seaborn, sympy, "
    "networkx, pillow, lxml and some forty more: %pip list names them."
)


class PipCommand:
    """Installs and removes the packages of one session. Called on its sandbox's own thread.

    During an install wheels lie in `folder`, which the guest does not see.
    """

    def __init__(self, site: SitePackages, folder: Path, files: PythonFiles) -> None:
        self._site = site
        self._folder = folder
        self._markers = requirements.guest_environment(files.python_version)
        versions = {canonicalize_name(name): Version(v) for name, v in files.packages.items()}
        self._built_in = {name: KnownPackage(name, v, builtin=True) for name, v in versions.items()}

    def __call__(self, line: CommandLine, context: CommandContext, /) -> Mapping[str, Any]:
        """Runs a `%pip` line; returns the names of installed and of removed packages.

        Raises `PackageError` or `Cancelled`, and then changes nothing.
        """
        asked = pip_line.parse(line.line, line.files)
        act = self._remove if asked.verb == "uninstall" else self._install
        task = OfCell(lambda: context.cancelled) if asked.quiet else context
        try:
            return act(asked, context.broker, task)
        except (PackageError, OSError) as problem:
            if context.cancelled:
                raise Cancelled from None
            why = str(problem) if isinstance(problem, PackageError) else f"{describe(problem)}."
            hint = f" {_BUILT_IN}" if "compiled" in why else ""
            raise PackageError(f"Nothing was {asked.verb}ed: {why}{hint}") from problem

    def _remove(self, asked: PipLine, _: Broker, task: Task) -> Mapping[str, Any]:
        there = self._site.installed()
        for name in asked.names:
            if name in self._built_in:
                raise PackageError(f"{name} is built in and can't be removed.")
            if name not in there:
                raise PackageError(f"{name} is not installed here.")
        self._site.change(without=asked.names, task=task)
        return {"came": [], "went": [_shown(there[name]) for name in asked.names], "kept": []}

    def _install(self, asked: PipLine, broker: Broker, task: Task) -> Mapping[str, Any]:
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a killed kernel
        there = self._site.installed()
        asked = self._for_the_guest(asked, task)
        stale = {name for name in asked.names if asked.upgrade and name in there}
        known = {name: k for name, k in there.items() if name not in stale} | self._built_in
        kept = [name for name in sorted(asked.names) if name in known]
        try:
            wheels = self._resolve(asked, known, broker, task)
            fresh = [w for w in wheels.values() if _is_new(w, there)]
            if fresh:
                task.report(f"Installing {', '.join(wheel.name for wheel in fresh)}")
                self._site.change(fresh, asked=asked.names, task=task)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return {
            "came": [_shown(wheel.known) for wheel in fresh],
            "went": [_shown(there[wheel.name]) for wheel in fresh if wheel.name in there],
            "kept": [_named(known[name]) for name in kept if name not in wheels],
        }

    def _for_the_guest(self, asked: PipLine, task: Task) -> PipLine:
        """Returns the line without the requirements for other platforms, which are reported."""
        fit = []
        for each in asked.requirements:
            if requirements.applies(each, {**self._markers, "extra": ""}):
                fit.append(each)
            else:
                task.report(f"Ignoring {each.name}: {each.marker} is false in the sandbox")
        return replace(asked, requirements=tuple(fit))

    def _resolve(
        self, asked: PipLine, known: dict[str, KnownPackage], broker: Broker, task: Task
    ) -> dict[str, Wheel]:
        """Returns the wheels that the request needs in all, fetched and checked."""
        wheels: dict[str, Wheel] = {}
        tried: set[str] = set()
        for number in range(ROUNDS_MOST):
            wants = requirements.wanted(asked.requirements, known, self._markers, task)
            needed = requirements.missing(wants, known, tried)
            if not needed:
                return {name: wheel for name, wheel in wheels.items() if name in wants}
            tried.update(map(str, needed))
            request = FetchPackages(tuple(map(str, needed)), f"w_{number}", asked.pre)
            try:
                fetched = self._fetched(request, needed, broker, task)
            except WasmKernelError as problem:
                raise PackageError(f"{problem}{_needed(str(problem), wants)}") from problem
            for wheel in fetched:
                wheels[wheel.name] = wheel
                known[wheel.name] = wheel.known
        raise PackageError("the requirements change with each fetched package.")

    def _fetched(
        self,
        request: FetchPackages,
        needed: Sequence[NeededPackage],
        broker: Broker,
        task: Task,
    ) -> list[Wheel]:
        """Returns a checked wheel for each need."""
        folder = self._folder / request.into
        folder.mkdir(parents=True, mode=0o700)
        broker.call(request, FetchedPackages, task)
        found = []
        for path in sorted(folder.glob("*.whl")):
            if task.cancelled:
                raise Cancelled
            found.append(open_wheel(path))
        if {wheel.name for wheel in found} != {need.name for need in needed}:
            raise PackageError("pip fetched other packages than it was asked for.")
        return found


def _needed(problem: str, wants: Mapping[str, NeededPackage]) -> str:
    """Names the packages that led to the package of a problem; empty if the user asked for it."""
    found: dict[str, str] = {}
    name = _leading_name(problem)
    while name in wants and name not in found:
        by = sorted(wants[name].by)
        if any(each.startswith("you ") for each in by):
            break
        found[name] = ", ".join(by)
        name = _leading_name(by[0])
    if not found:
        return ""
    asked, version = next(reversed(found.values())).split()[:2]
    return (
        f" It is needed by {', which is needed by '.join(found.values())}. An older version of "
        f"{asked} may do without: name {asked}<{version} in quotes."
    )


def _leading_name(text: str) -> str:
    return canonicalize_name(re.split(r"[^\w.-]", text, maxsplit=1)[0])


def _is_new(wheel: Wheel, there: Mapping[str, KnownPackage]) -> bool:
    return wheel.name not in there or there[wheel.name].version != wheel.known.version


def _shown(known: KnownPackage) -> str:
    return f"{known.name}-{known.version}"


def _named(known: KnownPackage) -> str:
    return f"{known.name} {known.version}" + (" (built in)" if known.builtin else "")
