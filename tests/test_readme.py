"""The README tells the truth: its Python runs and prints what it says, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jupyter_client.kernelspec import find_kernel_specs

from tests.benchmarks.measures import MEASURES
from wasm_kernel import events
from wasm_kernel.frontends.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON_THEN_TEXT = re.compile(
    r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
EXAMPLES = PYTHON_THEN_TEXT.findall(README)
COMMANDS = [
    line
    for kind, block in BLOCK.findall(README)
    if kind == "sh"
    for line in block.splitlines()
    if line
]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_the_page_says(
    code: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    assert capsys.readouterr().out == printed


def test_every_python_block_is_such_an_example() -> None:
    assert [code for kind, code in BLOCK.findall(README) if kind == "python"] == [
        code for code, _ in EXAMPLES
    ]


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert targets
    assert not [one for one in targets if not re.search(rf"^{one}:", makefile, re.MULTILINE)]


def test_every_command_is_one_that_a_test_knows() -> None:
    known = (
        r"make \w+|python3 -m venv \.venv|\.venv/bin/(python -m (pip install|tests\.benchmarks)"
        r"|wasm-kernel|jupyter) .+"
    )
    assert not [command for command in COMMANDS if not re.fullmatch(known, command)]


def test_every_command_of_ours_exists(capsys: pytest.CaptureFixture[str]) -> None:
    ours = [c.split()[1] for c in COMMANDS if c.startswith(".venv/bin/wasm-kernel ")]
    assert ours
    for command in ours:
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        assert command in capsys.readouterr().out


def test_every_row_that_is_measured_exists() -> None:
    lines = [c for c in COMMANDS if "tests.benchmarks" in c]
    named = [row for line in lines for row in line.partition("--only ")[2].split()]
    shown = re.findall(r"`(\w+)` \|$", README.partition("## Measured")[2], re.MULTILINE)
    assert set(shown) == set(named) <= set(MEASURES)


def test_the_kernel_is_in_the_picker() -> None:
    assert "wasm-python" in find_kernel_specs()


def test_every_event_is_listed() -> None:
    names = [value for name, value in vars(events).items() if name.isupper() and "." in str(value)]
    named = [name for name in names if isinstance(name, str)]
    assert named
    assert not [name for name in named if f"`{name}`" not in README]


def test_every_page_that_is_linked_is_there() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        missing = [target for target in targets if not (page.parent / target).exists()]
        assert not missing, page.name
