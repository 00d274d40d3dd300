"""F16, case 50: small archives that unpack to much, or to a million folders or steps of lookup.

They end in `ArchiveError`, or in a session.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.attacks.test_archives import (
    Members,
    folder,
    link,
    manifest,
    member,
    packed,
    packed_bytes,
    refused,
    sparse,
    unpacked,
)
from tests.peak import MB, Peak
from wasm_kernel import Imported, RuntimeType, get_session_sandbox, list_session_files
from wasm_kernel.linux import trees, walks
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.sessions.files import write_session_file
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE
from wasm_kernel.state.tar import ArchiveError, ArchiveWriter

ID = "bounds"
STATES = "memory/states.jsonl"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest archive with variables, unpacked."""
    runtime = RuntimeType.JAVASCRIPT  # a guest with little memory
    return unpacked(tmp_path_factory.mktemp("honest"), ID, "var x = 1", runtime=runtime)


def on_disk(folder: Path) -> int:
    return sum(p.lstat().st_blocks * 512 for p in folder.rglob("*"))


def with_states(
    parts: Path, target: Path, states: bytes, contents: Sequence[Path], **changes: Any
) -> Path:
    """The honest archive with its states replaced by a stranger's."""
    told = json.loads((parts / "manifest.json").read_text())
    told["memory"] |= changes
    (target.parent / "states").write_bytes(states)
    with target.open("wb") as file:
        packing = ArchiveWriter(file)
        packing.text("manifest.json", json.dumps(told).encode())
        first = {"image": parts / "memory" / "image", "states.jsonl": target.parent / "states"}
        members = first | {path.name: path for path in contents}
        for name, path in members.items():
            with path.open("rb") as source:
                packing.file(f"memory/{name}", source.fileno())
        packing.close()
    return target


def honest(parts: Path) -> tuple[bytes, list[Path]]:
    """The first of the honest states, and the content that it refers to."""
    line = (parts / STATES).read_bytes().splitlines()[1]  # the first one is an origin
    return line, [parts / "memory" / json.loads(line)["content"]]


def hollow_states(parts: Path, folder: Path, count: int, pages: int) -> tuple[bytes, list[Path]]:
    """States whose pages are one large hole in a file."""
    line, contents = honest(parts)
    digest, block = hashlib.sha256(), bytes(PAGE * 64)
    for _ in range(pages // 64):
        digest.update(block)
    path = folder / digest.hexdigest()
    with path.open("wb") as file:
        file.truncate(pages * PAGE)
    first, lines = msgspec.json.decode(line, type=Commit), [line]
    for one in range(2, count + 2):
        size, runs = 65_536 * 4096 * 2, ((10_000, pages),)
        commit = Commit(
            one, one - 1, first.cell, first.count, first.label, 0.0, size, runs=runs,
            content=path.name,
        )  # fmt: skip
        lines.append(msgspec.json.encode(commit))
    return b"\n".join(lines), [*contents, path]


def imported(parts: Path, root: Path, tmp_path: Path, *lines: bytes) -> Imported:
    """The result of an import of the honest archive with these states."""
    _, contents = honest(parts)
    return import_session(
        with_states(parts, tmp_path / "a.tar.gz", b"\n".join(lines), contents), root
    )


def test_states_that_are_holes_become_no_more_than_is_allowed(
    parts: Path, root: Path, tmp_path: Path, hasty_workers: None
) -> None:
    states = hollow_states(parts, tmp_path, 2, 40_960)
    archive, peak = with_states(parts, tmp_path / "a.tar.gz", *states), Peak()
    with contextlib.suppress(ArchiveError):
        import_session(archive, root, max_bytes=150 * MB)
    assert on_disk(root) < 150 * MB
    made = import_session(archive, root)
    assert peak.grown < 450 * MB  # both images are mapped, so they count
    assert on_disk(root / made.session_id) < 200 * MB
    with get_session_sandbox(made.session_id, workspace_root=root) as sandbox:
        cells = (sandbox.execute("y = 2; print(y)") for _ in range(3))  # a state may cost a cell
        assert any(cell.stdout == "2\n" for cell in cells)


def test_many_states_take_a_time_that_grows_so(parts: Path, root: Path, tmp_path: Path) -> None:
    line, _ = honest(parts)
    first, lines = msgspec.json.decode(line, type=Commit), [line]
    for one in range(2, 6_000):
        commit = Commit(one, one - 1, first.cell, first.count, "", 0.0, first.size)
        lines.append(msgspec.json.encode(commit))
    begun = os.times().user  # this test does not measure the writing of files
    assert imported(parts, root, tmp_path, *lines).states == len(lines)
    assert os.times().user - begun < 3


HEADERS = {
    "8 million lists": b'{"type":"commit","runs":[' + b"[]," * 8_000_000 + b"[]]}",
    "nested": b"[" * 100_000,
    "infinite": b'{"id":1e999,"runs":[[1e999,1]],"zeros":[],"files":[]}',
}
HEAD = {"type": "head", "at": 1, "after": 1, "undone": [], "count": 0}
RECORDS: dict[str, list[dict[str, Any]]] = {
    "a newest state beyond all": [HEAD | {"after": 1 << 31}],
    "a number without end": [HEAD | {"after": 10**400}],
    "memory at a state that is not there": [HEAD | {"at": 7, "after": 7}],
    "a name that is a path": [HEAD, {"type": "name", "name": "../x", "id": 1}],
    "a dropped state": [{"type": "drop", "ids": [1]}],
}


def test_odd_states_cost_the_variables_alone_and_take_little_memory(
    parts: Path, root: Path, tmp_path: Path
) -> None:
    line, _ = honest(parts)
    no_time = json.dumps(json.loads(line) | {"time": 1e300}, separators=(",", ":")).encode()
    cases = {"no states": [], "no time": [no_time]}
    cases |= {name: [header] for name, header in HEADERS.items()}
    for name, records in RECORDS.items():
        cases[name] = [line, *(json.dumps(each).encode() for each in records)]
    first = msgspec.json.decode(line, type=Commit)
    beginnings = (replace(first, id=one) for one in range(1, 66))  # each is completed with pages
    cases["many beginnings"] = [msgspec.json.encode(one) for one in beginnings]
    for name, lines in cases.items():
        peak = Peak()
        made = imported(parts, root, tmp_path, *lines)
        assert peak.grown < 150 * MB, name
        assert made.states == 0, name
        assert "were not imported" in made.note, name


@pytest.mark.parametrize("ids", [[1, 3], [-1], [1, 10**400]], ids=str)
def test_odd_numbers_of_states_end_in_a_session_that_opens(
    parts: Path, root: Path, tmp_path: Path, ids: list[int]
) -> None:
    line, _ = honest(parts)
    lines = [
        json.dumps(json.loads(line) | {"id": one, "parent": before}).encode()
        for before, one in zip([0, *ids], ids, strict=False)
    ]
    made = imported(parts, root, tmp_path, *lines)
    assert (made.states == 0) is bool(made.note)
    with get_session_sandbox(made.session_id, workspace_root=root) as sandbox:
        assert sandbox.execute("print(2)").stdout == "2\n"


@pytest.mark.parametrize("facts", ["[" * 100_000, '{"words":[]}'], ids=["nested", "wrong words"])
def test_wrong_facts_cost_variables(parts: Path, root: Path, tmp_path: Path, facts: str) -> None:
    archive = with_states(parts, tmp_path / "a.tar.gz", *honest(parts), facts=facts)
    made = import_session(archive, root)
    assert (made.states, made.note != "") == (0, True)


def test_a_manifest_of_many_words_takes_little_memory(root: Path, tmp_path: Path) -> None:
    data = b'{"kind":"wasm-kernel session","version":1,"session_id":"a","memory":['
    data += b'{"":0},' * 2_000_000 + b"{}]}"
    archive = packed(tmp_path / "a.tar.gz", [member("manifest.json", data)])
    peak = Peak()
    refused(root, archive)
    assert peak.grown < 150 * MB


# -- headers that no honest program writes


def extended(words: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A member with an extended header of these records, then a file."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = kind, len(words)
    info, data = member("files/x")
    body = words + bytes(-len(words) % 512)
    first = bytes(header.tobuf())
    return first + body + bytes(info.tobuf()) + bytes(data) + bytes(511)


MOST = 128 * 1024 - 512  # a longer header is not read at all
QUADRATIC = {
    "too long": extended(b"1" * 1_000_000),
    "digits": extended(b"1" * MOST),
    "digits in a value": extended(b"%d a=%s\n" % (MOST, b"1" * (MOST - 10))),
    "records in records": extended(b"4 xx" * (MOST // 4 - 1) + b"="),
    "headers of headers": extended(b"6 a=b\n")[:1024] * 1_000,
    "headers for all": extended(b"6 a=b\n", tarfile.XGLTYPE) * 600,
}


@pytest.mark.parametrize("made", QUADRATIC.values(), ids=QUADRATIC)
def test_headers_slow_to_read_are_refused_at_once(root: Path, tmp_path: Path, made: bytes) -> None:
    """Python's reader searches them with regular expressions that take quadratic time."""
    archive = packed_bytes(tmp_path / "a.tar.gz", made)
    peak, begun = Peak(), time.process_time()
    refused(root, archive)
    assert time.process_time() - begun < 5
    assert peak.grown < 100 * MB


def test_a_map_of_a_billion_parts_takes_no_memory(root: Path, tmp_path: Path) -> None:
    body = "90000000\n" + "0\n" * 4_000_000
    archive = packed(tmp_path / "a.tar.gz", [manifest(), sparse(body)])
    peak = Peak()
    refused(root, archive)
    assert peak.grown < 80 * MB


def test_a_negative_size_and_a_damaged_last_header_are_refused(root: Path, tmp_path: Path) -> None:
    """Formerly, a negative size sent Python's reader back to the same header for ever."""
    odd = bytearray(member("files/x")[0].tobuf())
    odd[124:136] = (b"\xff" * 12)[:10] + b"\xfe\x00"
    odd[148:156] = b"        "
    odd[148:156] = b"%06o\0 " % sum(odd)
    refused(root, packed_bytes(tmp_path / "a.tar.gz", bytes(odd) + bytes(1024)))
    odd = member("files/x", b"")[0].tobuf().replace(b"files/x", b"files/y")
    refused(root, packed_bytes(tmp_path / "a.tar.gz", odd))


ROOM = 4 * MB
DEEP = "d/" * 2000


SWOLLEN: dict[str, Members] = {
    "folders 30,000 deep": [folder(f"{k}/" + "a/" * 30_000 + "b") for k in range(5)],
    "folders on the way to files": [member(f"files/{k}/{DEEP}f") for k in range(30)],
    "links": [link(str(k), "x" * 90) for k in range(1200)],
}


@pytest.mark.parametrize("members", SWOLLEN.values(), ids=SWOLLEN)
def test_folders_and_links_take_room(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: Members
) -> None:
    most, empty = 0, trees.remove_contents

    def measured(place: int) -> None:
        nonlocal most
        statuses = (
            os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
            for entry in walks.entries(place)
        )
        most = sum(status.st_blocks * 512 for status in statuses)
        empty(place)

    monkeypatch.setattr(trees, "remove_contents", measured)
    archive = packed(tmp_path / "a.tar.gz", [manifest(), *members])
    refused(root, archive, max_bytes=ROOM)
    assert most < 2 * ROOM


def to_and_fro(count: int) -> Members:
    return [member(f"files/{'ab'[k % 2]}/{DEEP}{k}", b"") for k in range(count)]


def circles(count: int) -> Members:
    """Forty links that lead through each other, up and down."""
    chain = [link(f"l{k}", "d/../" * 700 + f"l{k + 1}") for k in range(39)]
    return [folder("d"), *chain, link("l39", "d"), *(link(f"m{k}", "l0") for k in range(count))]


@pytest.mark.parametrize("made", [to_and_fro, circles])
def test_endless_paths_are_refused_soon(root: Path, tmp_path: Path, made: object) -> None:
    """Each member may cost 4,000 steps, and each link 60,000: hours for a million of them."""
    assert callable(made)
    archive = packed(tmp_path / "a.tar.gz", [manifest(), *made(100)])
    begun = time.process_time()
    assert "too long to follow" in refused(root, archive)
    assert time.process_time() - begun < 10


def test_a_tree_in_its_own_order_is_accepted(root: Path, tmp_path: Path) -> None:
    """An export's own order of members is accepted, however deep it is and however many it has."""
    for k in range(2):
        write_session_file("here", f"{k}/" + "d/" * 600 + "f", b"", tmp_path / "own")
        for n in range(100):
            write_session_file("here", f"{k}/" + "d/" * 30 + f"f{n}", b"", tmp_path / "own")
    export_session("here", tmp_path / "a.tar.gz", tmp_path / "own", files_only=True)
    made = import_session(tmp_path / "a.tar.gz", root)
    assert made.left_out == {}
    assert list_session_files(made.session_id, root) == list_session_files("here", tmp_path / "own")
    trees.remove_tree(tmp_path / "own")


def test_a_path_that_no_guest_can_name_is_left_out_and_told(root: Path, tmp_path: Path) -> None:
    write_session_file(
        "here", "x" * 250 + "/" + ("y" * 200 + "/") * 20 + "f", b"", tmp_path / "own"
    )
    write_session_file("here", "kept", b"", tmp_path / "own")
    made = export_session("here", tmp_path / "a.tar.gz", tmp_path / "own", files_only=True)
    assert list(made.left_out.values()) == ["its path is too long"]
    back = import_session(tmp_path / "a.tar.gz", root)
    assert list_session_files(back.session_id, root) == ["kept"]


def test_the_export_of_an_alias_names_the_session(root: Path, tmp_path: Path) -> None:
    """A root's link to a session inside the root: id, lock and private folder are the session's."""
    alias = "4b0b5eec-92c2-443a-a471-803ea6050ac9"
    write_session_file("here", "f", b"", tmp_path / "own")
    (tmp_path / "own" / alias).symlink_to("here")
    made = export_session(alias, tmp_path / "a.tar.gz", tmp_path / "own", files_only=True)
    assert made.session_id == "here"
    assert import_session(tmp_path / "a.tar.gz", root, same_id=True).session_id == "here"
