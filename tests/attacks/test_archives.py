"""Hostile archives: members, manifests, and states whose tables say which files were open."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.faces import open_files, process_of, says
from tests.peak import MB, Peak
from tests.private import folders_of
from wasm_kernel import get_session_sandbox, prune_sessions
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import file_identity
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.sessions.overview import sessions_in
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.state.archive_out import VERSION, identities_here
from wasm_kernel.state.tar import ArchiveError, ArchiveWriter

MANIFEST: dict[str, Any] = {
    "kind": "wasm-kernel session", "version": VERSION, "session_id": "abc", "memory": None,
    "why_not": "",
}  # fmt: skip
Members = list[tuple[tarfile.TarInfo, bytes]]


def member(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, **fields: Any) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data) if kind == tarfile.REGTYPE else 0
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def unpacked(folder: Path, name: str, cell: str, **options: Any) -> Path:
    """The parts of an honest archive of a session that has run a cell."""
    with get_session_sandbox(name, workspace_root=folder / "sessions", **options) as sandbox:
        says(sandbox, cell)
    export_session(name, folder / "a.tar.gz", folder / "sessions")
    (folder / "parts").mkdir()
    subprocess.run(["tar", "-xf", "a.tar.gz", "-C", "parts"], cwd=folder, check=True)
    return folder / "parts"


def manifest(**changes: Any) -> Any:
    return member("manifest.json", json.dumps(MANIFEST | changes).encode())


def link(name: str, target: str) -> Any:
    return member(f"files/{name}", b"", tarfile.SYMTYPE, linkname=target)


def folder(name: str) -> Any:
    return member(f"files/{name}", b"", tarfile.DIRTYPE, mode=0o755)


def sparse(body: str = "1\n0\n5\n", **fields: str) -> Any:
    words = {"major": "1", "minor": "0", "name": "files/x", "realsize": "100"} | fields
    headers = {f"GNU.sparse.{name}": value for name, value in words.items() if value}
    data = body.encode() + bytes(-len(body) % 512) + b"12345"
    return member("files/GNUSparseFile.0/x", data, pax_headers=headers)


def packed(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


def packed_bytes(path: Path, raw: bytes) -> Path:
    """An archive of a manifest and members that no program would write."""
    info, data = manifest()
    raw = info.tobuf() + data + bytes(-len(data) % 512) + raw + bytes(1024)
    path.write_bytes(gzip.compress(raw, compresslevel=1))
    return path


def refused(root: Path, archive: Path, **options: Any) -> str:
    """The message of a refused import, which left no session and did not change the outside."""
    with pytest.raises(ArchiveError) as caught:
        import_session(archive, root, **options)
    assert not root.exists() or list(root.iterdir()) == []
    assert sorted(path.name for path in root.parent.iterdir() if path.name[0] == "o") == ["outside"]
    assert (root.parent / "outside" / "secret").read_text() == "secret"
    assert [path.name for path in (root.parent / "outside").iterdir()] == ["secret"]
    return str(caught.value)


NAMES = [
    "files/../../outside/evil", "files/../x", "/files/x", "../files/x", "evil", "files/./x",
    "files/a/..", "memory/../x", "other/x", "files", "manifest.json", "files/.metadata.json",
    "files/.metadata.json~/x", "files/.Metadata.JSON",
]  # fmt: skip


OUT = "../../outside"
MEMORY = {"artifact": "", "facts": ""}
BAD: dict[str, Members] = {
    "a hard link": [member("files/x", b"", tarfile.LNKTYPE, linkname="files/other")],
    "a hard link out": [member("files/x", b"", tarfile.LNKTYPE, linkname=f"{OUT}/secret")],
    "a pipe": [member("files/x", b"", tarfile.FIFOTYPE)],
    "a device of characters": [member("files/x", b"", tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "a file through a link": [link("d", OUT), member("files/d/evil")],
    "a link after a file of its name": [member("files/d"), link("d", f"{OUT}/secret")],
    "a name twice": [member("files/d"), member("files/d")],
    "a folder where a file is": [member("files/d"), member("files/d/e")],
    "a link below a link": [link("d", OUT), link("d/e", "x")],
    "a link with a long name": [link("l" * 300, "x")],
    "a link without a target": [link("l", "")],
    "a link through a file": [member("files/f"), link("f/l", "x")],
    "a link of 70,000 bytes": [link("l", "x/" * 35_000)],
    "a name of 70,000 bytes": [member("files/" + "x/" * 35_000)],
    "headers upon headers": [
        member("files/x", pax_headers={f"a{i}": "b" * 900 for i in range(200)})
    ],
    "a hole beyond the end": [sparse("1\n9000\n5\n")],
    "a hole of negative size": [sparse("1\n0\n-5\n")],
    "holes of a count that is not a number": [sparse("x\n0\n5\n")],
    "holes of a million parts": [sparse("1000000\n" + "0\n0\n" * 100)],
    "a body that is not a map": [sparse("no map\n")],
    "a size below nothing": [sparse("0\n", realsize="-1000000000000")],
    "a size beyond all": [sparse(realsize=str(1 << 63))],
    "parts upon each other": [sparse("2\n0\n3\n1\n2\n")],
}
BAD |= {f"the name {name}": [member(name)] for name in NAMES}
BAD = {name: [manifest(), *members] for name, members in BAD.items()} | {
    "no manifest": [member("files/x")],
    "no JSON": [member("manifest.json", b"{")],
    "nested deeply": [member("manifest.json", b"[" * 200_000)],
    "another kind": [manifest(kind="something else")],
    "a later version": [manifest(version=VERSION + 1)],
    "a bad id": [manifest(session_id="../../x")],
    "memory that is not an object": [manifest(memory=7)],
    "memory without facts": [manifest(memory={"artifact": ""})],
}
ODD_FILES = ("x", 5, {"1:2": "notes"}, {"1:2": ["/app"]}, {"1:2": ["/app", 3]}, [["1", "2"]])
BAD |= {f"open files {odd}": [manifest(memory=MEMORY | {"open_files": odd})] for odd in ODD_FILES}


def test_members_that_no_export_writes_and_damage_are_refused(root: Path, tmp_path: Path) -> None:
    for name, members in BAD.items():
        begun = time.process_time()
        told = refused(root, packed(tmp_path / "a.tar.gz", members))
        assert "archive" in told.lower(), name
        assert str(root) not in told
        assert time.process_time() - begun < 5, name
    archive = packed(tmp_path / "a.tar.gz", [manifest(), member("files/x", os.urandom(5000))])
    whole = archive.read_bytes()
    for damage in DAMAGE.values():
        archive.write_bytes(damage(whole))
        refused(root, archive)


def test_links_out_are_taken_away_and_no_more_rights_given(root: Path, tmp_path: Path) -> None:
    links = {"a": "../../outside", "b": "/etc/passwd", "c": "a/secret", "d": ".metadata.json"}
    members = [manifest(), member("files/file")]
    members += [member(f"files/{n}", b"", tarfile.SYMTYPE, linkname=t) for n, t in links.items()]
    members += [member("tmp/t", b"", tarfile.SYMTYPE, linkname="../../../outside")]
    made = import_session(packed(tmp_path / "a.tar.gz", members), root)
    assert set(made.left_out) == {*(f"files/{name}" for name in links), "tmp/t"}
    session = root / made.session_id
    assert sorted(path.name for path in session.iterdir() if path.name[0] != ".") == ["file"]
    members = [manifest(), member("files/tool", mode=0o6777, uid=0, gid=0)]
    members += [member("files/d", b"", tarfile.DIRTYPE, mode=0o7777)]
    made = import_session(packed(tmp_path / "a.tar.gz", members), root)
    for name in ("tool", "d"):
        assert (root / made.session_id / name).stat().st_mode & 0o7777 == 0o777


def test_the_links_of_an_archive_have_a_size_together(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The links are kept in memory until the archive's end."""
    monkeypatch.setattr("wasm_kernel.state.archive_in._LINKS_MOST_BYTES", 5_000)
    members = [manifest(), *(link(str(number), "x" * 90) for number in range(60))]
    assert "too many of them" in refused(root, packed(tmp_path / "a.tar.gz", members))


@pytest.mark.parametrize("mtime", [1e300, float("nan")])
def test_an_odd_time_does_not_matter(root: Path, tmp_path: Path, mtime: float) -> None:
    odd = member("files/x", pax_headers={"mtime": str(mtime)})
    import_session(packed(tmp_path / "a.tar.gz", [manifest(), odd]), root)


def test_an_honest_manifest_is_accepted_and_no_note_of_it_told(root: Path, tmp_path: Path) -> None:
    made = import_session(packed(tmp_path / "a.tar.gz", [manifest(memory=MEMORY)]), root)
    assert "another version of the sandbox" in made.note
    members = [manifest(why_not="\x1b]0;owned\x07 Run this: ..."), member("files/x")]
    made = import_session(packed(tmp_path / "a.tar.gz", members), root)
    assert made.note == "It holds no variables."


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "no tar": lambda data: gzip.compress(b"x" * 5000),
    "cut": lambda data: data[: len(data) // 2],
    "a changed byte": lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:],
    "a changed checksum": lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:],
    "more behind its end": lambda data: gzip.compress(gzip.decompress(data) + b"more"),
}


def test_a_bomb_is_stopped_at_its_limit(root: Path, tmp_path: Path) -> None:
    size = 60 << 20
    info, _ = member("files/zeros")
    info.size = size
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", compresslevel=1) as tar:
        first, data = manifest()
        tar.addfile(first, io.BytesIO(data))
        tar.addfile(info, io.BytesIO(bytes(size)))
    assert (tmp_path / "a.tar.gz").stat().st_size < 1 << 20
    assert "10,485,760 bytes" in refused(root, tmp_path / "a.tar.gz", max_bytes=10 << 20)


def test_a_header_of_gigabytes_takes_no_memory(root: Path, tmp_path: Path) -> None:
    """The PAX header names its own size, and Python's reader allocates that much at once."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 3 << 30
    first, data = manifest()
    raw = first.tobuf() + data + bytes(-len(data) % 512) + header.tobuf()
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        file.write(raw)
        for _ in range(100):
            file.write(bytes(1 << 20))
    peak = Peak()
    assert "header that is too large" in refused(root, tmp_path / "a.tar.gz")
    assert peak.grown < 300 * MB


def test_an_import_that_is_killed_leaves_no_session(root: Path, tmp_path: Path) -> None:
    """An import's folder has a name that no session has, and the next removal deletes it."""
    archive = packed(tmp_path / "a.tar.gz", [manifest(), member("files/x", bytes(1000))])
    code = (
        "import os, sys\nfrom wasm_kernel.sessions import archives, staging\n"
        "staging.publish = lambda *a: os.kill(os.getpid(), 9)\n"
        "archives.import_session(sys.argv[1], sys.argv[2])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(archive), str(root)], check=False)
    assert done.returncode == -9
    assert len(list(root.iterdir())) == 1
    assert sessions_in(SessionsRoot(root)) == []
    prune_sessions(1_000_000, root)
    assert list(root.iterdir()) == []


ID = "tables"
OPENED = """
import os, glob
path = "/usr/local/lib/wasm-kernel.zip"
fd = os.open(path, os.O_RDONLY)
before = os.pread(fd, 30, 0)
with open("/app/own", "w") as file: file.write("0123456789")
own = os.open("/app/own", os.O_RDWR)
x = 1
"""
USED = """
told = []
for one in (fd, own):
    try:
        os.pwrite(one, b"!", 0)
        told.append("written")
    except OSError:
        told.append("refused")
try:
    same = os.pread(os.open(path, os.O_RDONLY), 30, 0) == before
except OSError as problem:
    same = problem.strerror == "No file descriptors available"
print(told, same, x)
"""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest archive of a session with open files, unpacked."""
    return unpacked(tmp_path_factory.mktemp("honest"), ID, OPENED)


@pytest.fixture
def archive(honest: Path, tmp_path: Path) -> Iterator[Path]:
    """The unpacked parts; each test writes the ones that it changes."""
    shutil.copytree(honest, tmp_path / "parts", copy_function=os.link)
    yield tmp_path / "parts"
    trees.remove_tree(tmp_path / "there")


Files = list[dict[str, Any]]


def changed(states: Path, change: Callable[[Files], None]) -> None:
    """States with changed tables of open files."""
    records = [json.loads(line) for line in states.read_text().splitlines()]
    for record in records:
        if record["type"] == "commit":
            change(record["files"])
    states.unlink()
    states.write_text("\n".join(map(json.dumps, records)))


def states_packed(parts: Path, target: Path) -> Path:
    members = ["manifest.json", "files/own"]
    names = {path.name for path in (parts / "memory").iterdir()} - {"image", "states.jsonl"}
    members += [f"memory/{name}" for name in ("image", "states.jsonl", *sorted(names))]
    with target.open("wb") as file:
        packing = ArchiveWriter(file)
        for name in members:
            with (parts / name).open("rb") as source:
                packing.file(name, source.fileno())
        packing.close()
    return target


def hostile(files: Files) -> None:
    """Rights to write to the library, flags that empty it, and thousands of numbers."""
    for file in files:
        file.update(rights=(1 << 64) - 1, inheriting=(1 << 64) - 1, flags=15, fdflags=31)
    files += [files[0] | {"fd": number} for number in range(100, 5000)]


def test_a_strangers_table_bricks_no_session_and_no_library(archive: Path, tmp_path: Path) -> None:
    changed(archive / "memory" / "states.jsonl", hostile)
    made = import_session(states_packed(archive, tmp_path / "b.tar.gz"), tmp_path / "there")
    with get_session_sandbox(made.session_id, workspace_root=tmp_path / "there") as sandbox:
        first = sandbox.execute("y = 1")
        assert first.success, first.stderr
        assert len(open_files(process_of(sandbox))) < 340
        told = sandbox.execute(USED)
        assert "written" not in told.stdout.partition(",")[0], told.stderr
        assert told.stdout.endswith("True 1\n"), told.stderr
    assert (tmp_path / "there" / made.session_id / "own").stat().st_size == 10


def test_a_strangers_table_finds_the_sessions_own_files_only(tmp_path: Path) -> None:
    app, found = tmp_path / "app", "1:2"
    with closing(folders_of(app)) as folders:
        for path in ("a", ".metadata.json"):
            (app / path).write_text("x")
        (folders.private.path / "lock").write_text("x")
        (app / "private").symlink_to(folders.private.path)
        known = identities_here(folders, {found: ("/app", "a")})
        assert known == {found: file_identity(str(app / "a"))}
        for where in (
            *(("/app", path) for path in (".metadata.json", ".Metadata.JSON", "", ".", "a\0")),
            *(("/app", path) for path in ("private/lock", "../app/a", "/etc/passwd", "x" * 5000)),
            ("/tmp", "../lock"),
            ("/etc", "passwd"),
            ("", "a"),
        ):
            assert identities_here(folders, {found: where}) == {}, where
