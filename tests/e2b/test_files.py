"""The files of a sandbox by E2B's API."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.e2b.conftest import Answer, Api, SandboxOf
from tests.faces import wait_for
from wasm_kernel.errors import SessionInUse
from wasm_kernel.frontends.e2b import files, messages
from wasm_kernel.frontends.e2b.cells import CellStream
from wasm_kernel.frontends.e2b.messages import NewSandbox
from wasm_kernel.frontends.e2b.sandbox import HOME, ClientSandbox
from wasm_kernel.frontends.e2b.sandboxes import Sandboxes
from wasm_kernel.frontends.http.callers import Caller
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.frontends.http.session_files import HostWork
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.async_session import AsyncSession
from wasm_kernel.wasi_files.access import FileAccess, files_in
from wasm_kernel.wasi_files.preopens import APP, Preopen
from wasm_kernel.wasi_files.quota import Quota

PACKED = {"Content-Encoding": "gzip"}
BOUNDARY = "5e1f"
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture
def sandbox(ann: Api) -> SandboxOf:
    return ann.made()


def parts(*files: tuple[str, bytes]) -> bytes:
    head = '--{}\r\nContent-Disposition: form-data; name="file"; filename="{}"\r\n\r\n'
    rows = [head.format(BOUNDARY, path).encode() + data + b"\r\n" for path, data in files]
    return b"".join(rows) + f"--{BOUNDARY}--\r\n".encode()


def read(sandbox: SandboxOf, path: str) -> Answer:
    return sandbox.call("GET", f"/files?path={path}")


def test_uploaded_files_are_there_for_cells(sandbox: SandboxOf) -> None:
    body = parts(("a.txt", b"A"), ("/home/user/deep/b.bin", b"\0\xff"), ("/app/c.txt", b"C"))
    answer = sandbox.call("POST", "/files", body, MULTIPART)
    paths = ["/home/user/a.txt", "/home/user/deep/b.bin", "/app/c.txt"]
    assert [each["path"] for each in answer.json] == paths
    assert answer.json[0] == {"name": "a.txt", "path": paths[0], "type": "file"}
    code = "import os; sorted(os.listdir('/app')), open('deep/b.bin', 'rb').read()"
    assert sandbox.value(code) == "(['a.txt', 'c.txt', 'deep'], b'\\x00\\xff')"
    body = parts(("ignored", b"AA"))
    assert sandbox.call("POST", "/files?path=a.txt", body, MULTIPART).status == 200
    assert sandbox.upload("deep/z", gzip.compress(b"zz" * 9), **PACKED).status == 200
    assert read(sandbox, "a.txt").content == b"AA"
    assert read(sandbox, "/home/user/deep/z").content == b"zz" * 9
    sandbox.run("open('made.txt', 'w').write('made')")
    assert read(sandbox, "made.txt").content == b"made"


PYTHON = """
import os
names = sorted(os.listdir("/home/user"))
os.rename("/home/user/a.txt", "/app/moved")
os.makedirs("/home/user/deep/er", exist_ok=True)
(os.getcwd(), names, open("/home/user/moved").read(), os.path.samefile(".", "/app"))
"""
SHELL = "pwd; wc -c < /home/user/moved; cp moved /home/user/copy; cd /home/user/deep && ls; ls /app"
JAVASCRIPT = """
const fs = require("fs"), at = "/home/user/x.txt";
fs.writeFileSync(at, "js"); fs.renameSync(at, "/app/y.txt");
[process.cwd(), fs.readFileSync("/home/user/y.txt", "utf8"), fs.readdirSync(".").join()].join(" ")
"""
OUTSIDE = """
import os, subprocess
found = []
os.symlink("../..", "/home/user/up")
for path in ("../../etc/passwd", ".metadata.json", "up/x", "up/etc/passwd", "../x", "../usery/x"):
    for way in (open, os.stat, os.listdir, lambda path: open(path, "w"), os.mkdir):
        try:
            found.append((path, way("/home/user/" + path)))
        except OSError:
            pass
for link in ("/etc", "/home/user/../..", "../../.."):
    try:
        os.symlink(link, "/home/user/link")
        found.append(os.listdir("/home/user/link"))
    except OSError:
        pass
reading = "cat ../../etc/passwd up/etc/passwd .metadata.json ../user/../../etc/passwd"
found.append(subprocess.run(reading, cwd="/home/user", shell=True, capture_output=True).stdout)
found
"""


def test_cells_open_files_by_the_clients_paths_and_none_outside(sandbox: SandboxOf) -> None:
    sandbox.upload("a.txt", b"A")
    assert sandbox.value(PYTHON) == "('/home/user', ['a.txt'], 'A', True)"
    shown = [line["text"] for line in sandbox.run(f"!{SHELL}") if line["type"] == "stdout"]
    assert "".join(shown).split() == ["/home/user", "1", "er", "copy", "deep", "moved"]
    assert sandbox.value(JAVASCRIPT, language="js") == "/home/user js copy,deep,moved,y.txt"
    assert sandbox.value(OUTSIDE) == "[b'']"


def test_the_files_of_tmp_are_those_of_cells(sandbox: SandboxOf) -> None:
    assert sandbox.upload("/tmp/a/b.txt", b"B").json[0]["path"] == "/tmp/a/b.txt"
    assert sandbox.value("import os; open('/tmp/a/b.txt').read(), os.listdir('.')") == "('B', [])"
    sandbox.run("open('/tmp/c', 'w').write('C')")
    assert read(sandbox, "/tmp/c").content == b"C"
    rows = sandbox.files("ListDir", path="/tmp", depth=2).json["entries"]
    assert {each["path"] for each in rows} == {"/tmp/a", "/tmp/a/b.txt", "/tmp/c"}
    assert sandbox.files("Move", source="/tmp/c", destination="c").status == 200
    assert sandbox.files("Remove", path="/tmp").status == 400
    for _ in range(2):  # as in E2B, removing a missing file succeeds
        assert sandbox.files("Remove", path="/tmp/a").status == 200
    assert sandbox.value("os.listdir('/tmp'), os.listdir('.')") == "([], ['c'])"


def test_contexts_have_the_files_of_their_sandbox(sandbox: SandboxOf) -> None:
    sandbox.upload("a.txt", b"A")
    name = sandbox.call("POST", "/contexts", {}).json["id"]
    code = "f = open('b.txt', 'w+'); f.write('B'); f.flush(); open('a.txt').read()"
    assert sandbox.value(code, context_id=name) == "A"
    assert read(sandbox, "b.txt").content == b"B"
    assert sandbox.value("open('b.txt', 'a').write('C'); open('b.txt').read()") == "BC"
    sandbox.owner.call("POST", f"{sandbox.path}/pause", {})
    sandbox.owner.call("POST", f"{sandbox.path}/connect", {"timeout": 60})
    assert sandbox.value("f.seek(0); f.read()", context_id=name) == "BC"
    for path in (".metadata.json", "../x", "/home/user/../../etc/passwd"):
        (error, *_) = sandbox.run(f"open({path!r})", context_id=name)
        assert error["type"] == "error"
    full = "open('large', 'wb').write(bytes(5_000_000))"
    assert sandbox.run(full, context_id=name)[0]["name"] == "OSError"
    assert sandbox.call("DELETE", f"/contexts/{name}").status == 204
    assert read(sandbox, "b.txt").content == b"BC"


def test_folders_are_listed_made_moved_and_removed(sandbox: SandboxOf) -> None:
    sandbox.run(
        "import os; os.makedirs('a/b/c'); open('a/x', 'w').write('xy'); os.symlink('x', 'a/l')"
    )
    (row,) = sandbox.files("ListDir", path="/home/user").json["entries"]
    assert (row["name"], row["path"], row["type"]) == ("a", "/home/user/a", "FILE_TYPE_DIRECTORY")
    for folder, above in ((".", "/home/user"), ("/app", "/app")):
        rows = sandbox.files("ListDir", path=folder, depth=9).json["entries"]
        paths = [f"{above}/{name}" for name in ("a", "a/b", "a/b/c", "a/l", "a/x")]
        assert sorted(each["path"] for each in rows) == paths
    file = sandbox.files("Stat", path="a/x").json["entry"]
    assert (file["size"], file["type"], file["permissions"][0]) == ("2", "FILE_TYPE_FILE", "-")
    link = sandbox.files("Stat", path="a/l").json["entry"]
    assert (link["symlinkTarget"], link["type"]) == ("/home/user/a/x", "FILE_TYPE_FILE")
    assert sandbox.files("MakeDir", path="n/m").status == 200
    again = sandbox.files("MakeDir", path="n")
    assert (again.status, again.json["code"]) == (409, "already_exists")
    assert sandbox.files("Move", source="/app", destination="q/z").status == 400
    moved = sandbox.files("Move", source="/app/a/x", destination="q/y").json["entry"]
    assert moved["path"] == "/home/user/q/y"
    assert sandbox.files("Remove", path="a").status == 200
    assert sandbox.value("import os; sorted(os.listdir('.'))") == "['n', 'q']"
    missing = sandbox.files("Stat", path="a")
    assert (missing.status, missing.json["code"]) == (404, "not_found")


OUTER_PATHS = (
    *("/etc/passwd", "../../../etc/passwd", "/app/../etc/passwd", "/home/user/../../etc/passwd"),
    *("/home/other/x", "/tmp/../etc/x", "/tmpx", ".metadata.json", "/app/.METADATA.json"),
    *("/app/./../app/../etc", "%00", "a%00b", "up/x"),
)


def test_no_path_leads_out_of_the_sandbox(sandbox: SandboxOf) -> None:
    sandbox.run("import os; os.symlink('../../..', 'up')")
    for path in OUTER_PATHS:
        assert read(sandbox, path).status in (400, 404), path
        plain = path.replace("%00", "\0")
        assert sandbox.upload(path, b"evil").status in (400, 404), path
        for call in ("ListDir", "Stat", "MakeDir"):
            assert sandbox.files(call, path=plain).status in (400, 404), (call, path)
        assert sandbox.files("Move", source="/app", destination=plain).status in (400, 404), path
        sandbox.upload("mine", b"1")
        moved = sandbox.files("Move", source="mine", destination=plain)
        assert moved.status in (200, 400, 404), path


def test_uploads_have_the_limits_of_cells_and_must_be_readable(sandbox: SandboxOf) -> None:
    for content, headers in (
        (b"nothing", MULTIPART),
        (b"", {"Content-Type": "multipart/form-data"}),
        (parts(("", b"x")), MULTIPART),
        (b"x", {"Content-Type": "application/octet-stream"}),
    ):
        assert sandbox.call("POST", "/files", content, headers).status == 400
    for content in (b"no gzip", gzip.compress(b"abc" * 99)[:-9]):
        assert sandbox.upload("a", content, **PACKED).status == 400
    assert sandbox.files("ListDir", path=".").json["entries"] == []
    sandbox.upload("kept", b"kept")
    full = sandbox.upload("kept", b"x" * 5_000_000)
    assert full.status == 507
    assert "may be" in full.json["message"]
    assert read(sandbox, "kept").content == b"kept"
    assert sandbox.upload("bomb", gzip.compress(b"\0" * 40_000_000), **PACKED).status == 413


def test_unread_answers_count_towards_the_memory_of_their_client(sandbox: SandboxOf) -> None:
    """Formerly, unread downloads of 32 MiB each stayed in the server, and a list had 200 MB."""
    names = "os.makedirs(f := '/'.join(['n' * 250] * 14)); os.chdir(f)"
    sandbox.run(f"import os; {names}; [os.symlink('t' * 3900, str(n)) for n in range(200)]")
    sandbox.upload("large", b"x" * 2_900_000)
    lines = [sandbox.begin("GET", "/files?path=large") for _ in range(30)]
    wait_for(lambda: read(sandbox, "large").status == 503)
    assert sandbox.files("ListDir", path=".", depth=100).status == 503
    for line in lines:
        line.close()
    wait_for(lambda: sandbox.files("ListDir", path=".", depth=100).status == 200)


ANN = Caller("", "ann", "ann")


class SlowService:
    """A service whose `held` call takes until `go` is set."""

    def __init__(self) -> None:
        self.sync, self.limits = self, SimpleNamespace(expire_seconds=None)
        self.facts: dict[str, str] = {}
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.fails_after = 99
        self.held = ""
        self.entered, self.go = threading.Event(), threading.Event()

    def _session(self, name: str) -> Any:
        self.made.append(name)
        worker = SimpleNamespace(why_closed="", state="asleep")
        return SimpleNamespace(session_id=name, sync=SimpleNamespace(worker=worker))

    def _wait(self, call: str) -> None:
        if call == self.held:
            self.entered.set()
            assert self.go.wait(20)

    async def create(self, *_: Any, **__: Any) -> Any:
        return self._session(str(uuid.uuid4()))

    async def get(self, name: str, *_: Any, **__: Any) -> Any:
        if name in self.deleted:
            raise FileNotFoundError(name)
        return self._session(name)

    def note(self, name: str, facts: str) -> None:
        self.facts[name] = facts

    def record(self, name: str) -> Any:
        found = self.facts.get(name)
        self._wait("record")
        return None if found is None else SimpleNamespace(facts=found)

    def delete(self, name: str, why: str) -> None:
        self._wait("delete")
        if len(self.deleted) == self.fails_after:
            raise OSError("the disk failed")
        self.deleted.append(name)
        self.facts.pop(name, None)


async def made(service: SlowService) -> tuple[Sandboxes, ClientSandbox]:
    async def opened() -> Any:
        return service

    sandboxes = Sandboxes(opened, ExecutionPolicy(), HostWork())
    return sandboxes, await sandboxes.create(ANN, NewSandbox("base"))


async def at_once(service: SlowService, held: str, first: Any, second: Any) -> list[Any]:
    """Begins the second call while the first one's `held` call to the service takes long."""
    service.held = held
    one = asyncio.ensure_future(first)
    await asyncio.to_thread(service.entered.wait, 20)
    service.held = ""
    two = asyncio.ensure_future(second)
    for _ in range(10):
        await asyncio.sleep(0)
    service.go.set()
    return [*await asyncio.gather(one, two, return_exceptions=True)]


async def test_a_context_that_is_made_while_its_sandbox_is_looked_up_stays() -> None:
    service = SlowService()
    sandboxes, sandbox = await made(service)
    asks = sandboxes.running(sandbox.name, [sandbox.kept.token])
    _, context = await at_once(service, "record", asks, sandboxes.new_context(sandbox, None))
    assert [*sandbox.contexts] == [sandbox.name, context.name]
    assert context.name in service.facts[sandbox.name]  # the sandbox's end deletes it


async def test_a_request_that_comes_while_a_sandbox_is_killed_does_not_bring_it_back() -> None:
    service = SlowService()
    sandboxes, sandbox = await made(service)
    asks = sandboxes.running(sandbox.name, [sandbox.kept.token])
    killed, answer = await at_once(service, "delete", sandboxes.kill(sandbox), asks)
    assert killed is None
    assert isinstance(answer, Refusal)
    assert answer.status == 502
    assert service.made == [sandbox.name]


async def test_a_sandbox_whose_end_failed_half_way_is_killed_by_the_next_request() -> None:
    service = SlowService()
    sandboxes, sandbox = await made(service)
    for _ in range(2):
        await sandboxes.new_context(sandbox, None)
    service.fails_after = 1
    with pytest.raises(OSError, match="the disk failed"):
        await sandboxes.kill(sandbox)
    service.fails_after = 99
    await sandboxes.kill(await sandboxes.of(ANN, sandbox.name))
    assert {*service.deleted} == {*service.made}


async def test_a_cell_whose_guest_is_not_ready_says_so_on_standard_error() -> None:
    class Slow:
        async def execute(self, _: str, *, progress: Any, **__: Any) -> None:
            for left in (60, 59, 58):
                progress(f"compiling, once: {left} s left")
            raise SessionInUse

    lease = SimpleNamespace(reserve=lambda size: True, give_back=lambda size: None)
    sandbox: Any = SimpleNamespace(is_gone=False)
    call: Any = SimpleNamespace(sandbox=sandbox, lease=lease, metrics=None)
    context: Any = SimpleNamespace(session=Slow())
    sent, stays = list[bytes](), asyncio.Event()

    async def receive() -> Any:
        await stays.wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await CellStream(call, context, "1")({}, receive, send)
    told = [json.loads(line) for line in b"".join(sent).splitlines()]
    assert [(line["type"], line.get("text")) for line in told[:-1]] == [
        ("stderr", "[wasm-kernel] compiling, once: 60 s left\n")
    ]


def test_a_list_of_files_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a list of 14,000 links, each through 40 others, took the server 18 minutes."""

    @contextlib.contextmanager
    def opened(_: object) -> Iterator[FileAccess]:
        with Folder.open(tmp_path) as folder:
            folders = [Preopen(folder, APP)]
            with files_in(folders, Quota(folders, 0, 0), home=HOME) as found:
                yield found

    monkeypatch.setattr(files, "_open", opened)
    (tmp_path / "a").touch()
    asked, session = messages.ListDirRequest("."), cast(AsyncSession, None)
    assert [each.name for each in files.list_folder(session, asked).entries] == ["a"]
    monkeypatch.setattr(files, "_LIST_SECONDS", -1.0)
    with pytest.raises(Refusal, match="List its folders"):
        files.list_folder(session, asked)
