"""Requests for packages, their needs, and a real pip that fetches wheels only, in silence."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from tests.private import folders_of
from tests.tasks import CountedTask, LocalBroker, cancelled_after
from wasm_kernel.errors import PackageError
from wasm_kernel.guests import fetcher
from wasm_kernel.guests.broker_handlers import FetchedPackages, FetchPackages, broker_handlers
from wasm_kernel.guests.python.packages import pip
from wasm_kernel.guests.python.packages.pip import Pip
from wasm_kernel.guests.python.packages.pip_line import parse, words_of
from wasm_kernel.guests.python.packages.requirements import (
    PACKAGES_MOST,
    KnownPackage,
    guest_environment,
    missing,
    requirement,
    wanted,
)
from wasm_kernel.linux.broker import Broker, tied_command
from wasm_kernel.linux.task import Cancelled
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


def test_fetching_is_bounded(index: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_names_versions_and_extras_are_understood() -> None:
    asked = parse("install humanize 'rich[jupyter]>=13,<15' -U --pre -q  # for the report")
    assert asked.verb == "install"
    assert [str(each) for each in asked.requirements] == ["humanize", "rich[jupyter]<15,>=13"]
    assert (asked.upgrade, asked.pre) == (True, True)


@pytest.mark.parametrize(
    "word",
    [
        "-r", "--requirement=/etc/passwd", "-e", "--index-url", "./package", "/tmp/package",
        "package.whl", "x.ZIP", "file:///etc/passwd", "http://10.0.0.1/x.whl", "git+ssh://git@host/x",
        "name @ file:///etc/passwd", "name@http://10.0.0.1/", "name; python_version<'3'",
        "name==1.0 --hash=sha256:0", "name[../x]", "~/x", "C:\\x", "$HOME", "`id`", "x\ty",
        "", "..", "--", "na me", "näme", "n" * 200,
    ],
)  # fmt: skip
def test_an_argument_that_is_not_a_name_is_refused(word: str) -> None:
    with pytest.raises(PackageError):
        requirement(word)


@pytest.mark.parametrize(
    "line",
    ["", "install", "install -U", "download x", "install 'unclosed", "config list", "x" * 30_000,
     "install " + " ".join(f"p{i}" for i in range(101)), "install -r", "install -r missing.txt",
     "uninstall -r missing.txt"],
)  # fmt: skip
def test_a_line_without_a_request_is_refused_in_words(line: str) -> None:
    with pytest.raises(PackageError) as refusal:
        parse(line)
    assert str(refusal.value)


FILE = """\ufeff# what the report needs
humanize >= 4   # for people
rich[jupyter]>=13,<15 ; python_version >= "3.9"
  colorama==0.4.6 ; sys_platform == "win32"

six \\
  ==1.16
--pre
-r more.txt
"""


def test_a_requirements_file_is_read_as_pip_reads_it() -> None:
    files = (("reqs.txt", FILE), ("more.txt", "attrs"))
    asked = parse("install -r reqs.txt toolz", files)
    assert [str(each) for each in asked.requirements] == [
        "toolz",
        "humanize>=4",
        'rich[jupyter]<15,>=13; python_version >= "3.9"',
        'colorama==0.4.6; sys_platform == "win32"',
        "six==1.16",
        "attrs",
    ]
    assert asked.pre
    for words in ("-rreqs.txt", "--requirement reqs.txt", "--requirement=reqs.txt"):
        assert len(parse(f"install {words}", files).requirements) == 5


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("six==1.16 --hash=sha256:00", "hashes are not checked here"),
        ("--index-url https://example.org/simple", "where packages come from"),
        ("--extra-index-url=https://example.org/simple", "where packages come from"),
        ("-c constraints.txt", "constraints"),
        ("-e .", "never built here"),
        ("./package", "never source code"),
        ("six @ https://example.org/six.whl", "only names"),
        ("--no-deps", "is not taken here"),
        ("x" * 3_000, "only names"),
    ],
)
def test_a_wrong_line_of_a_requirements_file_is_refused_by_its_number(line: str, why: str) -> None:
    with pytest.raises(PackageError) as refusal:
        parse("install -r reqs.txt", (("reqs.txt", f"# one\nrich\n{line}\n"),))
    assert str(refusal.value).startswith("reqs.txt, line 3: ")
    assert why in str(refusal.value)


def test_there_is_an_end_to_a_requirements_file() -> None:
    for text in ("x\n" * 1_000, "#" * 1_000_000):
        with pytest.raises(PackageError, match="more than"):
            parse("install -r reqs.txt", (("reqs.txt", text),))


def test_a_file_on_the_hosts_disk_is_read_with_those_that_it_names(tmp_path: Path) -> None:
    """Services and batch runs install packages before a notebook runs."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.txt").write_text("attrs>=20\n-r ../reqs.txt\n")
    (tmp_path / "reqs.txt").write_text("six; python_version>'3'\n-r sub/more.txt\n")
    assert words_of(tmp_path / "reqs.txt") == ('six; python_version > "3"', "attrs>=20")
    with pytest.raises(PackageError, match=r"none\.txt can't be read: No such file"):
        words_of(tmp_path / "none.txt")
    (tmp_path / "reqs.txt").write_text("six\n-e .\n")
    with pytest.raises(PackageError, match=r"^reqs\.txt, line 2: "):
        words_of(tmp_path / "reqs.txt")


ODD = "az09._-+=<>~!,;[]()/\\@: \t\n\0é漢'\""


@given(st.text(st.sampled_from(ODD), max_size=40))
def test_no_accepted_word_could_be_read_as_an_option_or_a_path(text: str) -> None:
    try:
        taken = str(requirement(text))
    except PackageError:
        return
    assert taken[0].isalnum()
    assert not set(taken) & set("/\\@: \t\n\0;")


GUEST = guest_environment("3.15.0")


def known(name: str, version: str = "1.0", *requires: str, builtin: bool = False) -> KnownPackage:
    return KnownPackage(name, Version(version), requires, builtin)


class Index:
    """Packages that can be fetched; `resolve` is the loop that the command runs."""

    def __init__(self, *there: KnownPackage, builtin: tuple[KnownPackage, ...] = ()) -> None:
        self.there = there
        self.builtin = {each.name: each for each in builtin}
        self.rounds: list[list[str]] = []

    def resolve(self, *asked: str) -> list[str]:
        have = dict(self.builtin)
        tried: set[str] = set()
        while True:
            wants = wanted([Requirement(each) for each in asked], have, GUEST)
            wishes = missing(wants, have, tried)
            if not wishes:
                chosen = [have[name] for name in wants if not have[name].builtin]
                return sorted(f"{each.name} {each.version}" for each in chosen)
            tried.update(map(str, wishes))
            self.rounds.append([str(wish) for wish in wishes])
            for wish in wishes:
                right = [k for k in self.there if k.name == wish.name and wish.accepts(k.version)]
                have[wish.name] = max(right, key=lambda k: k.version)


def test_needs_come_with_a_package_or_again_where_another_version_is_wanted() -> None:
    index = Index(
        known("a", "1", "b", "c>=2"), known("b", "1", "d"), known("c", "2"), known("d", "1.0", "a")
    )
    assert index.resolve("a") == ["a 1", "b 1", "c 2", "d 1.0"]
    assert index.rounds == [["a"], ["b", "c>=2"], ["d"]]
    index = Index(
        known("a", "1", "b", "c"), known("b", "2"), known("b", "1"), known("c", "1", "b<2")
    )
    assert index.resolve("a") == ["a 1", "b 1", "c 1"]


def test_markers_are_read_for_the_guest() -> None:
    needs = (
        "old; python_version<'3.15'", "new; python_version>='3.15'", "win; sys_platform=='win32'",
        "linux; sys_platform=='linux'", "big; platform_machine=='x86_64'",
        "wasi; sys_platform=='wasi'", "c; platform_python_implementation=='CPython'",
    )  # fmt: skip
    names = ("new", "wasi", "c")
    index = Index(known("a", "1", *needs), *map(known, names))
    assert index.resolve("a") == ["a 1", "c 1.0", "new 1.0", "wasi 1.0"]


def test_extras_bring_what_they_name() -> None:
    package = known("a", "1", "b; extra=='more'", "a[more]; extra=='all'")
    assert Index(package).resolve("a") == ["a 1"]
    assert Index(package, known("b")).resolve("a[more]") == ["a 1", "b 1.0"]
    assert Index(package, known("b")).resolve("a[all]") == ["a 1", "b 1.0"]


def test_a_contradiction_names_the_packages_and_their_needs() -> None:
    index = Index(known("a", "1", "c<2"), known("b", "1", "c>=2"), known("c", "1"), known("c", "2"))
    with pytest.raises((PackageError, ValueError)):
        index.resolve("a", "b")
    have = {"a": known("a", "1", "c<2"), "b": known("b", "1", "c>=2"), "c": known("c", "1")}
    wants = wanted([Requirement("a"), Requirement("b")], have, GUEST)
    with pytest.raises(PackageError, match=r"a 1 \(<2\); b 1 \(>=2\)"):
        missing(wants, have, {str(wants["c"])})


REFUSED_NEEDS = {
    **dict.fromkeys(
        ("x @ http://10.0.0.1/x.whl", "x @ file:///etc/passwd", "x @ git+ssh://host/x", "evil.whl"),
        "address of its own",
    ),
    **dict.fromkeys((">>>", "b; sys_platform ~= '3'"), "can't be read"),
}


@pytest.mark.parametrize("need", REFUSED_NEEDS)
def test_a_package_can_not_send_pip_elsewhere_or_need_what_is_unreadable(need: str) -> None:
    with pytest.raises(PackageError, match=REFUSED_NEEDS[need]):
        Index(known("a", "1", need)).resolve("a")


def test_a_package_can_not_need_without_end_and_an_interrupt_ends_it() -> None:
    chain = [known(f"p{i}", "1", f"p{i + 1}") for i in range(PACKAGES_MOST + 5)]
    with pytest.raises(PackageError, match=f"more than {PACKAGES_MOST}"):
        Index(*chain).resolve("p0")
    have = {"a": known("a", "1", *(f"b>{i}" for i in range(1000)))}
    with pytest.raises(Cancelled):
        wanted([Requirement("a")], have, GUEST, cancelled_after(10))
