"""The pages tell the truth: the names in them exist, the reference is complete, examples run."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from jupyter_client.kernelspec import find_kernel_specs
from msgspec import Struct

import wasm_kernel
from tests.benchmarks.measures import MEASURES
from tests.pages import (
    ALL,
    COURSE,
    DOCS,
    NOTEBOOKS,
    PROGRAMS,
    ROOT,
    SITE,
    Example,
    blocks_of,
    examples_of,
    prose_of,
    says,
)
from tests.reference_pages import PAGES
from wasm_kernel.errors import BATCH_OPTIONS
from wasm_kernel.frontends.cli.main import main
from wasm_kernel.policy import POLICY_FIELDS

OF_CODE = ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/recipes.md"]
PLACES = ["", "wasm_kernel/", "tests/", "runtimes/", "wasm_kernel/outputs/"]
PLACES += ["runtimes/python/wasm_kernel_agent/", "tests/outputs/", "docs/"]
FOR_NEWCOMERS = [ROOT / "README.md", DOCS / "index.md", DOCS / "install.md"]
RESULTS = DOCS / "results.md"
# arguments of functions
GIVEN = {"Budgets", "ExecutionPolicy", "HostFunction", "Mount", "ServiceLimits"}


@pytest.mark.parametrize("page", OF_CODE)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", text)
    named = [name for name in named if not name.startswith("jupyter_")]  # a user's own file
    missing = [name for name in named if not any((ROOT / at / name).exists() for at in PLACES)]
    assert not missing


def test_the_holder_of_every_limit_is_named() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("Who holds each limit")[2]
    rows = [line.partition("|")[2].partition("|")[0] for line in table.splitlines()]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(POLICY_FIELDS)


# Links


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """The file and the heading that each link of a page leads to, of this repository's."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if not re.match(r"\w+:", target):
            name, _, anchor = target.partition("#")
            yield (page.parent / name).resolve() if name else page, anchor


def anchors_of(page: Path) -> set[str]:
    """The names of a page's headings, on the site and on a code host alike."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)", "", heading) for heading in headings]
    kept = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in plain]
    here, there = ([re.sub(run, "-", name) for name in kept] for run in (r"[-\s]+", r"\s"))
    return set(here) & set(there)


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = list(links_of(page))
    assert not [file.name for file, _ in links if not file.exists()]
    broken = [(file.name, name) for file, name in links if name and name not in anchors_of(file)]
    assert not broken


def test_every_page_is_in_the_navigation_and_links_to_nothing_outside() -> None:
    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from pages(part)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(pages(nav)) == sorted(str(page.relative_to(DOCS)) for page in SITE)
    outside = [
        (page.name, file.name)
        for page in SITE
        for file, _ in links_of(page)
        if DOCS not in file.parents
    ]
    assert not outside


# Commands


def commands_on(pages: list[Path], kinds: set[str]) -> list[str]:
    blocks = [block for page in pages for block in blocks_of(page) if block.kind in kinds]
    lines = [line for block in blocks for line in block.text.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line]


def test_commands_rows_and_targets_on_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = commands_on(ALL, {"sh", "console"})
    targets = {target for line in lines for target in re.findall(r"\bmake ([a-z]+)\b", line)}
    assert {"test", "bench", "docs", "demo", "soak"} <= targets
    assert not [one for one in targets if not re.search(rf"^{one}:", makefile, re.MULTILINE)]
    page = DOCS / "measured.md"
    lines = commands_on([page], {"sh"})
    named = [row for line in lines for row in line.partition("--only ")[2].split()]
    shown = re.findall(r"`(\w+)` \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(shown) == set(named) <= set(MEASURES)
    known = (
        r"make \w+|python3 -m venv \.venv|(\.venv/bin/)?"
        r"(python -m (pip (un)?install|tests\.benchmarks)|wasm-kernel|jupyter) .+"
    )
    assert not [
        command
        for command in commands_on(FOR_NEWCOMERS, {"sh"})
        if not re.fullmatch(known, command)
    ]


def test_every_command_of_ours_exists(capsys: pytest.CaptureFixture[str]) -> None:
    lines = commands_on(ALL, {"sh", "console", "text", "dockerfile"})
    ours = {found for line in lines for found in re.findall(r"\bwasm-kernel ([a-z]+)\b", line)}
    assert {"warm", "doctor", "run", "grade", "mcp", "sessions"} <= ours
    for command in ours:
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        said = capsys.readouterr().out
        assert command in said
        if command in ("run", "grade"):  # their sentences name these commands
            assert all(f"{option} " in said for option in BATCH_OPTIONS.values())


def test_the_kernel_is_in_the_picker() -> None:
    assert "wasm-python" in find_kernel_specs()


# The reference


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_the_code_writes_is_up_to_date(name: str) -> None:
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "python -m tests.reference_pages writes it"


def test_every_public_name_and_result_is_in_the_reference() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in SITE)
    named = re.findall(r"^::: wasm_kernel\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(wasm_kernel.__all__)
    text = RESULTS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \|$", text, re.MULTILINE)
    assert rows == re.findall(r"^::: .*?(\w+)$", text, re.MULTILINE)
    assert set(rows) == {each.__name__ for each in values()} | {"Output"}


def values() -> list[type]:
    """The public classes of values that functions return."""
    public = [getattr(wasm_kernel, name) for name in wasm_kernel.__all__]
    classes = [each for each in public if isinstance(each, type)]
    kinds = [each for each in classes if is_dataclass(each) or issubclass(each, Struct)]
    return [each for each in kinds if each.__name__ not in GIVEN]


@pytest.mark.parametrize("kind", values(), ids=lambda kind: kind.__name__)
def test_every_field_of_a_result_has_a_meaning(kind: type) -> None:
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    named = set(re.findall(r"^ {4}(\w+): \S", section, re.MULTILINE))
    properties = [name for name, each in vars(kind).items() if isinstance(each, property)]
    assert set(inspect.get_annotations(kind)) <= named
    assert all(vars(kind)[name].__doc__ for name in properties if not name.startswith("_"))


ROW = re.compile(
    r"^\| \*\*(?P<word>[^*]+)\*\* \| (?P<meaning>.+) \| `(?P<home>[^`]+)` \|$", re.MULTILINE
)
ROWS = [found.groups() for found in ROW.finditer((ROOT / "docs" / "glossary.md").read_text())]
CODE = re.compile(r"`([A-Za-z_]+)`")


def test_each_word_is_at_home_where_the_glossary_says() -> None:
    assert len(ROWS) > 40
    for word, meaning, home in ROWS:
        file = ROOT / ("" if home.startswith("runtimes/") else "wasm_kernel") / home
        assert file.is_file(), word
        text = file.read_text(encoding="utf-8")
        for name in CODE.findall(meaning):
            if name[0].isupper() and name != "KeyboardInterrupt":
                assert re.search(rf"\b{name}\b", text), f"{home} does not speak of {name}"


EXAMPLES = {
    f"{name}-{number}": example
    for name, page in PROGRAMS.items()
    for number, example in enumerate(examples_of(page))
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_a_program_prints_what_the_page_says(
    example: Example,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    exec(example.code, {"__name__": "__main__"})
    printed = capfd.readouterr().out
    assert example.printed is not None, "a program on a page has its output below it"
    assert says(printed, example.printed), printed


def test_the_course_is_graded_as_the_tutorial_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(COURSE):
        if block.title:
            save(tmp_path / block.title, block.text)
    for command, printed in examples_of(COURSE, "sh"):
        assert printed is not None
        told = run(command.split(), capfd)
        assert says(told, printed), told


def test_each_example_is_in_the_table_of_those_tried_and_each_page_is_run() -> None:
    page = (DOCS / "frameworks-tried.md").read_text(encoding="utf-8")
    examples = sorted((DOCS.parent / "examples" / "frameworks").glob("*.py"))
    assert [each.name for each in examples if f"frameworks/{each.name}` | ran |" not in page] == []
    run_somewhere = {*PROGRAMS.values(), *NOTEBOOKS.values(), COURSE}
    assert {page for page in SITE if examples_of(page)} <= run_somewhere


def save(file: Path, text: str) -> None:
    """Writes a file of a page; a notebook has the text as its only cell."""
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".ipynb":
        cell = nbformat.v4.new_code_cell(text)  # type: ignore[no-untyped-call]
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), file)  # type: ignore[no-untyped-call]
    else:
        file.write_text(text, encoding="utf-8")


def run(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The output of a command: one of ours, or `cat` of a file."""
    if words[0] == "cat":
        return Path(words[1]).read_text(encoding="utf-8")
    assert words[0] == "wasm-kernel"
    main(words[1:])
    return capfd.readouterr().out
