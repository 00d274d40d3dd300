"""What a %pip line may ask for: names and versions, and nothing that reaches further."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages.requirements import parse, requirement


def test_names_versions_and_extras_are_understood() -> None:
    asked = parse("install humanize 'rich[jupyter]>=13,<15' -U --pre -q  # for the report")
    assert asked.verb == "install"
    assert [str(each) for each in asked.requirements] == ["humanize", "rich[jupyter]<15,>=13"]
    assert (asked.upgrade, asked.pre) == (True, True)


def test_uninstall_takes_names() -> None:
    assert parse("uninstall -y Foo_Bar baz").names == ("foo-bar", "baz")


@pytest.mark.parametrize(
    "word",
    [
        "-r", "--requirement=/etc/passwd", "-rfile", "-e", "--index-url", "-f", "--target=/x", "-c",
        "./package", "../package", "/tmp/package", "package.whl", "package.tar.gz", "x.zip",
        "x.ZIP",        "file:///etc/passwd", "http://10.0.0.1/x.whl", "git+ssh://git@host/x", "https://x/y#egg=z",
        "name @ file:///etc/passwd", "name@http://10.0.0.1/", "name; python_version<'3'",
        "name==1.0 --hash=sha256:0", "name[../x]", "~/x", "C:\\x", "a/b", "$HOME", "`id`", "x\ty",
        "", ".", "..", "-", "--", "na me", "näme", "n" * 200,
    ],
)  # fmt: skip
def test_whatever_is_no_name_is_refused(word: str) -> None:
    with pytest.raises(PackageError):
        requirement(word)


@pytest.mark.parametrize(
    "line",
    ["", "install", "install -U", "download x", "install 'unclosed", "config list", "x" * 3000,
     "install " + " ".join(f"p{i}" for i in range(51))],
)  # fmt: skip
def test_a_line_without_a_request_is_refused_in_words(line: str) -> None:
    with pytest.raises(PackageError) as refusal:
        parse(line)
    assert str(refusal.value)


@given(st.text(max_size=40))
def test_nothing_that_is_taken_could_be_read_as_an_option_or_a_path(text: str) -> None:
    try:
        taken = str(requirement(text))
    except PackageError:
        return
    assert taken[0].isalnum()
    assert not set(taken) & set("/\\@: \t\n\0;")
