"""The files of the JavaScript guest: two modules of WebAssembly, and the agent's sources."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from wasm_kernel.engine.cache import REINSTALL, built_folder
from wasm_kernel.errors import BundleError
from wasm_kernel.guests.base import LanguageInfo, runtimes_folder
from wasm_kernel.guests.javascript import just_bash

if TYPE_CHECKING:
    from wasm_kernel.engine.compiler import GuestBinary

FOLDER = "_guest_javascript"
AGENT = "wasm-kernel:"
"""The beginning of the names of the agent's own modules, which no cell may import."""
LIBRARY_GUEST = "/usr/local/lib/javascript"
"""The guest's path of its session's packages; they lie in `node_modules` in there."""

VERSION = "0.15"  # QuickJS-NG's version in the pinned quickjs-rs
_HELP_LINKS = (
    ("JavaScript Reference", "https://developer.mozilla.org/docs/Web/JavaScript/Reference"),
    ("TypeScript Handbook", "https://www.typescriptlang.org/docs/handbook/intro.html"),
)
_GLOBALS = f"{AGENT}globals"
_LAYOUT = "1"
_INTERPRETER, _STRIPPER = "quickjs.wasm", "typescript.wasm"
_STACK_BYTES = 16 * 1024 * 1024  # the guest's own stack of a megabyte ends before

SHELL_FOLDER = "_shell"
# The packages that just-bash imports, each as its file and its exports. Commands that need those
# without a file are left out or run by Python; `ls` asks minimatch about names that do not exist.
_PACKAGES = {
    "diff": ("", b"export const createTwoFilesPatch = undefined;"),
    "sprintf-js": ("sprintf.min.js", b"export const {sprintf} = exports;"),
    "minimatch": ("", b"export const minimatch = () => false;"),
    "turndown": ("", b"export default undefined;"),
    "zlib": ("", b"export const constants = {}, gunzipSync = undefined, gzipSync = undefined;"),
}
_PACKAGE_MODULE = b"const module = {}, exports = {};\n%b\n%b"


class JavaScriptFiles(Struct, frozen=True):
    """The guest's files: the interpreter, QuickJS-NG, and the stripper of TypeScript's types.

    The key names this combination of interpreter and agent. `modules` are sources of the agent and
    of built-in modules, by name; the one called `main` is run first.
    """

    key: str
    interpreter: GuestBinary
    stripper: GuestBinary
    modules: Mapping[str, bytes]
    main: str = f"{AGENT}agent"


def info() -> LanguageInfo:
    """Returns the facts about the language."""
    language = {
        "name": "javascript",
        "version": f"ES2025, QuickJS-NG {VERSION}",
        "mimetype": "application/typescript",
        "codemirror_mode": "typescript",
        "pygments_lexer": "typescript",
        "nbconvert_exporter": "script",
        "file_extension": ".ts",
    }
    return LanguageInfo("JavaScript and TypeScript", language, _HELP_LINKS)


def guest_files() -> JavaScriptFiles:
    """Finds the guest's files; `BundleError` says what to install."""
    return _files_with(_modules())


def shell_files() -> JavaScriptFiles:
    """Finds the files of the shell, which is a guest of the same interpreter."""
    found = _files_with({**_modules(), **dict(_shell())})
    return msgspec.structs.replace(found, main=f"{AGENT}shell")


def _files_with(modules: Mapping[str, bytes]) -> JavaScriptFiles:
    folder = built_folder(FOLDER)
    try:
        lines = (folder / "SHA256SUMS").read_text().splitlines()
    except OSError as problem:
        raise BundleError(f"the JavaScript guest's files are missing. {REINSTALL}") from problem
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    interpreter = _binary(folder / _INTERPRETER, sums, "the JavaScript guest")
    stripper = _binary(folder / _STRIPPER, sums, "the TypeScript reader")
    digest = hashlib.sha256(f"{_LAYOUT} {interpreter.sha256}\n".encode())
    for name, source in sorted(modules.items()):
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return JavaScriptFiles(digest.hexdigest()[:32], interpreter, stripper, modules)


def _binary(path: Path, sums: Mapping[str, str], title: str) -> GuestBinary:
    if path.name not in sums:
        raise BundleError(f"the JavaScript guest's description is incomplete. {REINSTALL}")
    from wasm_kernel.engine.compiler import GuestBinary  # imports wasmtime

    return GuestBinary(path, sums[path.name], title, _STACK_BYTES, REINSTALL)


def _shell() -> Iterator[tuple[str, bytes]]:
    """Yields the modules of the shell, and the packages that it imports."""
    for path in sorted((runtimes_folder() / "shell").glob("*.js")):
        yield f"{AGENT}{path.stem}", path.read_bytes()
    folder = built_folder(SHELL_FOLDER)
    try:
        yield "node:just-bash", just_bash.with_parts((folder / "browser.js").read_bytes())
        for name, (file, exported) in _PACKAGES.items():
            source = (folder / file).read_bytes() if file else b""
            yield f"node:{name}", _PACKAGE_MODULE % (source, exported)
    except OSError as problem:
        raise BundleError(f"the shell's files are missing. {REINSTALL}") from problem


def _modules() -> dict[str, bytes]:
    folder = runtimes_folder() / "javascript"
    found = {f"{AGENT}{path.stem}": path.read_bytes() for path in sorted(folder.glob("*.js"))}
    if _GLOBALS not in found:
        raise BundleError(f"the guest agent's files are missing. {REINSTALL}")
    names = re.findall(rb"\w+", found[_GLOBALS].partition(b"{")[2].partition(b"}")[0])
    for name in found.keys() - {_GLOBALS}:
        own = re.findall(rb"\bclass (\w+)", found[name])
        others = b", ".join(each for each in names if each not in own)
        found[name] = b'import { %b } from "%b"; ' % (others, _GLOBALS.encode()) + found[name]
    for path in sorted((folder / "node").rglob("*.js")):
        name = path.relative_to(folder / "node").with_suffix("").as_posix()
        found[f"node:{name}"] = path.read_bytes()
    return found
