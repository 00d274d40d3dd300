"""The limits of rooms, files and functions: the rooms that each may import, and sizes.

Every import counts, also those inside functions, those for the type checker only, and those through
`import_module` or `__import__` with a literal name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import wasm_kernel
from wasm_kernel.frontends.jupyter.confine import IMPORTED_WHEN_CONFINED
from wasm_kernel.service.worker import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "wasm_kernel"
ROOMS = ["linux", "engine", "wasi_files", "folders", "state", "codecs", "guests", "execution"]
ROOMS += ["sessions", "publishing", "network", "service", "kernels"]
"""The rooms from the lowest floor up. `outputs` is not among them and has its own test."""
FLOORS = {name: number for number, name in enumerate([*ROOMS, "frontends"], start=1)}
FLOORS["outputs"] = FLOORS["sessions"]
FLOORS["integrations"] = FLOORS["frontends"] + 1
LANGUAGE = re.compile(r"(?<!RuntimeType\.)python|%pip", re.IGNORECASE)
"""Matches words of one guest language in identifiers, imports, sentences and comments."""
JUPYTER = "IPython ipykernel jupyter_client jupyter_core nbclient nbformat tornado traitlets zmq"
ROOMS_OF = {"wasmtime": ("engine",), **dict.fromkeys(JUPYTER.split(), ("frontends", "kernels"))}
DECLARED = {"ipykernel", "IPython", "jupyter_client", "nbclient", "nh3", "structlog", "traitlets"}
DECLARED |= {"wasmtime"}
DECLARED |= {"installer", "markdown_it", "msgspec", "tinycss2"}
DECLARED |= {"backports", "compression"}  # packages for zstd; Python has it since 3.14
DECLARED |= {"numpy", "threadpoolctl"}  # packages of the extra `fast`
DECLARED |= {"junitparser", "papermill", "rich", "yaml"}  # packages of the extra `batch`
DECLARED |= {"h11", "httpcore"}  # packages of the extra `network`
DECLARED |= {"pyarrow"}  # a package of programs whose functions take tables
DECLARED |= {"keyring"}  # a package of the extra of that name
DECLARED |= {"distributed"}  # a package of the extra of that name
DECLARED |= {"mcp", "prometheus_client"}  # packages of the extra `mcp`, with dependencies
# packages of programs that import their interfaces
DECLARED |= {"PIL", "ag2", "agent_framework", "agents", "autogen_core", "camel", "deepagents"}
DECLARED |= {"dspy", "google", "inspect_ai", "pydantic", "smolagents", "typing_extensions"}
DECLARED |= {"anyio", "h11", "mcp_types", "pydantic", "sse_starlette", "starlette", "uvicorn"}
COMES_WITH_IPYKERNEL = {"comm", "jupyter_core", "nbformat", "packaging", "psutil", "tornado", "zmq"}
NOT_IN_A_KERNEL = ("batch", "e2b", "http", "mcp")
VAGUE = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common"}
READ = (ast.Import, ast.ImportFrom, ast.Call, ast.FunctionDef, ast.AsyncFunctionDef)
FILE_LINES = 500
BODY_LINES = 40


@dataclass(frozen=True)
class Import:
    """One imported name, and its place in the code."""

    file: Path
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.target}"


@dataclass
class Code:
    """The facts about a file that tests look at.

    Trees of all files, if they were kept, would let garbage collections take seconds.

    Attributes:
        called: The names of the functions that it calls.
        bodies: The lines of each function's body, by its place and name.
    """

    imports: list[Import] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    bodies: dict[str, int] = field(default_factory=dict)


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def code_of(file: Path) -> Code:
    code = Code()
    for node in ast.walk(tree_of(file)):
        if not isinstance(node, READ):
            continue
        code.imports += [Import(file, getattr(node, "lineno", 0), name) for name in named(node)]
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                code.called.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                where = f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
                code.bodies[where] = body_lines(node)
    return code


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def named(node: ast.AST) -> Iterator[str]:
    """The dotted names that one node imports."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__")
            | ast.Attribute(attr="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name


def imports(folder: str) -> Iterator[Import]:
    for file in python_files(folder):
        yield from code_of(file).imports


def floor_of_module(dotted: str) -> int:
    parts = dotted.split(".")
    return FLOORS.get(parts[1], 0) if len(parts) > 1 else 0


def floor_of_file(file: Path) -> int:
    first = file.relative_to(ROOT / PACKAGE).parts[0]
    if first in ("__init__.py", "__main__.py"):
        return max(FLOORS.values())  # the top: the package's public names, and the kernel's module
    return FLOORS.get(first, 0)


def room(dotted: str) -> str:
    """The part of `frontends` that a module belongs to; empty for none."""
    parts = dotted.split(".")
    return parts[2] if parts[:2] == [PACKAGE, "frontends"] and len(parts) > 2 else ""


def dotted_of(file: Path, beside: Path = ROOT) -> str:
    return ".".join(file.relative_to(beside).with_suffix("").parts)


def top(found: Import) -> str:
    return found.target.partition(".")[0]


def told(found: list[Import]) -> str:
    return "\n".join(map(str, found))


def test_the_walk_sees_imports_inside_functions_and_by_name() -> None:
    source = "def f():\n import a.b\nfrom c import d\nimport_module('e')\nx.__import__('g')\n"
    nodes = ast.walk(ast.parse(source))
    assert {name for node in nodes for name in named(node)} == {"a.b", "c.d", "e", "g"}


def test_imports_go_down_only() -> None:
    wrong = [
        found
        for found in imports(PACKAGE)
        if top(found) == PACKAGE and floor_of_module(found.target) > floor_of_file(found.file)
    ]
    assert not wrong, told(wrong)


def test_rooms_without_a_language_do_not_speak_of_one() -> None:
    speaks = {
        file.relative_to(ROOT / PACKAGE).as_posix()
        for room in ("engine", "wasi_files", "state", "execution", "sessions", "publishing")
        for file in python_files(f"{PACKAGE}/{room}")
        if LANGUAGE.search(file.read_text(encoding="utf-8"))
    }
    assert not speaks


def test_cells_wasmtime_and_jupyter_are_at_home_in_their_rooms_alone() -> None:
    """A worker's owner ends it if a guest does not stop. Nothing could stop a guest elsewhere."""
    makers = [
        file
        for file in python_files(PACKAGE)
        if any(name.endswith("SessionGuest") for name in code_of(file).called)
    ]
    assert makers == [ROOT / PACKAGE / "service" / "worker.py"]
    wrong = [
        each
        for each in imports(PACKAGE)
        if (rooms := ROOMS_OF.get(top(each)))
        and each.file.relative_to(ROOT / PACKAGE).parts[0] not in rooms
    ]
    assert not wrong, told(wrong)


def test_outputs_import_nothing_of_ours_but_errors_and_results() -> None:
    own = re.compile(rf"{PACKAGE}\.(outputs|errors|result)(\.|$)")
    found = imports(f"{PACKAGE}/outputs")
    wrong = [each for each in found if top(each) == PACKAGE and not own.match(each.target)]
    assert not wrong, told(wrong)


def test_front_ends_never_import_each_other() -> None:
    """The front ends over HTTP share the room `http`, which imports none of them."""
    wrong = [
        found
        for found in imports(f"{PACKAGE}/frontends")
        if room(found.target) not in ("", "http", room(dotted_of(found.file)))
        and room(dotted_of(found.file)) not in ("", "cli")
    ]
    assert not wrong, told(wrong)


def test_every_foreign_import_is_declared() -> None:
    known = DECLARED | COMES_WITH_IPYKERNEL | {PACKAGE} | set(sys.stdlib_module_names)
    wrong = [found for found in imports(PACKAGE) if top(found) not in known]
    assert not wrong, told(wrong)


def test_late_imports_of_a_confined_kernel_are_known_to_its_walls() -> None:
    others = {ROOT / PACKAGE / "frontends" / name for name in NOT_IN_A_KERNEL}
    others |= {ROOT / PACKAGE / name for name in ("integrations", "network")}
    within = (found for found in imports(PACKAGE) if others.isdisjoint(found.file.parents))
    foreign = {top(found) for found in within} - {PACKAGE, *sys.stdlib_module_names}
    foreign -= {"pyarrow"}  # for functions that take tables; kernels have none
    assert foreign <= {*IMPORTED_WHEN_CONFINED, *PACKAGES}  # packages of front ends and workers


def test_the_agent_knows_no_host_private_names_one_file_and_the_package_imports_nothing() -> None:
    wrong = [found for found in imports("runtimes") if top(found) in (PACKAGE, "wasmtime")]
    assert not wrong, told(wrong)
    private = [each for each in imports(PACKAGE) if re.match(r"wasmtime\b.*\._[^_]", each.target)]
    assert {each.file.name for each in private} == {"wasmtime_api.py"}
    tree = tree_of(ROOT / PACKAGE / "__init__.py")
    at_import = [name for node in tree.body for name in named(node)]
    assert not [name for name in at_import if name.split(".")[0] not in sys.stdlib_module_names]


@pytest.mark.parametrize("folder", [PACKAGE, "runtimes", "guest", "tests"])
def test_no_file_has_a_vague_name(folder: str) -> None:
    assert not [file for file in python_files(folder) if set(file.stem.split("_")) & VAGUE]


@pytest.mark.parametrize("folder", [PACKAGE, "runtimes", "guest"])
def test_no_file_and_no_function_body_is_too_long(folder: str) -> None:
    lines = {f: len(f.read_text(encoding="utf-8").splitlines()) for f in python_files(folder)}
    assert not {str(file): n for file, n in lines.items() if n > FILE_LINES}
    for file in python_files(folder):
        bodies = code_of(file).bodies.items()
        assert not {where: size for where, size in bodies if size > BODY_LINES}


def test_interfaces_of_frameworks_are_short_and_stand_on_the_public_api() -> None:
    """Interfaces outside of this repository can be written in the same way."""
    files = python_files(f"{PACKAGE}/integrations")
    assert not [file for file in files if len(file.read_text(encoding="utf-8").splitlines()) > 250]
    public = {f"{PACKAGE}.{name}" for name in wasm_kernel.__all__}
    wrong = [
        found
        for found in imports(f"{PACKAGE}/integrations")
        if top(found) == PACKAGE
        and found.target not in public
        and not found.target.startswith(f"{PACKAGE}.integrations.")
    ]
    assert not wrong, told(wrong)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("package", [PACKAGE, "runtimes/python/wasm_kernel_agent"])
def test_no_files_import_each_other_in_a_circle(package: str) -> None:
    beside = (ROOT / package).parent
    files = {
        dotted_of(file, beside): file
        for file in python_files(package)
        if file.name != "__init__.py"
    }
    below = {}
    for name, file in files.items():
        targets = {each.target for each in code_of(file).imports}
        below[name] = files.keys() & (targets | {each.rpartition(".")[0] for each in targets})
    while ends := {name for name, needed in below.items() if not needed & below.keys() - {name}}:
        below = {name: needed for name, needed in below.items() if name not in ends}
    assert sorted(below) == []
