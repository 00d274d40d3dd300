"""The packages that a request needs, according to the wheels' metadata."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.tasks import cancelled_after
from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages.requirements import (
    PACKAGES_MOST,
    KnownPackage,
    guest_environment,
    missing,
    wanted,
)
from wasm_kernel.linux.task import Cancelled

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


def test_needs_of_a_package_come_with_it_a_round_for_each_level() -> None:
    index = Index(
        known("a", "1", "b", "c>=2"), known("b", "1", "d"), known("c", "2"), known("d", "1.0", "a")
    )
    assert index.resolve("a") == ["a 1", "b 1", "c 2", "d 1.0"]
    assert index.rounds == [["a"], ["b", "c>=2"], ["d"]]


def test_a_package_is_fetched_again_where_a_later_one_wants_another_version() -> None:
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


def test_another_version_of_what_is_built_in_is_refused_by_name() -> None:
    index = Index(known("a", "1", "numpy<2"), builtin=(known("numpy", "2.5", builtin=True),))
    with pytest.raises(PackageError, match=r"numpy 2\.5 is built in .* a 1 \(<2\)"):
        index.resolve("a")


def test_a_contradiction_names_the_packages_and_their_needs() -> None:
    index = Index(known("a", "1", "c<2"), known("b", "1", "c>=2"), known("c", "1"), known("c", "2"))
    with pytest.raises((PackageError, ValueError)):
        index.resolve("a", "b")
    have = {"a": known("a", "1", "c<2"), "b": known("b", "1", "c>=2"), "c": known("c", "1")}
    wants = wanted([Requirement("a"), Requirement("b")], have, GUEST)
    with pytest.raises(PackageError, match=r"a 1 \(<2\); b 1 \(>=2\)"):
        missing(wants, have, {str(wants["c"])})


@pytest.mark.parametrize(
    "need",
    ["x @ http://10.0.0.1/x.whl", "x @ file:///etc/passwd", "x @ git+ssh://host/x", "evil.whl"],
)
def test_a_package_can_not_send_pip_elsewhere(need: str) -> None:
    with pytest.raises(PackageError, match="address of its own"):
        Index(known("a", "1", need)).resolve("a")


def test_a_package_can_not_need_without_end() -> None:
    chain = [known(f"p{i}", "1", f"p{i + 1}") for i in range(PACKAGES_MOST + 5)]
    with pytest.raises(PackageError, match=f"more than {PACKAGES_MOST}"):
        Index(*chain).resolve("p0")


@pytest.mark.parametrize("need", [">>>", "b; sys_platform ~= '3'"])
def test_an_unreadable_need_is_an_error_in_words(need: str) -> None:
    with pytest.raises(PackageError, match="can't be read"):
        Index(known("a", "1", need)).resolve("a")


def test_an_interrupt_ends_the_reading_of_needs() -> None:
    have = {"a": known("a", "1", *(f"b>{i}" for i in range(1000)))}
    with pytest.raises(Cancelled):
        wanted([Requirement("a")], have, GUEST, cancelled_after(10))
