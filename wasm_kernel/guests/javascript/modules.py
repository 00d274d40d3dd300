"""`ModuleLoader`: finds the file that an `import` means, and returns the source to evaluate.

Source of the rules: Node's documentation of packages (`exports`, conditions, `main`), and of
modules (the folders in which `node_modules` is looked for).
"""

from __future__ import annotations

import json
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote

from wasm_kernel.guests.javascript.files import AGENT, LIBRARY_GUEST
from wasm_kernel.wasi_files.access import FileAccess

NODE = "node:"
SOURCE_MOST = 16 * 1024 * 1024  # bytes; the interpreter's own limit
_MANIFEST_MOST = 1024 * 1024
_CONDITIONS = frozenset({"browser", "import", "module", "module-sync", "default"})
_ENDINGS = ("", ".js", ".mjs", ".cjs", ".ts", ".mts", ".json")
_INDEXES = ("index.js", "index.mjs", "index.cjs", "index.ts", "index.json")
_TYPESCRIPT = (".ts", ".mts", ".cts", ".tsx")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_NPM = re.compile(r"npm:/?((?:@[^/@]+/)?[^/@]+)(?:@[^/]*)?(/.*)?")
_NAME_MOST = 4096  # characters of a module's or folder's name; the host looks in each folder above
NAME_BYTES_MOST = 4 * (_NAME_MOST + 1)
"""The bytes from which on a name is too long."""
_EXPORTS_MOST = 20_000  # names that are looked for in a CommonJS file
# Sources are hostile, so none of these patterns reads a character more than a few times.
_ES_MODULE = re.compile(
    rb"^[ \t]*(?:import\b(?!\s*\()|export\b)|;\s*(?:import|export)\b", re.MULTILINE
)
_COMMON = re.compile(rb"\bmodule\.exports\b|\bexports\.\w|\bexports\[|\brequire\s*\(")
_EXPORTED = re.compile(rb"\bexports\.([A-Za-z_$][\w$]*)\s*=")
_DEFINED = re.compile(rb"defineProperty\(\s*exports\s*,\s*[\"']([A-Za-z_$][\w$]*)[\"']")
_LISTED = re.compile(rb"module\.exports\s*=\s*\{([^{}]*)\}")
_NAME = re.compile(rb"(?:^|,)\s*([A-Za-z_$][\w$]*)\s*(?=[:,]|$)")
_KEYWORDS = """
default await break case catch class const continue debugger delete do else enum export extends
false finally for function if implements import in instanceof interface let new null package
private protected public return static super switch this throw true try typeof var void while
with yield eval arguments
"""
_RESERVED = frozenset(_KEYWORDS.split())
_COMMON_MODULE = (
    'const m = globalThis[Symbol.for("wasm-kernel")].require({path});\nexport default m;\n'
)


class ModuleProblem(Exception):
    """A module can't be loaded; `str()` says why to the cell's author."""


class ModuleLoader:
    """Finds the modules of one guest. Only its thread uses it.

    `built_in` maps names to the sources of the agent's and of built-in modules; `strip` takes types
    out of a text. Paths in cells begin at `folder`. `problem` is the reason why the last module
    could not be loaded, as a sentence. `files` returns the guest's files; `should_stop`, whether
    the cell must end.
    """

    def __init__(
        self,
        built_in: Mapping[str, bytes],
        files: Callable[[], FileAccess],
        strip: Callable[[str], str],
        should_stop: Callable[[], bool],
    ) -> None:
        self.folder, self.problem = "/app", ""
        self._built_in, self.files, self._strip = built_in, files, strip
        self.should_stop = should_stop

    def _refused(self, why: str) -> ModuleProblem:
        """Returns the error, and notes its text."""
        self.problem = why
        return ModuleProblem(why)

    def resolve(self, base: str, name: str) -> str:
        """Returns the full name of a module that `base` imports as `name`; or `ModuleProblem`."""
        if not name or max(map(len, (base, name, self.folder))) > _NAME_MOST:
            raise self._refused(f"The name of a module has 1 to {_NAME_MOST:,} characters.")
        if name.startswith(AGENT):
            if base.startswith((AGENT, NODE)):
                return name
            raise self._refused(f"{name[:100]!r} is the sandbox's own.")
        plain = name.removeprefix(NODE)
        if f"{NODE}{plain}" in self._built_in:
            return f"{NODE}{plain}"
        if (npm := _NPM.fullmatch(name)) is not None:
            return self._in_packages(base, npm[1] + (npm[2] or ""))
        scheme = _SCHEME.match(name)
        if scheme is not None and scheme[1].lower() != "file":
            raise self._refused(_scheme_refusal(scheme[1].lower(), name))
        if name.startswith("file:"):
            return self._file(unquote(name.removeprefix("file:").removeprefix("//")))
        if name.startswith(("/", "./", "../")) or name in (".", ".."):
            return self._file(posixpath.join(self._folder_of(base), name))
        return self._in_packages(base, name)

    def _folder_of(self, base: str) -> str:
        return posixpath.dirname(base) if base.startswith("/") else self.folder

    def _file(self, path: str) -> str:
        """Returns the path of a file, with the query of the import."""
        plain, mark, query = path.partition("?")
        found = self._first(posixpath.normpath(plain))
        if found is None:
            raise self._refused(f"There is no file {plain[:300]}.")
        return f"{found}{mark}{query}"

    def _first(self, path: str) -> str | None:
        """Returns the first file that a path can stand for."""
        candidates = [f"{path}{ending}" for ending in _ENDINGS]
        if path.endswith(".js"):  # TypeScript imports by the name of the compiled file
            candidates.append(f"{path[:-3]}.ts")
        candidates += [f"{path}/{index}" for index in _INDEXES]
        return next((each for each in candidates if self._kind(each) == stat.S_IFREG), None)

    def _kind(self, path: str) -> int:
        """Returns the kind of the file at a path, as in `st_mode`; 0 if there is none."""
        if self.should_stop():  # a long path takes time, and there may be many
            raise self._refused("The cell was stopped.")
        try:
            files = self.files()
            return stat.S_IFMT(files.operations.status(files.at(path)).st_mode)
        except OSError:
            return 0

    # -- packages

    def _in_packages(self, base: str, name: str) -> str:
        parts = name.split("/")
        count = 2 if name.startswith("@") else 1
        package, rest = "/".join(parts[:count]), "/".join(parts[count:])
        for folder in self._package_folders(base):
            if self._kind(folder) != stat.S_IFDIR:
                continue
            place = f"{folder}/{package}"
            manifest = self._manifest(place)
            if manifest is None:
                found = self._first(f"{folder}/{name}")
            else:
                found = self._entry(place, manifest, rest)
            if found is not None:
                return found
        raise self._refused(
            f"There is no package {package[:100]!r} here. `%npm install {package[:100]}` gets one "
            "that is JavaScript alone, where that is allowed; or lay it into /app/node_modules."
        )

    def _package_folders(self, base: str) -> Iterator[str]:
        folder = self._folder_of(base)
        while folder not in ("", "/"):
            if posixpath.basename(folder) != "node_modules":
                yield f"{folder}/node_modules"
            folder = posixpath.dirname(folder)
        yield "/app/node_modules"
        yield f"{LIBRARY_GUEST}/node_modules"

    def _manifest(self, place: str) -> Mapping[str, Any] | None:
        try:
            found = json.loads(self.files().read(f"{place}/package.json", 0, _MANIFEST_MOST))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _entry(self, place: str, manifest: Mapping[str, Any], rest: str) -> str | None:
        """Returns the file of a package that an import means."""
        if (exports := manifest.get("exports")) is not None:
            target = _exported(exports, f"./{rest}" if rest else ".")
            if target is None:
                raise self._refused(f"The package exports no {rest[:100] or 'main module'!r}.")
            return self._inside(place, target)
        if rest:
            return self._first(f"{place}/{rest}")
        for key in ("module", "main"):
            target = manifest.get(key)
            if isinstance(target, str) and (found := self._inside(place, target)) is not None:
                return found
        return self._first(place)

    def _inside(self, place: str, target: str) -> str | None:
        if len(target) > _NAME_MOST:
            return None
        path = posixpath.normpath(f"{place}/{target}")
        return self._first(path) if path.startswith(f"{place}/") else None

    # -- sources

    def load(self, name: str) -> bytes:
        """Returns the source of a module by its full name, or raises `ModuleProblem`."""
        if (found := self._built_in.get(name)) is not None:
            return found
        path = name.partition("?")[0]
        source = self._read(path)
        if path.endswith(".json"):
            return b"export default JSON.parse(" + json.dumps(source.decode()).encode() + b");"
        if self._is_common(path, source):
            return _as_module(path, source)
        return self._without_types(path, source) or b"\n"

    def script(self, path: str) -> bytes:
        """Returns the source of a file that `require` runs."""
        source = self._without_types(path, self._read(path))
        return b"//" + source if source.startswith(b"#!") else source

    def _read(self, path: str) -> bytes:
        try:
            return self.files().read(path, 0, SOURCE_MOST)
        except OSError as problem:
            why = f"{path[:300]} can't be read: {(problem.strerror or '').lower()}."
            raise self._refused(why) from None

    def _without_types(self, path: str, source: bytes) -> bytes:
        if not path.endswith(_TYPESCRIPT):
            return source
        try:
            return self._strip(source.decode("utf-8", "replace")).encode()
        except Exception as problem:
            self.problem = f"{path[:300]} can't be read as TypeScript: {str(problem)[:500]}"
            raise

    def _is_common(self, path: str, source: bytes) -> bool:
        if path.endswith((".cjs", ".cts")):
            return True
        may_be = path.endswith(".js") and not _ES_MODULE.search(source)
        return may_be and _COMMON.search(source) is not None


def _exported(exports: Any, path: str) -> str | None:
    """Returns the file that a package's `exports` name for a path."""
    if isinstance(exports, dict) and any(key.startswith(".") for key in exports):
        if path in exports:
            return _chosen(exports[path])
        for pattern, target in exports.items():
            before, star, after = pattern.partition("*")
            fits = path.startswith(before) and path.endswith(after) and len(path) >= len(pattern)
            if star and fits:
                found = _chosen(target) or ""
                middle = path[len(before) : len(path) - len(after)]
                if len(found) + found.count("*") * len(middle) > _NAME_MOST:
                    return None
                return found.replace("*", middle) or None
        return None
    return _chosen(exports) if path == "." else None


def _chosen(target: Any) -> str | None:
    """Returns the file of the first condition that this loader fulfils."""
    for _ in range(10):
        if isinstance(target, list) and target:
            target = target[0]
        if not isinstance(target, dict):
            break
        found = (each for key, each in target.items() if key in _CONDITIONS)  # the first decides
        target = next(found, target.get("require"))
    return target if isinstance(target, str) else None


def _as_module(path: str, source: bytes) -> bytes:
    """Returns the source of a module with the exports of a CommonJS file."""
    lists = (found[1].replace(b"\n", b" ") for found in _LISTED.finditer(source))
    listed = chain.from_iterable(map(_NAME.finditer, lists))
    found = chain(_EXPORTED.finditer(source), _DEFINED.finditer(source), listed)
    names = (each[1] for each in islice(found, _EXPORTS_MOST))
    kept = sorted({name.decode() for name in names} - _RESERVED)
    lines = [f"export const {name} = m[{json.dumps(name)}];" for name in kept]
    return (_COMMON_MODULE.format(path=json.dumps(path)) + "\n".join(lines)).encode()


def _scheme_refusal(scheme: str, name: str) -> str:
    if scheme == "node":
        return f"{name[:100]!r} is not available in the sandbox."
    if scheme in ("http", "https"):
        return (
            "Modules can't be fetched from the network: cells have none. `%npm install NAME` gets "
            "a package, where that is allowed; or lay the file into /app."
        )
    return f"Modules can't be imported by {scheme[:20]!r} here."
