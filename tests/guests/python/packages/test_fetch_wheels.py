"""A real pip on a test's index fetches only wheels, runs nothing, and tells nothing of the host."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.private import folders_of
from tests.tasks import CountedTask, LocalBroker
from wasm_kernel.errors import PackageError
from wasm_kernel.guests import fetcher
from wasm_kernel.guests.broker_handlers import FetchedPackages, FetchPackages, broker_handlers
from wasm_kernel.guests.python.packages import pip
from wasm_kernel.guests.python.packages.pip import Pip
from wasm_kernel.linux.broker import Broker, tied_command
from wasm_kernel.service.service import Service
from wasm_kernel.sessions.root import SessionsRoot

pytestmark = pytest.mark.usefixtures("forked_pip")

Make = Callable[..., Path]
VERSION = "3.15.0"


def fetch(*wishes: str, into: Path, pre: bool = False) -> tuple[list[str], list[str]]:
    """The names of the fetched wheels, and the messages during the fetch."""
    into.mkdir(exist_ok=True)
    task = CountedTask()
    Pip(VERSION).download(wishes, into, pre=pre, task=task)
    return sorted(path.name for path in into.glob("*.whl")), task.reported


def refusal(*wishes: str, into: Path) -> str:
    with pytest.raises(PackageError) as refused:
        fetch(*wishes, into=into)
    return str(refused.value)


def test_the_newest_wheel_that_fits_is_fetched_alone(index: Make, tmp_path: Path) -> None:
    """A pre-release is fetched if the request asks for it."""
    for version in ("1.0", "2.0", "3.0b1"):
        index("one", version, needs=("two",))
    names, told = fetch("one<2", into=tmp_path / "to")
    assert names == ["one-1.0-py3-none-any.whl"]
    assert told == ["Fetching one-1.0-py3-none-any.whl"]
    assert fetch("one", into=tmp_path / "pre", pre=True)[0] == ["one-3.0b1-py3-none-any.whl"]


@pytest.mark.parametrize("versions", ["===/../../{}", "==1.0,===/..{}", "===.{}", "===file:{}"])
def test_a_folder_of_the_host_is_not_built(versions: str, tmp_path: Path) -> None:
    """pip takes a word with slashes for a folder, and runs that folder's build code."""
    project, to = tmp_path / "project", tmp_path / "to"
    project.mkdir()
    build = "[build-system]\nrequires = []\nbuild-backend = 'b'\nbackend-path = ['.']\n"
    (project / "pyproject.toml").write_text(build)
    (project / "b.py").write_text("open('ran', 'w')")
    up = "/.." * 40
    said = refusal("a" + versions.format(f"{up}{project}"), into=to)
    assert "not done here" in said or "%pip" in said, said
    assert not [*tmp_path.rglob("ran"), *to.iterdir()]


def test_a_source_distribution_is_never_built(
    index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tarfile

    proof = tmp_path / "it-ran"
    source = tmp_path / "index" / "src" / "src-1.0"
    source.mkdir(parents=True)
    (source / "setup.py").write_text(f"open({str(proof)!r}, 'w')\n")
    with tarfile.open(source.parent / "src-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "src-1.0")
    (source.parent / "index.html").write_text('<a href="src-1.0.tar.gz">src-1.0.tar.gz</a>')
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    assert "source code only" in refusal("src", into=tmp_path / "to")
    assert not proof.exists()


def test_an_index_that_does_not_answer_is_said_so(
    index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/secret-name/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    text = refusal("one", into=tmp_path / "to")
    assert "can't be reached" in text
    assert "secret-name" not in text


def test_a_pip_that_fails_otherwise_is_quoted_without_paths_and_addresses(
    index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "secret" / "file.txt"))
    text = refusal("one", into=tmp_path / "to")
    assert "pip could not fetch one" in text
    assert "secret" not in text


def test_constraints_of_the_users_pip_do_not_hide_why(
    index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index("one")
    index("fast", tags=f"py3-none-{sysconfig.get_platform().replace('-', '_')}")
    (tmp_path / "constraints.txt").write_text("one<0.5\nfast<9\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    assert refusal("fast", into=tmp_path / "to").startswith("fast needs compiled code")
    text = refusal("one", into=tmp_path / "to2")
    assert "one has no pure-Python wheel" in text
    assert "a constraint of pip's configuration excludes" in text


def test_too_much_is_not_fetched(
    index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index("big", files={"big.bin": os.urandom(300_000)})
    monkeypatch.setattr(fetcher, "BYTES_MOST", 100_000)
    assert "more than" in refusal("big", into=tmp_path / "to")


def test_metadata_that_takes_too_much_memory_ends_pip(
    index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip reads the whole metadata of a wheel; 1 MB compressed may become 1 GB."""
    monkeypatch.setattr(pip, "tied_command", tied_command)  # as for users; it can be limited
    index("bomb", metadata="\n" + "a" * 30_000_000)
    monkeypatch.setattr(fetcher, "MEMORY_BYTES", 60_000_000)
    assert "takes more memory than" in refusal("bomb", into=tmp_path / "to")


def test_all_requests_of_a_services_session_count(
    index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, each request could fetch as much as the limit allows."""
    index("one")
    monkeypatch.setattr(fetcher, "TOTAL_BYTES", 500)
    with Service(tmp_path) as service:
        session = service.create(pip=True)
        said = [session.execute("%pip install one").stderr for _ in range(2)]
    assert "more than" in said[0]
    assert "open it anew to fetch more" in said[1]


def _place(root: Path) -> Path:
    """The folder for wheels that the session `one` fetches."""
    with closing(folders_of(root / "one")) as folders:
        folders.private.enter("fetched", "w_1", make=True).close()
        return folders.private.path / "fetched"


def broker_of(root: Path) -> Broker:
    """A broker that fetches for the session `one`."""
    return LocalBroker(broker_handlers("python", SessionsRoot(root).private_of("one")))


@pytest.mark.parametrize("into", ["..", "/tmp", "", "w_1/..", "link", "nope"])
def test_the_broker_fetches_into_no_other_folder(tmp_path: Path, into: str) -> None:
    place = _place(tmp_path)
    (place / "link").symlink_to(place / "w_1")
    with pytest.raises(PackageError, match="no such folder"):
        broker_of(tmp_path).call(FetchPackages(("one",), into), FetchedPackages)


@pytest.mark.parametrize("wishes", [("-r/etc/passwd",), ("x",) * 101])
def test_the_broker_fetches_no_other_things(tmp_path: Path, wishes: tuple[str, ...]) -> None:
    _place(tmp_path)
    with pytest.raises(PackageError):
        broker_of(tmp_path).call(FetchPackages(wishes, "w_1"), FetchedPackages)
