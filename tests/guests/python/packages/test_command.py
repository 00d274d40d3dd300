"""A `%pip` line or a requirements file may ask for names and versions, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages.pip_line import parse, words_of
from wasm_kernel.guests.python.packages.requirements import requirement


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
