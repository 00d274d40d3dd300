"""`%npm`, with a program that needs no network in npm's place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guests.javascript.conftest import problem, value
from wasm_kernel import BaseSandbox, create_sandbox
from wasm_kernel.guests.javascript import broker_handlers

FAKE = """#!{python}
import json, os, pathlib, sys, time
words, lock = sys.argv[1:], {{}}
assert "--ignore-scripts" in words and "--no-bin-links" in words, words
for wanted in words[words.index("--") + 1:]:
    name, _, version = wanted.partition("@")
    if name == "missing":
        sys.exit("npm error code E404\\nnpm error 404  'missing@*' is not in this registry.")
    folder = pathlib.Path("node_modules", name)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({{"name": name}}))
    (folder / "index.js").write_text(f"export default {{name!r}}")
    if name == "compiled":
        (folder / "it.node").write_text("")
    if name == "linked":
        (folder / "out").symlink_to("/etc/passwd")
    if name == "many":
        for number in range(40):
            (folder / str(number)).touch()
    lock["node_modules/" + name] = {others}.get(name, {{}}) | {{"version": version or "1.0.0"}}
    if name == "endless":
        lock["node_modules/" + name]["license"] = "x" * 20_000_000
pathlib.Path("node_modules", ".package-lock.json").write_text(json.dumps({{"packages": lock}}))
"""
OTHERS: dict[str, object] = {
    "copied": {"resolved": "file:../../home"},
    "cloned": {"resolved": "git+ssh://git@example.org/x.git#0123"},
    "linking": {"link": True, "resolved": "elsewhere"},
    "asking": {"dependencies": {"inner": "http://10.0.0.1/x.tgz"}},
    "short": {"optionalDependencies": {"inner": "owner/private"}},
    "fine": {
        "resolved": "https://example.org/x.tgz",
        "dependencies": {"x": "^1 || 2", "y": "npm:@a/b@2"},
    },
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSandbox]:
    folder = tmp_path_factory.mktemp("npm")
    with create_sandbox("javascript", folder / "app", pip=True) as made:
        yield made


@pytest.fixture(autouse=True)
def _npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm"
    program.write_text(FAKE.format(python=sys.executable, others=OTHERS))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_packages_come_go_and_are_listed(sandbox: BaseSandbox) -> None:
    result = sandbox.execute("%npm install one two@2.0.0 fine\nimport one from 'one'\none")
    assert result.stdout.endswith("Installed one 1.0.0, two 2.0.0, fine 1.0.0.\n")
    assert value(sandbox, "import two from 'two'\n[one, two]") == "[ 'one', 'two' ]"
    assert sandbox.execute("%npm list").stdout == "one 1.0.0\ntwo 2.0.0\nfine 1.0.0\n"
    sandbox.execute("%npm install one")  # other packages stay as they are
    assert sandbox.execute("%npm list").stdout == "one 1.0.0\ntwo 2.0.0\nfine 1.0.0\n"
    assert sandbox.execute("%npm uninstall one two fine").stdout.endswith(
        "Removed one, two, fine.\n"
    )
    assert "There is no package 'one?2' here" in problem(sandbox, "await import('one?2')")


REFUSED = {
    "missing": "Nothing was changed: npm finds no such package: missing.",
    "compiled": "Nothing was changed: compiled needs compiled code, which the sandbox can't",
    "copied": "Nothing was changed: copied is not from the package registry",
    "linking": "linking is not from the package registry",
    "asking": "inner is not from the package registry",
    "endless": "Nothing was changed: npm's list of these packages is too long.",
    "../folder": "'../folder' is not the name of a package",
    "git+https://example.org/x.git": "is not the name of a package",
    "x@file:../y": "is not the name of a package",
    "x@npm:other": "is not the name of a package",
    "x.tgz": "is not the name of a package",
    "--ignore-scripts=false": "is not the name of a package",
}


def test_wrong_lines_are_refused_in_words(sandbox: BaseSandbox) -> None:
    for words, why in REFUSED.items():
        assert why in problem(sandbox, f"%npm install {words}"), words


def test_files_without_end_are_refused(
    sandbox: BaseSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_handlers, "FILES_MOST", 30)
    assert "these are more than 30 files" in problem(sandbox, "%npm install many")


def test_links_in_packages_lead_nowhere(sandbox: BaseSandbox) -> None:
    sandbox.execute("%npm install linked")
    place = "/usr/local/lib/javascript/node_modules/linked"
    code = f"const fs = require('fs'); fs.readdirSync('{place}')"
    assert value(sandbox, code) == "[ 'index.js', 'package.json' ]"
    assert "E" in problem(sandbox, f"fs.writeFileSync('{place}/index.js', '')")


def test_npm_is_off_unless_it_is_allowed(javascript: BaseSandbox) -> None:
    assert "%npm is not allowed in this sandbox" in problem(javascript, "%npm install one")


def test_code_can_not_ask_for_it(sandbox: BaseSandbox) -> None:
    result = sandbox.execute("`\n%npm install one\n`.length")
    assert (result.stdout, result.success) == ("", True)
