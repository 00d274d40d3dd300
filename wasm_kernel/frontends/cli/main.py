"""The `wasm-kernel` command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wasm_kernel import __version__

try:
    from wasm_kernel.frontends.cli import sessions
except ImportError as problem:  # there is no code for this processor
    raise SystemExit(str(problem)) from None
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.batch.command import add_run
from wasm_kernel.frontends.batch.grade_command import add_grade
from wasm_kernel.frontends.cli.serve import add_serve
from wasm_kernel.frontends.mcp.command import add_mcp
from wasm_kernel.policy import RuntimeType
from wasm_kernel.service.named_functions import add_repeated, path_of

_ENV = "an environment variable for the kernel's process"
_CACHE = (
    "keep the compiled guest there, for example if kernels get a new home each time; a user who "
    "can write to it can run code as you"
)
_FUEL = "the code for sessions with a fuel budget instead"
_EXPORT = "then write it into FILE, for machines with the same kind of processor and versions"
_IMPORT = "first take it from FILE, which holds code that will run with your rights"
_BROKEN_PIPE = 141  # a shell's status for a program whose reader has gone


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its status: 0 for success, 1 for a failure, 2 for bad usage."""
    options = _parser().parse_args(argv)
    try:
        status = options.run(options) or 0
        sys.stdout.flush()
        return int(status)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except WasmKernelError as problem:
        print(f"wasm-kernel: {problem}", file=sys.stderr)
    except OSError as problem:
        named = f": {problem.filename!r}" if problem.filename else ""
        print(f"wasm-kernel: {problem.strerror or problem}{named}", file=sys.stderr)
    except KeyboardInterrupt:
        print("wasm-kernel: interrupted", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wasm-kernel", description="A Jupyter kernel whose cells run in a WebAssembly sandbox."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    install = commands.add_parser("install", help="offer the kernel in Jupyter's picker")
    _add_place(install)
    install.add_argument("--display-name", help="how the picker calls the kernel")
    add_repeated(install, "--env", ("NAME", "VALUE"), _ENV, nargs=2)
    install.add_argument("--cache", type=path_of, metavar="FOLDER", help=_CACHE)
    install.set_defaults(run=_install)

    uninstall = commands.add_parser("uninstall", help="take the kernel out of the picker")
    _add_place(uninstall)
    uninstall.set_defaults(run=_uninstall)

    warm = commands.add_parser("warm", help="compile the guest now, not at the first kernel")
    warm.add_argument("--fuel", action="store_true", help=_FUEL)
    carried = warm.add_mutually_exclusive_group()
    carried.add_argument("--export", type=path_of, metavar="FILE", help=_EXPORT)
    carried.add_argument("--import", type=path_of, dest="source", metavar="FILE", help=_IMPORT)
    about = "of the FILE to import, as --export printed it"
    warm.add_argument("--sha256", metavar="DIGEST", help=about)
    warm.set_defaults(run=_warm, usage=warm.error)

    doctor = commands.add_parser("doctor", help="say what works on this machine")
    doctor.set_defaults(run=_doctor)

    sessions.add(commands, _sessions_folder)
    add_run(commands, _sessions_folder)
    add_grade(commands, _sessions_folder)
    add_mcp(commands)
    add_serve(commands)
    return parser


def _sessions_folder() -> Path:
    from wasm_kernel.kernels.settings import KernelSettings

    return KernelSettings().root.named


def _add_place(command: argparse.ArgumentParser) -> None:
    place = command.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="for the current user")
    here: dict[str, Any] = {"action": "store_const", "const": sys.prefix, "dest": "prefix"}
    place.add_argument("--sys-prefix", help="in this Python environment", **here)
    prefix = "below this folder, in share/jupyter/kernels"
    place.add_argument("--prefix", type=lambda text: str(path_of(text)), help=prefix)
    languages = [runtime.value for runtime in RuntimeType]
    command.add_argument("--language", choices=languages, default=languages[0], help="of its cells")
    command.add_argument("--name", help="the kernelspec's name; wasm-LANGUAGE by default")


def _install(options: argparse.Namespace) -> None:
    from wasm_kernel.engine.cache import ENVIRONMENT, Cache
    from wasm_kernel.frontends.cli import kernelspecs

    place, env = kernelspecs.KernelspecPlace(options.user, options.prefix), dict(options.env)
    if options.cache is not None:
        cache = Cache(options.cache.absolute())
        cache.prepare()
        env[ENVIRONMENT] = str(cache.folder)
    runtime = RuntimeType(options.language)
    name = options.name or kernelspecs.name_of(runtime)
    made = kernelspecs.install(place, name, options.display_name, env, runtime)
    print(f"Installed kernelspec {name} in {made}")
    if options.cache is not None:
        print(f"Its first kernel compiles the guest into {cache.folder}, unless you do it now:")
        print(f"  {ENVIRONMENT}={shlex.quote(str(cache.folder))} wasm-kernel warm")


def _uninstall(options: argparse.Namespace) -> None:
    from wasm_kernel.frontends.cli import kernelspecs

    named = options.user or options.prefix is not None
    place = kernelspecs.KernelspecPlace(options.user, options.prefix) if named else None
    name = options.name or kernelspecs.name_of(RuntimeType(options.language))
    print(f"Removed {kernelspecs.uninstall(place, name)}")


def _warm(options: argparse.Namespace) -> None:
    from wasm_kernel.frontends.cli import warm

    def say(line: str) -> None:
        print(line, flush=True)

    if (options.source is None) != (options.sha256 is None):
        options.usage("--import and --sha256 come together: the digest is what --export printed")
    if options.source is not None:
        warm.import_archive(say, options.source, options.sha256)
    warm.warm(say, fuel=options.fuel)
    if options.export is not None:
        warm.export_archive(say, options.export, fuel=options.fuel)


def _doctor(_: argparse.Namespace) -> int:
    from wasm_kernel.frontends.cli.doctor import examine

    findings = list(examine(_sessions_folder()))
    for finding in findings:
        print(f"{finding.mark:>6}  {finding.text}")
    return int(any(finding.mark == "broken" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
